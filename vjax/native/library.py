"""The native library: compiled on first use, for this machine, and kept in vjax's cache folder.

Building lazily keeps `pip install` free of compilers and of a second JAX in an isolated build, and lets the compiler
aim at the very CPU that runs the code. The file's name carries a hash of everything it depends on: the sources, JAX's
FFI headers (by version) and what the compiler says about the machine. Without a C++ compiler there is no library, and
GGUF weights are used as dense float32.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import jax
import jaxlib

from vjax.paths import cache_dir

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*.cc"))
TARGETS = ("vjax_ggml_matmul", "vjax_ggml_matmul_rounded", "vjax_ggml_dequantize", "vjax_paged_decode")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")
TIMEOUT = 300  # seconds for one compiler run
_lock = threading.Lock()


class BuildError(Exception):
    """Why there is no library, in one line."""


def available() -> bool:
    """Whether the library's targets can be called; builds and registers it the first time."""
    with _lock:
        return _register()


@functools.cache
def _register() -> bool:
    try:
        library = ctypes.CDLL(str(build(cache_dir("native"))))
        targets = {name: getattr(library, name) for name in TARGETS}
    except (BuildError, OSError, AttributeError) as error:
        log.warning("no native library, so GGUF weights take more memory and time on CPU: %s", error)
        return False
    for name, target in targets.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(target), platform="cpu")
    return True


def build(folder: Path, flags: tuple[str, ...] = ()) -> Path:
    """Compile the library into `folder` unless it is there, with further `flags`; returns its path.

    Raises `BuildError`. Several processes may build at once: the last one's file replaces the others' whole.
    """
    compiler = find_compiler()
    flags = (*FLAGS, *machine_flags(compiler), *flags)
    path = folder / f"vjax-{_key(compiler, flags)}.so"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch, path.name)
            include = ("-isystem", jax.ffi.include_dir())
            log.info("compiling the native library for this machine")
            _run([compiler, *flags, *include, *map(str, SOURCES), "-o", str(made)])
            os.replace(made, path)
    except OSError as error:
        raise BuildError(f"{folder}: {error.strerror or error}") from error
    return path


def find_compiler() -> str:
    """`$CXX`, or the first C++ compiler on the path."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise BuildError("no C++ compiler found (install g++, or set CXX)")


@functools.cache
def machine_flags(compiler: str) -> tuple[str, ...]:
    """Flags that aim at this CPU, as far as the compiler takes them."""
    for flags in (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",)):
        try:
            _run([compiler, *flags, "-E", "-x", "c++", os.devnull])
        except BuildError:
            continue
        return flags
    return ()


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    # The predefined macros name the compiler, its version and every instruction set that it may use.
    macros = _run([compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull])
    texts = [path.read_bytes() for path in (*SOURCES, *sorted(HERE.glob("*.h")))]
    parts = (*texts, jaxlib.__version__.encode(), macros.encode(), repr((compiler, flags)).encode())
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:20]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {lines[0] if lines else f'exit status {done.returncode}'}")
    return done.stdout
