"""Mixtures of experts, part by part."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vjax.errors import ModelError
from vjax.layers.moe import experts
from vjax.layers.routing import Routing, route
from vjax.pallas_kernels.grouped_matmul import group_rows
from vjax.quant import Dense, grouped_matmul


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 8), min_size=1, max_size=200))
def test_every_row_lies_in_a_block_of_its_group(groups: int, ids: list[int]) -> None:
    ids = [i % groups for i in ids]
    found = group_rows(jnp.asarray(ids)[:, None], groups)
    places = found.place.tolist()
    assert len(set(places)) == len(ids)
    assert max(places) < found.rows
    assert [int(found.group[place // found.block]) for place in places] == ids
    assert [int(found.token[place]) for place in places] == list(range(len(ids)))


@pytest.mark.parametrize("rows", [1, 6, 70, 600])
def test_grouped_product_is_each_rows_own(rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((rows, 12), np.float32), rng.standard_normal((5, 3, 7, 12), np.float32)
    ids = rng.integers(0, 5, rows)
    groups = group_rows(jnp.asarray(ids)[:, None], 5)
    laid = jnp.full((groups.rows, 12), jnp.nan).at[groups.place].set(x)  # what is unused must not matter
    out = grouped_matmul(laid, Dense(jnp.asarray(w)), groups)[groups.place]
    np.testing.assert_allclose(out, np.einsum("ni,nabi->nab", x, w[ids]), atol=1e-5)


def test_experts_are_a_weighted_sum_and_have_gradients() -> None:
    rng = np.random.default_rng(0)
    gate_up, down = rng.standard_normal((4, 2, 6, 8), np.float32), rng.standard_normal((4, 8, 6), np.float32)
    x, ids = rng.standard_normal((9, 8), np.float32), rng.integers(0, 4, (9, 2))
    weights = rng.random((9, 2), np.float32)
    w = {"gate_up": Dense(jnp.asarray(gate_up)), "down": Dense(jnp.asarray(down))}

    def one(x: jax.Array, e: int) -> jax.Array:
        return down[e] @ (jax.nn.silu(gate_up[e, 0] @ x) * (gate_up[e, 1] @ x))

    want = np.stack([sum(weights[t, j] * one(x[t], ids[t, j]) for j in range(2)) for t in range(9)])
    np.testing.assert_allclose(experts(w, x, jnp.asarray(ids), jnp.asarray(weights), "silu"), want, atol=1e-4)
    slope = jax.grad(lambda x: experts(w, x, jnp.asarray(ids), jnp.asarray(weights), "silu").sum())(x)
    assert jnp.isfinite(slope).all()
    assert jnp.abs(slope).max() > 0


def test_groups_limit_the_choice_and_the_bias_sways_it() -> None:
    logits = jnp.asarray([[9.0, 0.0, 0.0, 0.0, 5.0, 5.0, 1.0, 1.0]])
    limited = Routing(2, "sigmoid", groups=4, top_groups=1)
    assert sorted(route(logits, limited)[0][0].tolist()) == [4, 5]  # two good ones beat one that is best
    best = Routing(2, "sigmoid", groups=4, top_groups=1, group_score="best")
    assert sorted(route(jnp.asarray([[9.0, -9, 0, 0, 5, 5, 1, 1]]), best)[0][0].tolist()) == [0, 1]
    bias = jnp.asarray([0.0, 0, 0, 0, 0, 0, 9, 9])
    ids, weights = route(logits, Routing(2, "sigmoid", renormalise=True, scaling=3.0), bias)
    assert sorted(ids[0].tolist()) == [6, 7]
    np.testing.assert_allclose(weights, [[1.5, 1.5]], rtol=1e-6)  # of the scores without the bias


@pytest.mark.parametrize(
    ("routing", "problem"),
    [
        (Routing(9), "9 experts per token out of 8"),
        (Routing(2, groups=3), "3 groups"),
        (Routing(4, groups=4, top_groups=1), "do not lie in 1 of 4 groups"),
    ],
)
def test_numbers_that_do_not_fit(routing: Routing, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        routing.check(8)
