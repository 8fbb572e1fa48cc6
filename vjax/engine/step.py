"""The step: the one function that is compiled, for every bucket. T tokens in S rows, decode rows first.

unpack -> update page tables and tokens -> forward (writes the cache, attends) -> last token of each row -> logits ->
edits, penalties, sampling -> store the sampled tokens -> one packed result for the host.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vjax.engine.layout import GrammarLayout, Layout
from vjax.engine.sampling import (
    BANNED,
    Logprobs,
    RowParams,
    edit_logits,
    greedy,
    logprobs_at,
    logprobs_of,
    penalise,
    penalised,
    row_params,
    sample,
)
from vjax.engine.state import State
from vjax.layers.paging import STATE, KVPool, PagedStep
from vjax.models.model import Model
from vjax.models.spec import Tree
from vjax.pallas_kernels import dispatch
from vjax.sampling_params import MAX_LOGPROB_IDS

FORBIDDEN = -1e35  # by a grammar: below every ban
PROMPT_LOGPROBS_ROWS = 64  # logits of a whole prompt at once would not fit: this many tokens at a time


def step(
    params: Tree, state: State, buffer: jax.Array, kept: dict[str, jax.Array] | None = None, *, model: Model,
    layout: Layout, top: int, processed: bool = False, keep_logits: bool = False,
) -> tuple[State, dict[str, jax.Array]]:  # fmt: skip
    """One step. `top`: room for that many most likely tokens' logprobs, 0 for none at all; they are computed in steps
    where a row wants them. `processed`: logprobs after penalties and temperature instead of the model's own.

    Returns the new state and `{"rows": int32 [S, 1 + 2 + 2 * top]}` (see `pack_rows`), or `[S, 1]` without `top`;
    with `chosen_logprobs` the bits of these follow in each row, and with `prompt_logprobs` there is also
    `{"prompt": int32 [T, 2 + 2 * top]}`. `keep_logits`: and `{"logits": [S, V]}`, for `sample_again`. `kept`: arrays
    that are donated for results to take their places (`engine/kept.py`).
    """
    f = layout.unpack(buffer)
    rows, positions, tokens, state = _place(f, state, layout, len(model.config.windows))
    last = jnp.maximum(rows.query_start[1:] - 1, 0)  # [S]
    with dispatch.tracing_a_step():
        hidden, cache = model.forward(params, tokens, positions, rows, state.cache)  # [T, d]
        logits = model.unembed(params, hidden if layout.decode else hidden[last])  # [S, V]

    result = {"rows": _sample(logits, f, state.tokens, tokens[last], top, processed)}
    if keep_logits:
        result["logits"] = logits
    chosen = result["rows"][:, 0]
    store = jnp.where(f["store"] >= 0, f["store"], state.tokens.shape[1])
    state = State(cache, state.tokens.at[f["slot"], store].set(chosen, mode="drop"), state.page_table)
    if layout.prompt_logprobs:
        result["prompt"] = _prompt_logprobs(model, params, hidden, f["next"], max(top, 1))
    return state, result


def sample_again(
    tokens: jax.Array, logits: jax.Array, buffer: jax.Array, *, layout: GrammarLayout, top: int, processed: bool = False
) -> tuple[jax.Array, jax.Array]:
    """What a step sampled for rows with a grammar, replaced by what their masks allow: masks come later than the step
    starts. All other rows keep what the step gave them.

    `tokens`: of the state, donated; `logits[S, V]`: of the step. Returns the tokens and packed rows of `places`.
    """
    f = layout.unpack(buffer)
    row, slot, at = jnp.maximum(f["row"], 0), f["slot"], f["kv_len"]  # [G]
    bits = (f["mask"][:, :, None] >> jnp.arange(32)) & 1  # [G, V / 32, 32]
    allowed = bits.reshape(layout.places, -1)[:, : layout.vocab] > 0
    last = tokens.at[slot, jnp.maximum(at - 1, 0)].get(mode="clip")
    rows = _sample(logits[row], f, tokens, last, top, processed, allowed)
    store = jnp.where(at > 0, at, tokens.shape[1])
    return tokens.at[slot, store].set(rows[:, 0], mode="drop"), rows


def result_width(layout: Layout | GrammarLayout, top: int) -> int:
    """Numbers in a packed row: the token, logprobs where there are any, and those of named tokens."""
    return 1 + (2 + 2 * top if top else 0) + (MAX_LOGPROB_IDS if layout.chosen_logprobs else 0)


def lower(
    model: Model, layout: Layout, top: int, params: Tree, state: State, buffer: Any, *, processed: bool = False,
    logits: Any = None, kept: dict[str, Any] | None = None,
) -> jax.stages.Lowered:  # fmt: skip
    """Trace the step for one layout; arguments may be `ShapeDtypeStruct`s with shardings. `logits`: their sharding, if
    they are to be kept."""
    fn = partial(step, model=model, layout=layout, top=top, processed=processed, keep_logits=logits is not None)
    # The state's shardings are pinned on the way out, so that it always fits the next step.
    pinned = jax.tree.map(lambda leaf: leaf.sharding, state)
    result = {"rows": buffer.sharding}
    if logits is not None:
        result["logits"] = logits
    if layout.prompt_logprobs:
        result["prompt"] = buffer.sharding
    jitted = jax.jit(fn, donate_argnums=(1, 3), out_shardings=(pinned, result), keep_unused=bool(kept))
    return jitted.lower(params, state, buffer, kept or {})


def lower_again(
    layout: GrammarLayout, top: int, tokens: Any, logits: Any, buffer: Any, *, processed: bool = False
) -> jax.stages.Lowered:
    """The same for `sample_again`."""
    fn = partial(sample_again, layout=layout, top=top, processed=processed)
    out = (tokens.sharding, buffer.sharding)
    return jax.jit(fn, donate_argnums=0, out_shardings=out).lower(tokens, logits, buffer)


def set_history(state: State, slot: jax.Array, tokens: jax.Array) -> State:
    """Store `tokens[length]` as the history of one slot, for a request that skips computing a cached prefix but whose
    penalties need to know it."""
    return State(state.cache, state.tokens.at[slot].set(tokens), state.page_table)


def set_pages(state: State, updates: jax.Array) -> State:
    """Apply page-table updates `[3, n]` (slot, index, page) that did not fit into a step; unused ones have slot -1."""
    return State(state.cache, state.tokens, _update_pages(state.page_table, updates))


def copy_state(state: State, source: jax.Array, target: jax.Array) -> State:
    """Copy what recurrent layers carry: from a slot to a snapshot or back."""
    cache = {**state.cache, STATE: state.cache[STATE].copy(source, target)}
    return State(cache, state.tokens, state.page_table)


def pack_rows(chosen: jax.Array, logprobs: Logprobs) -> jax.Array:
    """`[R, 1 + 2 + 2k]` int32: token, its logprob (bits), its rank, top ids, top logprobs (bits)."""
    bits = lambda x: lax.bitcast_convert_type(x, jnp.int32)
    parts = [chosen[:, None], bits(logprobs.chosen)[:, None], logprobs.rank[:, None]]
    return jnp.concatenate([*parts, logprobs.top_ids, bits(logprobs.top)], axis=1)


def _place(
    f: dict[str, Any], state: State, layout: Layout, groups: int
) -> tuple[PagedStep, jax.Array, jax.Array, State]:
    """Where every token goes: the paged step, positions `[T]`, token ids `[T]`, the state with both tables updated."""
    table = _update_pages(state.page_table, f["pages"])
    slot, kv_len, size = f["slot"], f["kv_len"], _page_size(state)
    if layout.decode:
        row = jnp.arange(layout.rows)
        position, query_start = kv_len - 1, jnp.arange(layout.rows + 1)
    else:
        row, position, query_start = f["row"], f["position"], f["query_start"]
    used = position >= 0
    position = jnp.maximum(position, 0)
    held = state.tokens.at[slot[row], position].get(mode="clip")
    tokens = held if layout.decode else jnp.where(f["ids"] >= 0, f["ids"], held)
    tokens = jnp.where(used, tokens, 0)
    store = jnp.where(used, position, state.tokens.shape[1])
    history = state.tokens if layout.decode else state.tokens.at[slot[row], store].set(tokens, mode="drop")
    # Arrays of their own: a kernel may get a slice of one as a view that is not aligned.
    page_table = tuple(table[slot].reshape(len(slot), -1, groups)[:, :, group] for group in range(groups))  # [S, W]
    past_pool = jnp.iinfo(jnp.int32).max
    index = tuple(
        jnp.where(used, pages[row, position // size] * size + position % size, past_pool) for pages in page_table
    )
    paged = PagedStep(row, index, query_start, kv_len, page_table, slot, layout.decode)
    return paged, position, tokens, State(state.cache, history, table)


def _sample(
    logits: jax.Array, f: dict[str, Any], tokens: jax.Array, last_token: jax.Array, top: int, processed: bool,
    allowed: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """Packed rows, see `pack_rows`. A step whose rows are all greedy and ask for nothing else takes one branch.

    `allowed[S, V]`: by grammars, which win over all that bans a token.
    """
    p = row_params(f["params"])
    if allowed is not None:
        logits = jnp.where(allowed, logits, BANNED)
    scored, named = f["scored"][0] > 0, f.get("chosen")
    width = (2 + 2 * top if top else 0) + (0 if named is None else named.shape[1])

    def alone(chosen: jax.Array) -> jax.Array:
        return jnp.pad(chosen[:, None], ((0, 0), (0, width)))

    def history(first: jax.Array, n: int) -> jax.Array:
        where = first + jnp.arange(n)
        return tokens.at[f["slot"][:, None], where[None]].get(mode="clip")

    def full() -> jax.Array:
        edited = edit_logits(logits, f["edits"], last_token, p.restricted)
        edited = penalise(edited, p, history, f["kv_len"], tokens.shape[1])
        if allowed is not None:
            edited = jnp.where(allowed, edited, FORBIDDEN)
        chosen = sample(edited, p, f["kv_len"])  # the position of the token about to be sampled
        if not top:
            return alone(chosen)
        seen = _tempered(edited, p) if processed else logits

        def with_logprobs() -> jax.Array:
            packed = pack_rows(chosen, logprobs_of(seen, chosen, top))
            if named is None:
                return packed
            return jnp.concatenate([packed, lax.bitcast_convert_type(logprobs_at(seen, named), jnp.int32)], axis=1)

        return lax.cond(scored, with_logprobs, lambda: alone(chosen))

    asked = scored | jnp.any(p.temperature > 0) | jnp.any(penalised(p)) | jnp.any(f["edits"][0] >= 0)
    return lax.cond(asked, full, lambda: alone(greedy(logits)))


def _tempered(logits: jax.Array, p: RowParams) -> jax.Array:
    return logits / jnp.where(p.temperature > 0, p.temperature, 1.0)[:, None]


def _prompt_logprobs(model: Model, params: Tree, hidden: jax.Array, following: jax.Array, top: int) -> jax.Array:
    """For each token, the logprob of the one that follows it in the prompt: `[T, 2 + 2 * top]` int32, packed."""
    block = min(PROMPT_LOGPROBS_ROWS, hidden.shape[0])
    pad = -hidden.shape[0] % block
    x = jnp.pad(hidden, ((0, pad), (0, 0))).reshape(-1, block, hidden.shape[1])
    target = jnp.pad(following, (0, pad)).reshape(-1, block)

    def one(args: tuple[jax.Array, jax.Array]) -> jax.Array:
        return pack_rows(args[1], logprobs_of(model.unembed(params, args[0]), args[1], top))[:, 1:]

    return lax.map(one, (x, target)).reshape(-1, 2 + 2 * top)[: hidden.shape[0]]


def _update_pages(table: jax.Array, updates: jax.Array) -> jax.Array:
    slot, index, page = updates
    return table.at[jnp.where(slot >= 0, slot, table.shape[0]), index].set(page, mode="drop")


def _page_size(state: State) -> int:
    return next(pool.page_size for pool in state.cache.values() if isinstance(pool, KVPool))
