"""Building the native library: without a compiler, with a broken one, and under the sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.goldens.gguf import gguf_checkpoint
from vjax.native import library

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(not library.available(), reason="no C++ compiler")

WITHOUT = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import jax, vjax
from vjax.quant import Dense, GGMLBlocks
model, params = vjax.load(sys.argv[1], packed=None, use_tqdm_on_load=False)
kinds = {type(w) for w in jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, (Dense, GGMLBlocks)))}
print(GGMLBlocks in kinds, Dense in kinds)
"""


def python(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], env={**os.environ, **env}, cwd=ROOT, capture_output=True, text=True, timeout=240
    )  # fmt: skip


def test_without_a_compiler_weights_are_dense_and_one_line_says_so(tmp_path: Path) -> None:
    path = gguf_checkpoint("llama-gqa", tmp_path, "Q4_1")
    done = python("-c", WITHOUT, str(path), PATH="", CXX="", VJAX_CACHE_DIR=str(tmp_path))
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["False True"], done.stderr
    assert len(lines) == 2
    assert "no C++ compiler found" in lines[0]


def test_a_compiler_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\necho 'internal error: out of patience' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(library.BuildError, match=r"broken-c\+\+ failed: internal error: out of patience"):
        library.build(tmp_path)
    assert list(tmp_path.glob("*.so")) == []


@needs_compiler
def test_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "small.cc"
    source.write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(library, "SOURCES", [source])
    path = library.build(tmp_path / "new", flags=("-O0",))
    before = path.stat().st_mtime_ns
    assert library.build(tmp_path / "new", flags=("-O0",)) == path
    assert path.stat().st_mtime_ns == before
    assert list(path.parent.iterdir()) == [path]


@needs_compiler
@pytest.mark.parametrize(
    ("x", "w", "out", "kind", "message"),
    [
        ((2, 32), (5, 20), (2, 5), "Q9_9", "unknown GGUF type Q9_9"),
        ((2, 32), (5, 18), (2, 5), "Q4_1", "does not hold 32 weights"),
        ((2, 48), (5, 30), (2, 5), "Q4_1", "does not hold 48 weights"),
        ((2, 64), (5, 20), (2, 5), "Q4_1", "does not hold 64 weights"),
        ((2, 32), (5, 20), (2, 6), "Q4_1", "the result must be"),
        ((2, 32), (5, 20), (3, 5), "Q4_1", "the result must be"),
        ((2, 32), (20,), (2, 5), "Q4_1", r"blocks must be \[out, row_bytes\]"),
        ((2, 32), (2, 5, 20), (2, 5), "Q4_1", "must not be batched"),
        ((2, 32), (5, 20), (10,), "Q4_1", "differ in rank"),
    ],
)
def test_wrong_shapes_are_errors(x: tuple, w: tuple, out: tuple, kind: str, message: str) -> None:
    call = jax.ffi.ffi_call("vjax_ggml_matmul", jax.ShapeDtypeStruct(out, jnp.float32))
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(call(jnp.zeros(x), jnp.zeros(w, jnp.uint8), kind=kind))


@needs_compiler
@pytest.mark.parametrize("out", [(4, 32), (5, 64), (5,)])
def test_wrong_shapes_to_dequantize_are_errors(out: tuple) -> None:
    call = jax.ffi.ffi_call("vjax_ggml_dequantize", jax.ShapeDtypeStruct(out, jnp.float32))
    with pytest.raises(Exception, match=r"the result must|does not hold"):
        jax.block_until_ready(call(jnp.zeros((5, 20), jnp.uint8), kind="Q4_1"))


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0", "-g", "-w", "-std=c++17", "-pthread")


@pytest.mark.once
@needs_compiler
@pytest.mark.parametrize(
    "machine",
    ["native", pytest.param("avx2", marks=pytest.mark.slow), pytest.param("plain", marks=pytest.mark.slow)],
)
def test_sanitizers_find_nothing(machine: str, tmp_path: Path) -> None:
    """`plain`: without this machine's vector instructions, as on a CPU that the kernels do not know."""
    compiler, program = library.find_compiler(), tmp_path / "sanitized"
    flags = {"native": library.machine_flags(compiler), "avx2": ("-mavx2", "-mfma"), "plain": ()}[machine]
    if machine == "avx2" and "avx2" not in _cpu():
        pytest.skip("this CPU has no AVX2")
    include = ("-isystem", jax.ffi.include_dir(), "-I", str(library.HERE))
    source = Path(__file__).with_name("sanitized.cc")
    built = subprocess.run(
        [compiler, *SANITIZERS, *flags, *include, str(source), "-o", str(program)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    if built.returncode and "san" in built.stderr and "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizer runtimes")
    assert built.returncode == 0, built.stderr[-2000:]
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr[-3000:]


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.is_file() else ""
