"""The kernels of mixtures of experts against their specifications, in Triton's interpreter, which needs torch.

`scripts/gpu_test.py` runs the compiled kernels inside whole models.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.pallas_kernels.interpreter import interpret
from vjax.layers.routing import Routing, route
from vjax.pallas_kernels.grouped_matmul import Groups, reference, triton_groups, triton_kernel
from vjax.pallas_kernels.grouped_matmul.triton_kernel import Tile
from vjax.pallas_kernels.routing import triton_kernel as routing_kernel


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (triton_groups, triton_kernel, routing_kernel):
        monkeypatch.setattr(module, "call", interpret)


def grouped(ids: np.ndarray, groups: int, block: int) -> Groups:
    count = ids.size // block + min(groups, ids.size)
    return Groups(*triton_groups.group_rows(jnp.asarray(ids, jnp.int32), groups, block, count), block, True)


@pytest.mark.parametrize(
    ("tokens", "each", "groups", "block"), [(1, 3, 8, 16), (70, 2, 5, 16), (9, 1, 1, 4), (64, 8, 40, 32)]
)
def test_rows_are_placed_as_specified(
    tokens: int, each: int, groups: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_groups, "CHUNK", 64)
    ids = np.random.default_rng(tokens).integers(0, groups, (tokens, each))
    found = grouped(ids, groups, block)
    place, token, group = reference.group_rows(jnp.asarray(ids), groups, block, found.group.shape[0])
    np.testing.assert_array_equal(found.place, place)
    np.testing.assert_array_equal(found.group, group)
    used = np.repeat(np.asarray(group) < groups, block)
    np.testing.assert_array_equal(np.asarray(found.token)[used], np.asarray(token)[used])


@pytest.mark.parametrize("tile", [Tile(16, 16, 4, 1), Tile(32, 64, 4, 1)])
@pytest.mark.parametrize(("tokens", "block"), [(1, 16), (50, 16), (50, 32)])
def test_products(tokens: int, block: int, tile: Tile) -> None:
    rng = np.random.default_rng(tokens)
    ids = rng.integers(0, 4, (tokens, 2))  # nobody goes to the fifth
    groups = grouped(ids, 5, block)
    x, w = rng.standard_normal((tokens, 40), np.float32), rng.standard_normal((5, 2, 24, 40), np.float32)
    both = np.einsum("tki,tkaoi->tkao", np.repeat(x[:, None], 2, 1), w[ids].reshape(tokens, 2, 2, 24, 40))
    want = (both[:, :, 0] / (1 + np.exp(-both[:, :, 0])) * both[:, :, 1]).reshape(-1, 24)
    active = triton_kernel.grouped_swiglu(jnp.asarray(x), jnp.asarray(w), groups, tile)
    np.testing.assert_allclose(active[groups.place], want, rtol=1e-4, atol=1e-4)
    down = rng.standard_normal((5, 40, 24), np.float32)
    out = triton_kernel.grouped_matmul(active, jnp.asarray(down), groups, False, tile)
    np.testing.assert_allclose(
        out[groups.place], np.einsum("ni,noi->no", want, down[ids.reshape(-1)]), rtol=1e-3, atol=1e-3
    )  # fmt: skip


ROUTINGS: list[dict[str, Any]] = [
    dict(top_k=1), dict(top_k=3, renormalise=True), dict(top_k=2, score="sigmoid", renormalise=True, scaling=2.5),
    dict(top_k=4, score="sqrt_softplus", softcap=3.0),
]  # fmt: skip


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_choices(routing: dict[str, Any], biased: bool) -> None:
    given = Routing(**routing)
    rng = np.random.default_rng(3)
    logits = jnp.asarray(rng.normal(size=(7, 12)) * 4, jnp.float32).at[0].set(1.0)  # equals: the first ones
    bias = jnp.asarray(rng.normal(size=12), jnp.float32) if biased else None
    ids, weights = routing_kernel.choose(
        logits, bias, given.top_k, given.score, given.renormalise, given.scaling, given.softcap
    )  # fmt: skip
    want_ids, want_weights = route(logits, given, bias)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_allclose(weights, want_weights, rtol=2e-5, atol=1e-6)
