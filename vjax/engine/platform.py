"""Settings of JAX that have to stand before its first use in the process, and what the device has to offer."""

from __future__ import annotations

import logging
import os

import jax

from vjax.config import EngineConfig
from vjax.paths import cache_dir

log = logging.getLogger(__name__)

CPU_CACHE_BYTES = 1 << 30


def prepare(config: EngineConfig) -> None:
    """Share of GPU memory; the persistent compilation cache in `cache_dir("xla")`, autotuning results beside it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{config.gpu_memory_utilization:.2f}")
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        folder = cache_dir("xla")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("no compilation cache: %s cannot be made (%s); every start compiles anew", folder, error)
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    # The defaults would leave small graphs out, and a second start would compile them again.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def platform() -> str:
    """cpu or gpu."""
    return jax.devices()[0].platform


def free_bytes(config: EngineConfig) -> int | None:
    """Device memory left for the cache and temporaries on every device, or None where the device does not say (CPU)."""
    stats = [device.memory_stats() for device in jax.local_devices()[: config.tensor_parallel_size]]
    if platform() == "cpu" or any(s is None or "bytes_limit" not in s for s in stats):
        return None
    return min(s["bytes_limit"] - s["bytes_in_use"] for s in stats)
