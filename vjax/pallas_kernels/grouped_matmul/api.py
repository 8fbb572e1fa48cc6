"""Rows sorted into blocks of one group each, and the calls that layers make."""

from __future__ import annotations

from typing import NamedTuple

import jax

from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.grouped_matmul import reference

MAX_BLOCK = 128
MIN_KERNEL_BLOCK = 16  # rows of the tensor cores' smallest tile


class Groups(NamedTuple):
    """Where N rows lie in blocks that hold rows of one group only.

    `place[N]`: a row's place among all blocks' rows; `token[rows]`: which of the T tokens, each of which has N / T
    rows, lies at a place; `group[n]`: of each block, or their number for an unused block; `block`: rows of a block;
    `kernel`: whether kernels multiply.
    """

    place: jax.Array
    token: jax.Array
    group: jax.Array
    block: int
    kernel: bool

    @property
    def rows(self) -> int:
        return self.group.shape[0] * self.block


def group_rows(ids: jax.Array, groups: int) -> Groups:
    """Blocks for the rows of tokens that go to groups `ids[T, k]`, sorted by group, without a sort: XLA cannot put one
    into a CUDA graph. Shapes depend on T, k and `groups` only. Unused rows of a block belong to any token."""
    total = ids.size
    kernel = dispatch.in_step() and dispatch.pick("grouped_matmul") == "triton"
    block = MIN_KERNEL_BLOCK if kernel else 1
    while block < MAX_BLOCK and block * groups < total:
        block *= 2
    count = total if block == 1 else total // block + min(groups, total)
    if kernel:
        # Imported here: Triton is not on every machine, and slow to import.
        from vjax.pallas_kernels.grouped_matmul import triton_groups

        return Groups(*triton_groups.group_rows(ids, groups, block, count), block, True)
    return Groups(*reference.group_rows(ids, groups, block, count), block, False)


def spread(x: jax.Array, groups: Groups) -> jax.Array:
    """`x[T, in]` as `groups` lays rows out: `[rows, in]`."""
    return x[groups.token]


def grouped_matmul(x: jax.Array, w: jax.Array, groups: Groups, *, lay_out: bool = False) -> jax.Array:
    """`x[rows, in]`, as `groups` lays rows out, or to be laid out from `x[T, in]`, times each block's
    `w[group, *out, in].T` -> `[rows, *out]` in `x`'s dtype."""
    if groups.kernel:
        from vjax.pallas_kernels.grouped_matmul import triton_kernel

        flat = w.reshape(w.shape[0], -1, w.shape[-1])
        return triton_kernel.grouped_matmul(x, flat, groups, lay_out).reshape(groups.rows, *w.shape[1:-1])
    return reference.grouped_matmul(spread(x, groups) if lay_out else x, w, groups.group)


def grouped_swiglu(x: jax.Array, w: jax.Array, groups: Groups) -> jax.Array:
    """`silu(x @ w[group, 0].T) * (x @ w[group, 1].T) -> [rows, F]` (Shazeer, 2020) for `x[T, in]`, laid out by
    `groups`, and `w[groups, 2, F, in]`."""
    if groups.kernel:
        from vjax.pallas_kernels.grouped_matmul import triton_kernel

        return triton_kernel.grouped_swiglu(x, w, groups)
    both = grouped_matmul(x, w, groups, lay_out=True)
    return jax.nn.silu(both[:, 0]) * both[:, 1]
