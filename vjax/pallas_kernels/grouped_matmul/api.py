"""Rows sorted into blocks of one group each, and the call that layers make."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vjax.pallas_kernels.grouped_matmul import reference

MAX_BLOCK = 128


class Groups(NamedTuple):
    """Where N rows lie in blocks that hold rows of one group only.

    `place[N]`: a row's place among all blocks' rows; `group[n]`: of each block; `block`: rows of a block.
    """

    place: jax.Array
    group: jax.Array
    block: int

    @property
    def rows(self) -> int:
        return self.group.shape[0] * self.block


def group_rows(ids: jax.Array, groups: int) -> Groups:
    """Blocks for rows of groups `ids[N]`, sorted by group, without a sort: XLA cannot put one into a CUDA graph.

    Shapes depend on N and `groups` only. Unused rows and blocks hold whatever is put there.
    """
    total = ids.shape[0]
    block = 1
    while block < MAX_BLOCK and block * groups < total:
        block *= 2
    count = total if block == 1 else total // block + min(groups, total)
    mine = (ids[:, None] == jnp.arange(groups)).astype(jnp.int32)  # [N, groups]
    rank = jnp.sum((jnp.cumsum(mine, axis=0) - 1) * mine, axis=1)  # among the rows of its group
    end = jnp.cumsum(-(-jnp.sum(mine, axis=0) // block))  # blocks up to each group's last, [groups]
    start = jnp.concatenate([jnp.zeros(1, end.dtype), end[:-1]])
    group = jnp.sum(end <= jnp.arange(count)[:, None], axis=1)
    return Groups(start[ids] * block + rank, jnp.minimum(group, groups - 1), block)


def grouped_matmul(x: jax.Array, w: jax.Array, groups: Groups) -> jax.Array:
    """`x[rows, in]`, as `groups` lays rows out, times each block's `w[group, *out, in].T` -> `[rows, *out]`."""
    return reference.grouped_matmul(x, w, groups.group)
