"""What the kernels for packed codes share: their arguments, and how scales are read. Importing it imports Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from vjax.pallas_kernels.scaled_matmul.reference import Codes


def arguments(x: jax.Array, w: Codes) -> tuple[jax.Array, ...]:
    """`x`, then a weight's arrays; the scales again for those that it lacks."""
    zero = w.scale if w.zero is None else w.zero
    return x, w.data, w.scale, zero, w.scale if w.tensor_scale is None else w.tensor_scale


def constants(w: Codes) -> dict[str, Any]:
    """Kinds of codes and of scales, and whether there are zero points and a scale of the tensor."""
    code = {jnp.dtype(jnp.float8_e4m3fn): "e4m3", jnp.dtype(jnp.float8_e5m2): "e5m2"}.get(w.data.dtype, w.code)
    scale = {jnp.dtype(jnp.uint8): "e8m0", jnp.dtype(jnp.float8_e4m3fn): "e4m3"}.get(w.scale.dtype, "float")
    return dict(CODE=code, SCALE=scale, ZERO=w.zero is not None, TENSOR_SCALE=w.tensor_scale is not None)


@triton.jit
def scale_at(scale, index, SCALE: tl.constexpr):
    """Scales in float32."""
    if SCALE == "e8m0":
        return (tl.load(scale + index).to(tl.int32) << 23).to(tl.float32, bitcast=True)
    elif SCALE == "e4m3":
        bits = (tl.load(scale.to(tl.pointer_type(tl.int8)) + index).to(tl.int32) << 20) & -2014314496  # 0x87F00000
        return bits.to(tl.float32, bitcast=True) * 2.0**120
    else:
        return tl.load(scale + index).to(tl.float32)
