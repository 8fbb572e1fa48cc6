"""Sampling against a plain numpy reading of the documented order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vjax.engine.layout import ALLOW, BAN, BIAS
from vjax.engine.sampling import (
    BANNED,
    RowParams,
    edit_logits,
    gumbel,
    logprobs_of,
    penalise,
    sample,
    truncate,
)
from vjax.pallas_kernels import dispatch

S, V = 4, 37


@pytest.fixture(autouse=True, scope="module", params=["cpu", "cuda"])
def platform(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both forms give the same: with loops, and as a CUDA graph can hold them."""
    with dispatch.lowering_for(request.param):
        jax.clear_caches()
        yield
    jax.clear_caches()


def params(**changes: Any) -> RowParams:
    base: dict[str, Any] = dict(
        temperature=1.0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0,
        top_k=0, seed_low=0, seed_high=0, prompt_len=0, restricted=0,
    )  # fmt: skip
    ints = {"top_k", "seed_low", "seed_high", "prompt_len", "restricted"}
    full = {k: np.broadcast_to(v, (S,)) for k, v in {**base, **changes}.items()}
    return RowParams(**{k: jnp.asarray(v, jnp.int32 if k in ints else jnp.float32) for k, v in full.items()})


def logits(seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(S, V)) * scale).astype(np.float32)


def kept(x: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Which tokens survive, by sorting, in double precision."""
    x = x.astype(np.float64)
    probs = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    keep = probs >= min_p * probs.max() if min_p else np.ones(len(x), bool)
    x = np.where(keep, x, -np.inf)
    if top_k:
        keep &= x >= np.sort(x)[::-1][min(top_k, len(x)) - 1]
        x = np.where(keep, x, -np.inf)
    probs = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    nucleus = np.zeros(len(x), bool)
    nucleus[order[before < top_p]] = True
    return keep & nucleus


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    top_k=st.sampled_from([0, 1, 2, 5, 36, 37, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_truncation_keeps_what_sorting_keeps(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    x = logits(seed)
    p = params(top_k=top_k, top_p=top_p, min_p=min_p)
    got = np.asarray(TRUNCATE(jnp.asarray(x), p)) > BANNED / 2
    for row in range(S):
        want = kept(x[row], top_k, top_p, min_p)
        # A cumulative sum within rounding of top_p may fall either way: one token at most.
        assert (got[row] != want).sum() <= (1 if top_p < 1 else 0)
        assert got[row][x[row].argmax()]


TRUNCATE = jax.jit(lambda x, p: truncate(x, p, p.temperature > 0))
SAMPLE = jax.jit(sample)


def test_ties_at_the_kth_value_are_kept() -> None:
    x = np.zeros((S, V), np.float32)
    x[:, :3] = 1.0
    got = np.asarray(TRUNCATE(jnp.asarray(x), params(top_k=2))) > BANNED / 2
    assert got.sum(axis=1).tolist() == [3] * S


def test_greedy_rows_take_the_argmax_among_random_neighbours() -> None:
    x = logits()
    got = np.asarray(SAMPLE(jnp.asarray(x), params(temperature=[0, 1, 0, 2]), jnp.arange(S)))
    assert got[0] == x[0].argmax()
    assert got[2] == x[2].argmax()


def test_a_row_draws_the_same_whatever_else_is_in_the_batch() -> None:
    x, p, position = logits(), params(seed_low=[1, 2, 3, 4], temperature=1.5), jnp.asarray([5, 6, 7, 8])
    together = np.asarray(SAMPLE(jnp.asarray(x), p, position))
    back = RowParams(*(field[::-1] for field in p))
    reversed_rows = np.asarray(SAMPLE(jnp.asarray(x[::-1]), back, position[::-1]))
    assert together.tolist() == reversed_rows[::-1].tolist()


def test_draws_follow_the_distribution() -> None:
    x = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    draws = []
    step = jax.jit(lambda position: sample(jnp.tile(jnp.asarray(x), (S, 1)), params(seed_low=range(S)), position))
    for position in range(500):
        draws += np.asarray(step(jnp.full(S, position))).tolist()
    share = np.bincount(draws, minlength=4) / len(draws)
    assert np.abs(share - np.exp(x)).max() < 0.05  # 2000 draws: over four standard deviations


def test_seeds_and_positions_give_different_noise() -> None:
    noise = np.asarray(gumbel(params(seed_low=[1, 1, 2, 1], seed_high=[0, 0, 0, 1]), jnp.asarray([0, 1, 0, 0]), 64))
    assert len({row.tobytes() for row in noise}) == S


def test_penalties() -> None:
    x = logits(3)
    history = np.array([[1, 2, 3, 3, 9, 9]] * S, np.int32)
    p = params(
        repetition_penalty=[2.0, 1.0, 1.0, 1.5], frequency_penalty=[0, 0.5, 0, 0.25], presence_penalty=[0, 0, 0.7, 0.1],
        prompt_len=2,
    )  # fmt: skip
    kv_len = jnp.full(S, 4)  # the last two tokens are stale

    def read(first: jax.Array, n: int) -> jax.Array:
        return jnp.asarray(history).at[:, first + jnp.arange(n)].get(mode="clip")

    got = np.asarray(penalise(jnp.asarray(x), p, read, kv_len, history.shape[1]))
    want = x.copy()
    for row in range(S):
        for token in (1, 2, 3):
            r = float(p.repetition_penalty[row])
            want[row, token] = want[row, token] / r if want[row, token] > 0 else want[row, token] * r
        want[row, 3] -= 2 * float(p.frequency_penalty[row]) + float(p.presence_penalty[row])
    np.testing.assert_allclose(got, want, rtol=1e-6)


def edits(*entries: tuple[int, int, int, float, int]) -> jax.Array:
    unused = [(-1, -1, -1, 0.0, -1)] * (8 - len(entries))
    columns = list(zip(*[*entries, *unused], strict=True))
    values = np.array(columns[3], np.float32).view(np.int32)
    return jnp.asarray([columns[0], columns[1], columns[2], values, columns[4]], jnp.int32)


def test_edits_bias_ban_and_allow() -> None:
    x = logits()
    e = edits(
        (0, 5, BIAS, 2.5, -1), (0, 5, BIAS, -1.0, -1), (1, 7, BAN, 0, -1), (2, 3, ALLOW, 0, -1), (2, 4, ALLOW, 0, -1)
    )
    got = np.asarray(edit_logits(jnp.asarray(x), e, jnp.zeros(S, jnp.int32), jnp.asarray([0, 0, 1, 0])))
    assert got[0, 5] == pytest.approx(x[0, 5] + 1.5, rel=1e-6)
    assert got[1, 7] == BANNED
    assert sorted(np.flatnonzero(got[2] > BANNED / 2)) == [3, 4]
    assert (got[3] == x[3]).all()


def test_a_conditional_ban_looks_at_the_last_token() -> None:
    x = logits()
    e = edits((0, 7, BAN, 0, 11), (1, 7, BAN, 0, 11))
    got = np.asarray(edit_logits(jnp.asarray(x), e, jnp.asarray([11, 12, 0, 0]), jnp.zeros(S, jnp.int32)))
    assert got[0, 7] == BANNED
    assert got[1, 7] == x[1, 7]


def test_everything_banned_still_gives_a_token() -> None:
    x = jnp.full((S, V), BANNED)
    got = np.asarray(SAMPLE(x, params(top_k=5, top_p=0.5, min_p=0.1), jnp.arange(S)))
    assert ((got >= 0) & (got < V)).all()


def test_logprobs_and_ranks() -> None:
    x = logits()
    token = jnp.asarray([x[0].argmax(), x[1].argmin(), 5, 6], jnp.int32)
    got = logprobs_of(jnp.asarray(x), token, 5)
    want = x - np.log(np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(got.chosen, want[np.arange(S), token], rtol=1e-5)
    assert got.rank[0] == 1
    assert got.rank[1] == V
    np.testing.assert_allclose(got.top, -np.sort(-want, axis=1)[:, :5], rtol=1e-5)
