"""Which implementation each operation takes: by platform, or as an engine or a user chose.

Read while a step is traced. The setting is the process's, not an engine's: a second engine with other kernels changes
what the first one compiles from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import jax

from vjax.errors import ModelError
from vjax.native import library

log = logging.getLogger(__name__)

KNOWN = {
    "paged_attention": ("reference", "triton", "native"),
    "add_rms_norm": ("reference", "triton"),
    "matvec": ("reference", "triton"),
    "append_and_attend": ("reference", "triton"),
    "latent_attention": ("reference", "triton"),
    "routing": ("reference", "triton"),
    "grouped_matmul": ("reference", "triton"),
    "scaled_matmul": ("reference", "triton"),
    "ggml_matmul": ("reference", "native"),
}
REFERENCE = dict.fromkeys(KNOWN, "reference")
JAX_TRITON = (0, 4, 1)  # older ones cannot be captured into a CUDA graph

_wanted: dict[str, str] = {}
_chosen: dict[str, str] = {}
_devices = 1
_platform: str | None = None
_step: ContextVar[bool] = ContextVar("vjax_step", default=False)  # of a thread: another may differentiate meanwhile


def choose(kernels: Mapping[str, str] | None = None, *, devices: int = 1) -> None:
    """Set implementations by operation, such as `{"paged_attention": "reference"}`; others go by platform.

    `devices` is the mesh's size: kernels are not partitioned, so on more than one the reference runs.
    Raises `ModelError` for a name that does not exist.
    """
    global _devices
    for op, name in (kernels or {}).items():
        if op not in KNOWN:
            raise ModelError(f"kernels names {op!r}; known: {', '.join(KNOWN)}.")
        if name not in KNOWN[op]:
            raise ModelError(f"kernels[{op!r}] is {name!r}; known: {', '.join(KNOWN[op])}.")
    _wanted.clear()
    _wanted.update(kernels or {})
    _chosen.clear()
    _devices = devices


@contextmanager
def lowering_for(platform: str) -> Iterator[None]:
    """Within it, steps are traced for `platform` (cpu or cuda), whatever this machine has."""
    global _platform
    before, _platform = _platform, platform
    try:
        yield
    finally:
        _platform = before


def platform() -> str:
    """What the step being traced will run on: cpu or cuda."""
    name = _platform or jax.default_backend()
    return "cuda" if name == "gpu" else name


@contextmanager
def tracing_a_step() -> Iterator[None]:
    """Within it, what is traced is an engine's step: neither differentiated nor batched, so that kernels may run."""
    token = _step.set(True)
    try:
        yield
    finally:
        _step.reset(token)


def in_step() -> bool:
    return _step.get()


def pick(op: str, obstacle: str | None = None, native: str | None = "it has no native form") -> str:
    """The implementation of `op` for the step being traced. `obstacle` says why its inputs rule Triton kernels out,
    `native` why the native library cannot take them.

    Raises `ModelError` when an implementation was asked for by name and cannot run.
    """
    obstacles = {
        "triton": obstacle or _obstacle(),
        "native": native or _native_obstacle(),
        "reference": None,
    }
    name = _wanted.get(op) or next(name for name, found in obstacles.items() if found is None)
    if obstacles[name]:
        raise ModelError(f"kernels[{op!r}] is {name!r}, but {obstacles[name]}.")
    if _chosen.get(op) != name:
        why = "; ".join(found for found in obstacles.values() if found)
        log.info("%s: %s%s", op, name, f" ({why})" if name == "reference" else "")
    _chosen[op] = name
    return name


def chosen() -> dict[str, str]:
    """What the steps traced since `choose` took, by operation."""
    return dict(_chosen)


def _obstacle() -> str | None:
    """Why Triton kernels cannot run here, or None."""
    if platform() != "cuda":
        return f"the platform is {platform()}"
    if _devices > 1:
        return f"the mesh has {_devices} devices"
    return _missing()


def _native_obstacle() -> str | None:
    """Why the native library cannot run here, or None."""
    if _platform is not None:
        return "the graph is for other machines"
    if jax.default_backend() != "cpu":
        return f"the platform is {jax.default_backend()}"
    if _devices > 1:
        return f"the mesh has {_devices} devices"
    return None if library.available() else "there is no native library"


@cache
def _missing() -> str | None:
    try:
        found = version("jax-triton")
    except PackageNotFoundError:
        return "jax-triton is not installed"
    if tuple(int(part) for part in found.split(".")[:3] if part.isdigit()) < JAX_TRITON:
        return f"jax-triton {found} is older than {'.'.join(map(str, JAX_TRITON))}"
    try:
        import jax_triton  # noqa: F401
        from jaxlib import gpu_triton
    except Exception as error:  # a Triton or CUDA that does not fit fails in many ways
        return f"jax-triton cannot be imported ({type(error).__name__}: {error})"
    return None if hasattr(gpu_triton, "TritonKernel") else "JAX's CUDA plugin is not installed"
