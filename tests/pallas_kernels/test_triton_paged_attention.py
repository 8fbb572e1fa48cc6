"""The Triton kernels' logic against dense attention, in Triton's interpreter, which needs torch.

`benches/paged_attention.py --check` does the same with the compiled kernels on a GPU.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pallas_kernels.interpreter import interpret
from tests.pallas_kernels.test_paged_attention import CASES, Problem, dense, problem
from vjax.pallas_kernels.paged_attention import triton_decode, triton_ragged

OPTIONS = {
    "plain": dict(window=None, softcap=None),
    "window": dict(window=5, softcap=None),
    "softcap": dict(window=None, softcap=2.0),
    "both": dict(window=40, softcap=2.0),
}
DECODE = [(9, 1), (0, 1), (300, 1), (255, 1), (256, 1)]
LAYER = 3  # of a pool of as many layers and one more


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_decode, "call", interpret)
    monkeypatch.setattr(triton_ragged, "call", interpret)


def poisoned(p: Problem) -> dict[str, Any]:
    """The problem's arrays as layer `LAYER` of a larger pool; whatever must not be read is NaN."""

    def stacked(pool: np.ndarray) -> jax.Array:
        out = np.full((pool.shape[0] * (LAYER + 1), *pool.shape[1:]), np.nan, np.float32)
        out[LAYER * pool.shape[0] :] = np.where(pool == 1e4, np.nan, pool)
        return jnp.asarray(out)

    q = p.q.copy()
    q[p.query_start[-1] :] = np.nan
    return dict(q=jnp.asarray(q), k_pool=stacked(p.k_pool), v_pool=stacked(p.v_pool), page_table=jnp.asarray(p.table),
                kv_len=jnp.asarray(p.kv_len), first_page=LAYER * p.k_pool.shape[0])  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("heads", "dim"), [((2, 3), 16), ((1, 1), 24), ((4, 1), 8), ((1, 17), 16)])
def test_decode_equals_dense(heads: tuple[int, int], dim: int, options: dict) -> None:
    p = problem(DECODE, heads=heads, dim=dim, pad=2)
    got = triton_decode.decode_attention(**poisoned(p), scale=0.3, **options)
    np.testing.assert_allclose(got, dense(p, 0.3, **options), atol=2e-5)  # unused rows are zero


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", CASES)
def test_ragged_equals_dense(name: str, options: dict) -> None:
    p = problem(CASES[name], heads=(2, 3), dim=16)
    got = triton_ragged.ragged_attention(
        **poisoned(p), query_start=jnp.asarray(p.query_start), positions=jnp.asarray(p.positions), scale=0.3, **options
    )
    np.testing.assert_allclose(got, dense(p, 0.3, **options), atol=2e-5)  # padding is zero


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("decode", [False, True])
def test_sinks(decode: bool, window: int | None) -> None:
    p = problem(DECODE if decode else CASES["mixed"], heads=(3, 5), dim=6, pad=2)
    options = dict(scale=0.3, window=window, softcap=None, sinks=np.random.default_rng(0).normal(size=(3, 5)) * 3)
    given = {**options, "sinks": jnp.asarray(options["sinks"])}
    if decode:
        got = triton_decode.decode_attention(**poisoned(p), **given)
    else:
        got = triton_ragged.ragged_attention(
            **poisoned(p), query_start=jnp.asarray(p.query_start), positions=jnp.asarray(p.positions), **given
        )
    np.testing.assert_allclose(got, dense(p, **options), atol=2e-5)


@pytest.mark.parametrize("heads", [(1, 1), (1, 40), (3, 5)])
def test_ragged_over_groups_and_dims(heads: tuple[int, int]) -> None:
    p = problem([(5, 40), (0, 1), (70, 3)], heads=heads, dim=24)
    got = triton_ragged.ragged_attention(
        **poisoned(p), query_start=jnp.asarray(p.query_start), positions=jnp.asarray(p.positions), scale=0.3
    )
    np.testing.assert_allclose(got, dense(p, 0.3, None, None), atol=2e-5)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("lengths", [[0], [5000], [1, 4096, 0, 17], [128] * 64, [3000, *[1] * 40]])
def test_units_cover_each_row_once(lengths: list[int], window: int | None) -> None:
    config = triton_decode.Config()
    units, first = triton_decode.plan_units(jnp.asarray(lengths, jnp.int32), max(lengths) + 9, 8, window, config)
    units, first = np.asarray(units), np.asarray(first)
    assert first[-1] <= len(units)
    for row, length in enumerate(lengths):
        keys = [key for _, a, b in units[first[row] : first[row + 1]] for key in range(a, b)]
        assert keys == list(range(max(length - window, 0) if window else 0, length))
        assert (units[first[row] : first[row + 1], 0] == row).all()
    assert (units[first[-1] :, 2] == 0).all()


def test_tiles_cover_each_token_once() -> None:
    tiles = np.asarray(triton_ragged.plan_tiles(jnp.asarray([0, 1, 1, 40, 41], jnp.int32), 50, 8))
    tokens = sorted(token for _, a, b in tiles for token in range(a, b))
    assert tokens == list(range(50))
    assert all(row == np.searchsorted([1, 1, 40, 41], a, side="right") for row, a, b in tiles if b > a)
