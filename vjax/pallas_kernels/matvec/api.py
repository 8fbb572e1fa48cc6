"""When the kernel takes a product, and the products. The specification is what XLA makes of `Dense.matmul`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vjax.pallas_kernels import dispatch

DTYPES = (jnp.bfloat16, jnp.float16)
# Small products are faster as XLA's: a Qwen3-0.6B step took 1.65 ms with the kernel for all of them, 1.57 for none, and
# 1.52 for the head alone (H200). With Llama-8B it is all of them: 4.15 ms instead of 4.70.
MIN_BYTES = 16e6


def runs(x: jax.Array, w: jax.Array) -> bool:
    """Whether the kernel multiplies `x` by `w[*out, in]`: one row `x[1, in]`, both in one 16-bit type, in a step, the
    weight a large one.

    Outside of steps products must be differentiable and batchable; in float32 XLA's are exact.
    """
    fits = x.shape[:-1] == (1,) and x.dtype == w.dtype and w.dtype in DTYPES and w.size * 2 >= MIN_BYTES
    return fits and dispatch.in_step() and dispatch.pick("matvec") == "triton"


def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """`x[1, in] @ w[*out, in].T -> [1, *out]` in `x`'s dtype, accumulated in float32."""
    # Imported here: Triton is not on every machine, and slow to import.
    from vjax.pallas_kernels.matvec import triton_kernel

    return triton_kernel.matmul(x, w.reshape(-1, w.shape[-1])).reshape(1, *w.shape[:-1])


def swiglu(x: jax.Array, w: jax.Array) -> jax.Array:
    """`silu(x[1, in] @ w[0].T) * (x @ w[1].T) -> [1, F]` for `w[2, F, in]` (Shazeer, 2020), as `matmul` computes it."""
    from vjax.pallas_kernels.matvec import triton_kernel

    return triton_kernel.swiglu(x, w)
