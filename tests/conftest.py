"""Runs before JAX is imported: float32 on four virtual CPU devices, and no cache outside the test run."""

from __future__ import annotations

import os
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ.setdefault("VJAX_CACHE_DIR", tempfile.mkdtemp(prefix="vjax-test-cache-"))
