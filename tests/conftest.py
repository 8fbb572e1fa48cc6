"""Runs before JAX is imported: float32 on four virtual CPU devices, and no cache outside the test run."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.goldens.cases import CASES

os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling takes most of the suite's time, and code that is optimised less computes the same.
SEVERAL_DEVICES = "--xla_force_host_platform_device_count=4"
FLAGS = [SEVERAL_DEVICES, "--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version("jax") < "0.11":
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")  # twice as fast again; later versions abort on the name
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])
if "VJAX_CACHE_DIR" not in os.environ:
    os.environ["VJAX_CACHE_DIR"] = tempfile.mkdtemp(prefix="vjax-test-cache-")
    atexit.register(shutil.rmtree, os.environ["VJAX_CACHE_DIR"], ignore_errors=True)


# What CI runs on one Python only: none of it depends on the version of JAX but through what other files test.
ONCE = ("native", "tokenizing", "frontend", "serving/test_chat.py", "serving/test_completions.py",
        "serving/test_errors.py", "serving/test_operations.py", "loading/test_gguf.py", "test_cli.py", "test_docs.py",
        "test_notebooks.py", "test_plan.py")  # fmt: skip

ORDER = {"test_notebooks.py": 0, "test_families.py": 2}  # what is long and in one piece begins, what is in many ends


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`: a file's tests share a worker, and so its fixtures and graphs. Those of a family's golden
    go with that golden instead, as they are most of the suite; a family's further goldens are marked `once`."""
    items.sort(key=lambda item: ORDER.get(item.path.name, 1))
    first = {case.family: case.name for case in reversed(CASES)}.values()
    for item in items:
        params = getattr(item, "callspec", None)
        golden = (params.params.get("golden") or params.params.get("name")) if params else None
        group = f"golden {golden}" if item.path.name == "test_families.py" and golden else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
        below = item.path.relative_to(Path(__file__).parent).as_posix()
        if below.startswith(ONCE) or (group.startswith("golden ") and golden not in first):
            item.add_marker(pytest.mark.once)


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest-xdist tells groups by a suffix of a test's id. Where it cannot put one there (pytest 9.2), it would spread
    a file's tests over all workers, and each would build the file's fixtures and graphs for itself."""
    if session.config.getoption("loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist ignores the groups of tests; use pytest < 9.2.")
