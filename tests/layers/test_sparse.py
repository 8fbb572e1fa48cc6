"""Choosing keys and attending to them through pages, against numpy, over tiles of queries and blocks of keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pallas_kernels.test_paged_attention import Problem, problem
from vjax.layers import sparse
from vjax.layers.attention import AttentionSpec
from vjax.layers.paging import KVPool, PagedStep
from vjax.layers.sparse import IndexerSpec

TOPK, RANK, LAYER = 9, 4, 1
ROWS = {"decode": [(300, 1), (0, 1), (3, 1), (512, 1)], "ragged": [(0, 70), (300, 1), (255, 40), (3, 2), (600, 33)]}


def paged(p: Problem, decode: bool) -> tuple[KVPool, PagedStep]:
    """The problem's keys as the second of two layers, and its rows as a step."""
    pages = p.k_pool.shape[0]
    pool = np.concatenate([np.full_like(p.k_pool, 1e4), p.k_pool])[:, :, 0]
    counts = np.diff(p.query_start)
    row = np.repeat(np.arange(len(counts)), counts)
    row = np.pad(row, (0, p.q.shape[0] - row.size))
    arrays = (row, (row,), p.query_start, p.kv_len, (p.table,), np.zeros(len(counts)))
    return KVPool(jnp.asarray(pool), None, pages), PagedStep(*jax.tree.map(jnp.asarray, arrays), decode=decode)


def best(p: Problem, weights: np.ndarray) -> list[set[int]]:
    found = []
    for row, k in enumerate(p.k):
        for t in range(p.query_start[row], p.query_start[row + 1]):
            keys = k[: p.positions[t] + 1, 0]
            scores = np.maximum(p.q[t, 0] @ keys.T, 0).T @ weights[t]
            found.append(set(np.argsort(-scores, kind="stable")[:TOPK].tolist()))
    return found


@pytest.mark.parametrize("name", ROWS)
def test_the_best_keys_are_chosen_and_attended_to(name: str) -> None:
    decode = name == "decode"
    p = problem(ROWS[name], heads=(1, 12), dim=8, pad=2)
    used = p.query_start[-1]
    weights = np.random.default_rng(0).normal(size=(*p.q.shape[:1], 12)).astype(np.float32)
    pool, step = paged(p, decode)
    q, positions = jnp.asarray(p.q[:, 0]), jnp.asarray(p.positions)
    chosen = sparse._choose_paged(q, jnp.asarray(weights), pool, step, positions, IndexerSpec(TOPK, 0, LAYER))
    got = [set(row[row >= 0].tolist()) for row in np.asarray(chosen)[:used]]
    assert got == best(p, weights)

    out = sparse._attend_selected(q, chosen, pool, step, AttentionSpec(0.3, pool_layer=LAYER), RANK)
    want = np.zeros((used, 12, RANK))
    for row, k in enumerate(p.k):
        for t in range(p.query_start[row], p.query_start[row + 1]):
            keys = k[sorted(got[t]), 0]
            scores = p.q[t, 0] @ keys.T * 0.3
            each = np.exp(scores - scores.max(-1, keepdims=True))
            want[t] = each / each.sum(-1, keepdims=True) @ keys[:, :RANK]
    np.testing.assert_allclose(out[:used], want, atol=2e-5)
    assert np.isfinite(np.asarray(out)).all()
