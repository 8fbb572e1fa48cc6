"""Steps with kernels lower for CUDA on a machine without a GPU, as an export does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vjax.pallas_kernels import dispatch

# In a process of its own: Triton's interpreter, which other tests turn on, excludes its compiler.
PROGRAM = """
import jax, jax.numpy as jnp
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.add_rms_norm import add_rms_norm
from vjax.layers.moe import moe
from vjax.layers.routing import Routing
from vjax.pallas_kernels.paged_attention import Preparation, append_and_attend, paged_attention
from vjax.pallas_kernels import scaled_matmul
from vjax.pallas_kernels.grouped_matmul import group_rows
from vjax.pallas_kernels.scaled_matmul.api import Flat
from vjax.quant import Dense

def array(*shape, dtype=jnp.int32):
    return jax.ShapeDtypeStruct(shape, dtype)

rows, heads, groups, dim, width, pages = 8, 2, 4, 128, 16, 100
allowed = [jax.export.DisabledSafetyCheck.custom_call("triton_kernel_call_ffi")]
for decode, tokens, kernels in ((True, rows, 2), (False, 64, 1)):
    for dtype in (jnp.bfloat16, jnp.float32):
        def attend(q, k, v, table, length, start, position, sinks=None):
            return paged_attention(
                q, k, v, table, length, start, position, decode=decode, first_page=pages, scale=0.1, window=40,
                sinks=sinks,
            )

        pool = array(2 * pages, 16, heads, dim, dtype=dtype)
        args = (array(tokens, heads, groups, dim, dtype=dtype), pool, pool, array(rows, width), array(rows),
                array(rows + 1), array(tokens))
        for more in ((), (array(heads, groups, dtype=jnp.float32),)):
            with dispatch.lowering_for("cuda"):
                exported = jax.export.export(jax.jit(attend), platforms=["cuda"], disabled_checks=allowed)(*args, *more)
            text = exported.mlir_module()
            assert dispatch.chosen() == {"paged_attention": "triton"}, dispatch.chosen()
            assert text.count("@triton_kernel_call_ffi") == kernels, text.count("@triton_kernel_call_ffi")

def launches(fn, *args):
    with dispatch.lowering_for("cuda"), dispatch.tracing_a_step():
        exported = jax.export.export(jax.jit(fn), platforms=["cuda"], disabled_checks=allowed)(*args)
    return exported.mlir_module().count("@triton_kernel_call_ffi")

bf16 = lambda *shape: array(*shape, dtype=jnp.bfloat16)
assert launches(lambda x, y, w: add_rms_norm(x, y, w, 1e-5, 1.0), bf16(3, 4096), bf16(3, 4096), bf16(4096)) == 1

def append(qkv, k, v, table, length, cos, sin, q_norm, k_norm):
    do = Preparation(cos, sin, False, q_norm, k_norm, 1e-6)
    return append_and_attend(qkv, k, v, table, length, do, first_page=pages, scale=0.1)

pool, angles = bf16(2 * pages, 16, heads, dim), array(rows, dim // 2, dtype=jnp.float32)
args = (array(rows, width), array(rows), angles, angles, bf16(dim), bf16(dim))
assert launches(append, bf16(rows, heads, groups + 2, dim), pool, pool, *args) == 1

def latent(q, pool, table, length, start, position, decode):
    return paged_attention(
        q, pool, None, table, length, start, position, decode=decode, value_dim=512, first_page=pages, scale=0.1
    )

for tokens, decode, kernels in ((rows, True, 2), (64, False, 2), (1024, False, 1)):
    args = bf16(tokens, 1, 128, 576), bf16(2 * pages, 16, 576), array(rows, width), array(rows), array(rows + 1)
    assert launches(lambda *given: latent(*given, decode), *args, array(tokens)) == kernels

def mixture(router, gate_up, down, x):
    w = {"router": Dense(router), "gate_up": Dense(gate_up), "down": Dense(down)}
    return moe(w, x, "silu", Routing(8, renormalise=True))

for tokens in (1, 64, 4096):
    weights = bf16(128, 2048), bf16(128, 2, 768, 2048), bf16(128, 2048, 768)
    assert launches(mixture, *weights, bf16(tokens, 2048)) == 4

u8 = lambda *shape: array(*shape, dtype=jnp.uint8)
e4m3 = lambda *shape: array(*shape, dtype=jnp.float8_e4m3fn)
for code, data, scale in (
    ("int8", array(512, 256, dtype=jnp.int8), array(512, 1, dtype=jnp.float32)), ("fp8", e4m3(512, 256), bf16(4, 2)),
    ("int4", u8(512, 128), bf16(512, 2)), ("fp4", u8(512, 128), u8(512, 8)), ("fp4", u8(512, 128), e4m3(512, 16)),
):
    for rows in (1, 3, 64, 200):
        def multiply(x, data, scale):
            w = Flat(data, scale, None, None, code)
            assert scaled_matmul.runs(x, w)
            return scaled_matmul.matmul(x, w)

        assert launches(multiply, bf16(rows, 256), data, scale) == 1

def narrow_mixture(ids, x, data, scale):
    w, groups = Flat(data, scale, None, None, "fp4"), group_rows(ids, 16)
    assert scaled_matmul.grouped_runs(x, w, groups)
    return scaled_matmul.grouped_swiglu(x, w, groups)

for tokens in (1, 1024):
    assert launches(narrow_mixture, array(tokens, 4), bf16(tokens, 256), u8(16, 2, 128, 128), u8(16, 2, 128, 8)) == 2
"""


def test_kernels_lower_without_a_gpu() -> None:
    if dispatch._missing():
        pytest.skip(dispatch._missing())
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
