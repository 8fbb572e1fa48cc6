"""From logits to tokens, inside the step. Options are data: one graph serves every mixture of requests.

The order is that of vLLM's V1 sampler: allowed ids, bad words, min_tokens and logit_bias (all as logit edits),
penalties, argmax for greedy rows, temperature, min_p, top_k, top_p, then a Gumbel argmax. What no row of a batch asks
for is skipped by a branch on the device. S rows, V tokens of vocabulary.

On a GPU, XLA replays a step as one CUDA graph, branches included, but ends the graph at a loop or a sort and waits for
the host there, whether or not the loop's branch is taken (2.4 ms of an 8.4 ms step on an H200). So for GPUs loops are
unrolled and nothing is sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vjax.engine.layout import ALLOW, BAN, FLOATS, ROW_PARAMS
from vjax.pallas_kernels import dispatch

BANNED = -1e30  # finite, so that a row with everything banned still gives numbers
HISTORY_BLOCK = 256
FEW = 64  # alternatives that are found by passes rather than by a sort


class RowParams(NamedTuple):
    """One value a row, `[S]`; the fields of `layout.ROW_PARAMS`."""

    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    frequency_penalty: jax.Array
    presence_penalty: jax.Array
    top_k: jax.Array
    seed_low: jax.Array
    seed_high: jax.Array
    prompt_len: jax.Array
    restricted: jax.Array


def row_params(packed: jax.Array) -> RowParams:
    """`packed[len(ROW_PARAMS), S]` int32, floats bit-cast."""
    values = dict(zip(ROW_PARAMS, packed, strict=True))
    return RowParams(
        **{k: lax.bitcast_convert_type(v, jnp.float32) if k in FLOATS else v for k, v in values.items()}
    )  # fmt: skip


def edit_logits(logits: jax.Array, edits: jax.Array, last_token: jax.Array, restricted: jax.Array) -> jax.Array:
    """Apply `edits[5, E]` (row, token, kind, value, after); unused entries have row -1. `last_token[S]`: the inputs."""
    row, token, kind, value, after = edits
    rows = logits.shape[0]

    def apply(logits: jax.Array) -> jax.Array:
        active = (row >= 0) & ((after < 0) | (after == last_token.at[row].get(mode="clip")))

        def of(which: int) -> jax.Array:
            return jnp.where(active & (kind == which), row, rows)  # past the end: dropped

        allowed = jnp.zeros(logits.shape, bool).at[of(ALLOW), token].set(True, mode="drop")
        logits = jnp.where((restricted > 0)[:, None] & ~allowed, BANNED, logits)
        logits = logits.at[of(BAN), token].set(BANNED, mode="drop")
        biased = jnp.where(active & (kind != ALLOW) & (kind != BAN), row, rows)
        return logits.at[biased, token].add(lax.bitcast_convert_type(value, jnp.float32), mode="drop")

    return lax.cond(jnp.any(row >= 0), apply, lambda x: x, logits)


def penalised(p: RowParams) -> jax.Array:
    """Rows `[S]` that ask for a penalty."""
    return (p.repetition_penalty != 1) | (p.frequency_penalty != 0) | (p.presence_penalty != 0)


def penalise(
    logits: jax.Array, p: RowParams, history: Callable[[jax.Array, int], jax.Array], kv_len: jax.Array, length: int
) -> jax.Array:
    """Repetition penalty over prompt and output, frequency and presence penalties over output.

    `history(first, n)` gives tokens `[S, n]` at positions `first .. first + n` of each row, of `length` at most.
    """
    asked = penalised(p)

    def apply(logits: jax.Array) -> jax.Array:
        size = length if _captured() else HISTORY_BLOCK

        def count(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            seen, outputs = carry
            position = i * size + jnp.arange(size)
            token = history(i * size, size)
            valid = (position < kv_len[:, None]) & asked[:, None]
            is_output = valid & (position >= p.prompt_len[:, None])
            row = jnp.broadcast_to(jnp.arange(logits.shape[0])[:, None], token.shape)
            seen = seen.at[jnp.where(valid, row, logits.shape[0]), token].set(True, mode="drop")
            return seen, outputs.at[row, token].add(is_output.astype(jnp.int32), mode="drop")

        none = jnp.zeros(logits.shape, bool), jnp.zeros(logits.shape, jnp.int32)
        if _captured():
            seen, outputs = count(jnp.int32(0), none)
        else:
            blocks = (jnp.max(jnp.where(asked, kv_len, 0)) + size - 1) // size
            seen, outputs = lax.fori_loop(0, blocks, count, none)
        repetition = jnp.where(seen, p.repetition_penalty[:, None], 1.0)
        logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
        logits = logits - p.frequency_penalty[:, None] * outputs
        return logits - p.presence_penalty[:, None] * (outputs > 0)

    return lax.cond(jnp.any(asked), apply, lambda x: x, logits)


def greedy(logits: jax.Array) -> jax.Array:
    """The most likely token of each row, `[S]`."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def sample(logits: jax.Array, p: RowParams, position: jax.Array) -> jax.Array:
    """Token ids `[S]`. Row r's randomness depends on its seed and `position[r]` alone, never on its neighbours."""
    best = greedy(logits)
    random = p.temperature > 0

    def draw(logits: jax.Array) -> jax.Array:
        scaled = logits / jnp.where(random, p.temperature, 1.0)[:, None]
        scaled = truncate(scaled, p, random)
        drawn = jnp.argmax(scaled + gumbel(p, position, logits.shape[-1]), axis=-1).astype(jnp.int32)
        return jnp.where(random, drawn, best)

    return lax.cond(jnp.any(random), draw, lambda _: best, logits)


def gumbel(p: RowParams, position: jax.Array, vocab: int) -> jax.Array:
    """Gumbel noise `[S, V]` keyed by each row's seed and position."""

    def one(low: jax.Array, high: jax.Array, position: jax.Array) -> jax.Array:
        words = lax.bitcast_convert_type(jnp.stack([high, low]), jnp.uint32)
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return jax.random.gumbel(jax.random.fold_in(key, position), (vocab,), jnp.float32)

    return jax.vmap(one)(p.seed_low, p.seed_high, position)


def truncate(scaled: jax.Array, p: RowParams, random: jax.Array) -> jax.Array:
    """min_p, then top_k, then top_p over what is left. Ties at a threshold are kept; so is the best token."""

    def min_p(x: jax.Array) -> jax.Array:
        floor = jnp.max(x, axis=-1) + jnp.log(jnp.where(p.min_p > 0, p.min_p, 1.0))
        return jnp.where((p.min_p > 0)[:, None] & (x < floor[:, None]), BANNED, x)

    def top_k(x: jax.Array) -> jax.Array:
        k = jnp.where(p.top_k > 0, jnp.minimum(p.top_k, x.shape[-1]), x.shape[-1])
        order = _sortable(x)
        threshold = _largest(order, lambda above: jnp.sum(above, axis=-1) >= k)
        return jnp.where((p.top_k > 0)[:, None] & (order < threshold[:, None]), BANNED, x)

    def top_p(x: jax.Array) -> jax.Array:
        order, probs = _sortable(x), jax.nn.softmax(x, axis=-1)
        threshold = _largest(order, lambda above: jnp.sum(jnp.where(above, probs, 0.0), axis=-1) >= p.top_p)
        keep = (order >= threshold[:, None]) | (x >= jnp.max(x, axis=-1, keepdims=True))
        return jnp.where((p.top_p < 1)[:, None] & ~keep, BANNED, x)

    for step, asked in ((min_p, p.min_p > 0), (top_k, p.top_k > 0), (top_p, p.top_p < 1)):
        scaled = lax.cond(jnp.any(asked & random), step, lambda x: x, scaled)
    return scaled


def _sortable(x: jax.Array) -> jax.Array:
    """Float32 as uint32 of the same order."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31, ~bits, bits | jnp.uint32(1 << 31))


def _largest(order: jax.Array, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The largest threshold `[S]` for which `enough(order >= threshold)` holds, bit by bit: exact, without a sort."""

    def bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        candidate = threshold | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        return jnp.where(enough(order >= candidate[:, None]), candidate, threshold)

    return lax.fori_loop(0, 32, bit, jnp.zeros(order.shape[0], jnp.uint32), unroll=_captured())


class Logprobs(NamedTuple):
    """Per row: the chosen token's log-probability and rank (1 = best), and the `k` most likely tokens'."""

    chosen: jax.Array  # [R] float32
    rank: jax.Array  # [R] int32
    top_ids: jax.Array  # [R, k] int32
    top: jax.Array  # [R, k] float32


def logprobs_of(logits: jax.Array, token: jax.Array, k: int) -> Logprobs:
    """Log-probabilities of `token[R]` and of the `k` most likely tokens under `logits[R, V]`."""
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(log_probs, token[:, None], axis=-1)
    rank = 1 + jnp.sum(log_probs > chosen, axis=-1, dtype=jnp.int32)
    top, ids = _top(log_probs, k) if _captured() and k <= FEW else lax.top_k(log_probs, k)
    return Logprobs(chosen[:, 0], rank, ids.astype(jnp.int32), top)


def logprobs_at(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Log-probabilities `[R, n]` of `tokens[R, n]`."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), tokens, axis=-1)


def _top(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`lax.top_k` without a sort, in k passes."""
    found = []
    for _ in range(k):
        best = jnp.argmax(x, axis=-1, keepdims=True)
        found.append((jnp.take_along_axis(x, best, axis=-1), best))
        x = jnp.where(jnp.arange(x.shape[-1]) == best, -jnp.inf, x)
    values, ids = zip(*found, strict=True)
    return jnp.concatenate(values, axis=-1), jnp.concatenate(ids, axis=-1)


def _captured() -> bool:
    """Whether the step being traced becomes a CUDA graph."""
    return dispatch.platform() == "cuda"
