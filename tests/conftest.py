"""Runs before JAX is imported: float32 on four virtual CPU devices, and no cache outside the test run."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
if "VJAX_CACHE_DIR" not in os.environ:
    os.environ["VJAX_CACHE_DIR"] = tempfile.mkdtemp(prefix="vjax-test-cache-")
    atexit.register(shutil.rmtree, os.environ["VJAX_CACHE_DIR"], ignore_errors=True)
