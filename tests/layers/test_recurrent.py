"""Recurrent layers over ragged rows: whatever way a sequence is cut into steps, outputs and state are the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.layers.gated_delta import gated_delta_rule, l2_norm
from vjax.layers.paging import PagedStep, StatePool
from vjax.layers.short_conv import short_conv
from vjax.layers.ssm import state_space

LENGTHS = (1, 29, 1, 40, 70)  # of the sequences
ROWS, SLOTS = 7, 8  # two rows are never used
Step = Callable[[StatePool, Any, PagedStep], tuple[StatePool, jax.Array]]
Layer = Callable[[Any, Any, PagedStep | None], tuple[jax.Array, Any]]  # inputs, state, step -> outputs, state


def ragged(starts: list[int], counts: list[int], tokens: int, decode: bool = False) -> PagedStep:
    """A step that computes `counts[i]` tokens of sequence i, whose slot is SLOTS - 2 - i, after `starts[i]` others."""
    order = sorted((i for i, n in enumerate(counts) if n), key=lambda i: counts[i] > 1)
    ends = np.cumsum([0] + [counts[i] for i in order])
    kv_len, slot = np.zeros(ROWS, np.int32), np.full(ROWS, SLOTS - 1, np.int32)
    row_of_token = np.zeros(tokens, np.int32)
    for row, i in enumerate(order):
        kv_len[row], slot[row] = starts[i] + counts[i], SLOTS - 2 - i
        row_of_token[ends[row] : ends[row + 1]] = row
    query_start = np.concatenate([ends, np.full(ROWS - len(order), ends[-1])])
    if decode:
        query_start, row_of_token = np.arange(ROWS + 1), np.arange(ROWS)
    unused = np.zeros((1, 1), np.int32)
    return PagedStep(row_of_token, unused, query_start, kv_len, unused, slot, decode), order  # type: ignore


def in_steps(run: Step, inputs: list[Any], state: dict[str, jax.Array], chunk: int, budget: int) -> list[np.ndarray]:
    """Every sequence's outputs, at most `chunk` tokens of each a step; steps of single tokens are decode steps."""
    pool = StatePool({name: 7.0 + jnp.zeros((SLOTS, *x.shape[1:])) for name, x in state.items()}, SLOTS)
    done, found = [0] * len(LENGTHS), [[] for _ in LENGTHS]
    while any(n < total for n, total in zip(done, LENGTHS, strict=True)):
        left, counts = budget, []
        for n, total in zip(done, LENGTHS, strict=True):
            counts.append(min(chunk, total - n, left))
            left -= counts[-1]
        decode = max(counts) == 1
        tokens = ROWS if decode else budget
        step, order = ragged(done, counts, tokens, decode)
        parts = [jax.tree.map(lambda x, a=done[i], n=counts[i]: x[a : a + n], inputs[i]) for i in order]
        unused = tokens - sum(counts)
        padding = jax.tree.map(lambda x, n=unused: np.full((n, *x.shape[1:]), 3.0, x.dtype), inputs[0])
        x = jax.tree.map(lambda *p: np.concatenate(p), *parts, padding)  # what padding holds must not matter
        pool, out = run(pool, x, step)
        out = np.asarray(out)
        at = 0
        for i in order:
            found[i].append(out[at : at + counts[i]])
            at, done[i] = at + counts[i], done[i] + counts[i]
    return [np.concatenate(parts) for parts in found]


def check(layer: Layer, make: Callable[[int, np.random.Generator], Any], state: dict[str, jax.Array]) -> None:
    """In steps as in one piece, for chunks of 1, 3, 7 and 64 tokens; every step has one of three compiled shapes."""
    rng = np.random.default_rng(0)
    inputs = [jax.tree.map(np.asarray, make(n, rng)) for n in LENGTHS]
    alone = jax.jit(partial(layer, step=None))
    whole = [np.asarray(alone(x, jax.tree.map(jnp.zeros_like, state))[0]) for x in inputs]

    @jax.jit
    def run(pool: StatePool, x: Any, step: PagedStep) -> tuple[StatePool, jax.Array]:
        out, new = layer(x, pool.read(0, step), step)
        return pool.write(0, step, new), out

    for chunk in (1, 3, 7, 64):
        for budget in (16, 90):
            for want, found in zip(whole, in_steps(run, inputs, state, chunk, budget), strict=True):
                np.testing.assert_allclose(found, want, atol=2e-5, rtol=2e-5)


def test_short_conv() -> None:
    rng = np.random.default_rng(1)
    w, bias = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=6).astype(np.float32)

    def layer(x: Any, state: Any, step: PagedStep | None) -> tuple[jax.Array, Any]:
        y, window = short_conv(x, w, bias, state["window"], step)
        return y, {"window": window}

    check(layer, lambda n, r: r.normal(size=(n, 6)).astype(np.float32), {"window": jnp.zeros((1, 3, 6))})


def test_short_conv_is_a_convolution() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(9, 2)).astype(np.float32), rng.normal(size=(2, 3)).astype(np.float32)
    want = [np.convolve(x[:, c], w[c, ::-1])[:9] for c in range(2)]
    np.testing.assert_allclose(short_conv(x, w, None, np.zeros((1, 2, 2)), None)[0], np.stack(want, 1), atol=1e-6)


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("by_channel", [False, True], ids=["scalar", "channels"])
def test_gated_delta_rule(size: int, by_channel: bool) -> None:
    """`size`: tokens computed in parallel."""
    h, r, i, j = 2, 2, 5, 3

    def layer(x: Any, state: Any, step: PagedStep | None) -> tuple[jax.Array, Any]:
        out, memory = gated_delta_rule(x, state["memory"], step, size)
        return out, {"memory": memory}

    check(layer, delta_inputs(h, r, i, j, by_channel), {"memory": jnp.zeros((1, h, r, i, j))})


def delta_inputs(h: int, r: int, i: int, j: int, by_channel: bool) -> Callable[[int, np.random.Generator], Any]:
    def make(n: int, rng: np.random.Generator) -> Any:
        q, k = (l2_norm(rng.normal(size=(n, h, i)).astype(np.float32)) for _ in range(2))
        v = rng.normal(size=(n, h, r, j)).astype(np.float32)
        g = (
            -(rng.random((n, h, r, i) if by_channel else (n, h, r)).astype(np.float32) ** 4) * 30
        )  # most remember, some forget at once
        return q, k, jnp.asarray(v), jnp.asarray(g), jnp.asarray(rng.random((n, h, r)).astype(np.float32))

    return make


@pytest.mark.parametrize("by_channel", [False, True], ids=["scalar", "channels"])
def test_gated_delta_rule_is_its_formula(by_channel: bool) -> None:
    q, k, v, g, beta = map(np.asarray, delta_inputs(1, 1, 4, 3, by_channel)(30, np.random.default_rng(3)))
    memory, want = np.zeros((4, 3)), []
    for t in range(30):
        memory = np.exp(g[t, 0, 0]).reshape(-1, 1) * memory
        memory = memory + np.outer(k[t, 0], beta[t, 0, 0] * (v[t, 0, 0] - memory.T @ k[t, 0]))
        want.append(memory.T @ q[t, 0])
    for chunk in (1, 4, 64):
        found, last = gated_delta_rule((q, k, v, g, beta), jnp.zeros((1, 1, 1, 4, 3)), None, chunk)
        np.testing.assert_allclose(found[:, 0, 0], np.stack(want), atol=1e-5)
        np.testing.assert_allclose(last[0, 0, 0], memory, atol=1e-5)


@pytest.mark.parametrize("size", [8, 64])
def test_state_space(size: int) -> None:
    """`size`: tokens computed in parallel."""

    def layer(x: Any, state: Any, step: PagedStep | None) -> tuple[jax.Array, Any]:
        out, ssm = state_space(x, state["ssm"], step, size)
        return out, {"ssm": ssm}

    check(layer, state_space_inputs, {"ssm": jnp.zeros((1, 6, 3, 5))})


def state_space_inputs(n: int, rng: np.random.Generator) -> Any:
    """Six heads of three channels in two groups, of five channels of state."""
    log_decay = -(rng.random((n, 6)) ** 4) * 30
    shapes = (rng.normal(size=(n, 6, 3)), log_decay, rng.normal(size=(n, 2, 5)), rng.normal(size=(n, 2, 5)))
    return tuple(jnp.asarray(x, jnp.float32) for x in shapes)


def test_state_space_is_its_formula() -> None:
    dtx, log_decay, b, c = map(np.asarray, state_space_inputs(30, np.random.default_rng(4)))
    state, want = np.zeros((6, 3, 5)), []
    for t in range(30):
        outer = dtx[t][:, :, None] * np.repeat(b[t], 3, axis=0)[:, None]
        state = np.exp(log_decay[t])[:, None, None] * state + outer
        want.append(np.einsum("hpn,hn->hp", state, np.repeat(c[t], 3, axis=0)))
    for chunk in (1, 4, 64):
        found, last = state_space((dtx, log_decay, b, c), jnp.zeros((1, 6, 3, 5)), None, chunk)
        np.testing.assert_allclose(found, np.stack(want), atol=1e-5)
        np.testing.assert_allclose(last[0], state, atol=1e-5)
