"""`Dense`: an unquantised weight. The other weight types of this package have the same four members."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from vjax.pallas_kernels import dispatch, matvec
from vjax.pallas_kernels.grouped_matmul import Groups, grouped_matmul


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dense:
    """`data[*out, in]` in the compute dtype."""

    data: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> jnp.dtype:
        return self.data.dtype

    def dequantize(self) -> jax.Array:
        """The weight in float32, `[*out, in]`: the specification that every kernel is tested against."""
        return self.data.astype(jnp.float32)

    def matmul(self, x: jax.Array) -> jax.Array:
        """`x[..., in]` -> `[..., *out]` in `x`'s dtype, accumulated in float32 or better."""
        if matvec.runs(x, self.data):
            return matvec.matmul(x, self.data)
        w = self.data.astype(x.dtype)
        if dispatch.platform() == "cpu":
            # XLA on CPU copies a weight of more than two axes before it multiplies. Elsewhere the axes stay, so that a
            # weight which is sharded along one of them multiplies where it lies.
            w = w.reshape(-1, w.shape[-1])
        out = lax.dot_general(x, w, (((x.ndim - 1,), (w.ndim - 1,)), ((), ())), precision=_precision(x.dtype))
        return out.reshape(*x.shape[:-1], *self.data.shape[:-1])

    def grouped_matmul(self, x: jax.Array, groups: Groups, *, lay_out: bool = False) -> jax.Array:
        """`data[E, *out, in]`, one matrix a group."""
        return grouped_matmul(x, self.data, groups, lay_out=lay_out)

    def rows(self, ids: jax.Array) -> jax.Array:
        """`data[ids]`: embedding rows, in the compute dtype. Ids out of range are clamped."""
        return self.data.at[ids].get(mode="clip")


def _precision(dtype: jnp.dtype) -> lax.Precision | None:
    # On GPUs a float32 product would otherwise run in TF32, with 10 bits of mantissa.
    return lax.Precision.HIGHEST if dtype == jnp.float32 else None
