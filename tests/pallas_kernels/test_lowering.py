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
from vjax.pallas_kernels.paged_attention import paged_attention

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

def add(x, update, weight):
    return add_rms_norm(x, update, weight, 1e-5, 1.0)

args = array(3, 4096, dtype=jnp.bfloat16), array(3, 4096, dtype=jnp.bfloat16), array(4096, dtype=jnp.float32)
with dispatch.lowering_for("cuda"):
    text = jax.export.export(jax.jit(add), platforms=["cuda"], disabled_checks=allowed)(*args).mlir_module()
assert text.count("@triton_kernel_call_ffi") == 1, text
"""


def test_kernels_lower_without_a_gpu() -> None:
    if dispatch._missing():
        pytest.skip(dispatch._missing())
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
