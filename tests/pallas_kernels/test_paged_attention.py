"""Every implementation of paged attention against dense attention, over awkward shapes and poisoned padding."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from vjax.pallas_kernels.paged_attention import reference

PAGE = 4


@dataclass
class Problem:
    """Rows of given (cached, new) lengths over a pool whose unused entries are huge."""

    q: np.ndarray  # [T, K, G, D]
    k: list[np.ndarray]  # per row [n, K, D]
    v: list[np.ndarray]
    k_pool: np.ndarray
    v_pool: np.ndarray
    table: np.ndarray
    kv_len: np.ndarray
    query_start: np.ndarray
    positions: np.ndarray


def problem(lengths: list[tuple[int, int]], heads: tuple[int, int] = (2, 3), dim: int = 8, pad: int = 3) -> Problem:
    rng = np.random.default_rng(sum(a * 31 + b for a, b in lengths))
    kv, groups = heads
    width = max(-(-(a + b) // PAGE) for a, b in lengths) + 1
    pages = rng.permutation(np.arange(1, 1 + width * len(lengths)))
    k_pool = np.full((pages.size + 1, PAGE, kv, dim), 1e4, np.float32)  # stale values must never count
    v_pool = np.full_like(k_pool, 1e4)
    table = np.zeros((len(lengths) + 2, width), np.int32)
    ks, vs, positions = [], [], []
    for row, (cached, new) in enumerate(lengths):
        n = cached + new
        table[row] = pages[row * width : (row + 1) * width]
        k, v = rng.normal(size=(2, n, kv, dim)).astype(np.float32)
        for i in range(n):
            k_pool[table[row, i // PAGE], i % PAGE], v_pool[table[row, i // PAGE], i % PAGE] = k[i], v[i]
        ks.append(k)
        vs.append(v)
        positions += list(range(cached, n))
    total = sum(new for _, new in lengths)
    q = rng.normal(size=(total + pad, kv, groups, dim)).astype(np.float32)
    starts = np.cumsum([0, *(new for _, new in lengths)])
    return Problem(
        q, ks, vs, k_pool, v_pool, table, np.array([a + b for a, b in lengths] + [0, 0], np.int32),
        np.array([*starts, starts[-1], starts[-1]], np.int32), np.array(positions + [0] * pad, np.int32),
    )  # fmt: skip


def dense(
    p: Problem, scale: float, window: int | None, softcap: float | None, sinks: np.ndarray | None = None
) -> np.ndarray:
    out = np.zeros_like(p.q)
    for row, (k, v) in enumerate(zip(p.k, p.v, strict=True)):
        for t in range(p.query_start[row], p.query_start[row + 1]):
            last = p.positions[t] + 1
            first = 0 if window is None else max(0, last - window)
            scores = np.einsum("kgd,nkd->kgn", p.q[t], k[first:last]) * scale
            if softcap:
                scores = np.tanh(scores / softcap) * softcap
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            total = weights.sum(-1)
            if sinks is not None:
                total = total + np.exp(sinks - scores.max(-1))
            out[t] = np.einsum("kgn,nkd->kgd", weights / total[..., None], v[first:last])
    return out


CASES = {
    "one": [(0, 1)],
    "page-edges": [(3, 1), (4, 1), (0, 4), (4, 4), (0, 5)],
    "tile-edges": [(0, 31), (0, 32), (0, 33), (7, 64)],
    "mixed": [(9, 1), (0, 1), (300, 1), (255, 2), (0, 70)],
}
OPTIONS = [dict(window=None, softcap=None), dict(window=5, softcap=None), dict(window=None, softcap=2.0)]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "softcap"])
@pytest.mark.parametrize("name", CASES)
def test_ragged_equals_dense(name: str, options: dict) -> None:
    p = problem(CASES[name])
    got = reference.ragged_attention(
        jnp.asarray(p.q), jnp.asarray(p.k_pool), jnp.asarray(p.v_pool), jnp.asarray(p.table), jnp.asarray(p.kv_len),
        jnp.asarray(p.query_start), jnp.asarray(p.positions), scale=0.3, **options,
    )  # fmt: skip
    np.testing.assert_allclose(got, dense(p, 0.3, **options), atol=2e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "softcap"])
@pytest.mark.parametrize("heads", [(2, 3), (1, 1), (4, 1), (1, 8)])
def test_decode_equals_dense(heads: tuple[int, int], options: dict) -> None:
    p = problem([(9, 1), (0, 1), (300, 1), (255, 1), (256, 1)], heads=heads, pad=2)
    got = reference.decode_attention(
        jnp.asarray(p.q), jnp.asarray(p.k_pool), jnp.asarray(p.v_pool), jnp.asarray(p.table), jnp.asarray(p.kv_len),
        scale=0.3, **options,
    )  # fmt: skip
    np.testing.assert_allclose(got[:5], dense(p, 0.3, **options)[:5], atol=2e-5)
    assert np.isfinite(np.asarray(got)).all()  # unused rows too: a NaN there would spread through the batch


@pytest.mark.parametrize("decode", [False, True])
def test_values_that_are_the_first_channels_of_keys(decode: bool) -> None:
    p = problem([(9, 1), (0, 1), (300, 1), (255, 1)] if decode else CASES["mixed"], heads=(1, 5), dim=12, pad=2)
    p.v = p.k
    args = [jnp.asarray(p.q), jnp.asarray(p.k_pool[:, :, 0]), None, jnp.asarray(p.table), jnp.asarray(p.kv_len)]
    options = dict(scale=0.3, window=None, softcap=None)
    if decode:
        got = reference.decode_attention(*args, **options, value_dim=7)[:4]
    else:
        got = reference.ragged_attention(
            *args, jnp.asarray(p.query_start), jnp.asarray(p.positions), **options, value_dim=7
        )
    np.testing.assert_allclose(got, dense(p, **options)[: len(got), ..., :7], atol=2e-5)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("decode", [False, True])
def test_sinks(decode: bool, window: int | None) -> None:
    p = problem([(9, 1), (0, 1), (300, 1), (255, 1)] if decode else CASES["mixed"], pad=2)
    sinks = np.random.default_rng(0).normal(size=(2, 3)) * 3
    args = [jnp.asarray(x) for x in (p.q, p.k_pool, p.v_pool, p.table, p.kv_len, p.query_start, p.positions)]
    attend = reference.decode_attention if decode else reference.ragged_attention
    got = attend(*args[: 5 if decode else 7], scale=0.3, window=window, sinks=jnp.asarray(sinks))
    rows = p.query_start[-1]
    np.testing.assert_allclose(got[:rows], dense(p, 0.3, window, None, sinks)[:rows], atol=2e-5)
    assert np.isfinite(np.asarray(got)).all()
