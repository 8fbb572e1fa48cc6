"""Fills a step's buffer from a plan, in numpy. Everything constant over a request's life is prepared once, when it gets
its slot, so that a decode step is a handful of array operations."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vjax.engine.layout import ALLOW, BAN, BIAS, FLOATS, ROW_PARAMS, GrammarLayout, Layout
from vjax.engine.request import Request
from vjax.engine.scheduler import Plan, Row

Edit = tuple[int, int, int, int]  # token, kind, value (float bits), after


class SlotTable:
    """What each slot's request asks of the sampler."""

    def __init__(self, slots: int, max_model_len: int) -> None:
        self.dummy = slots
        self.max_model_len = max_model_len
        self.params = np.zeros((slots + 1, len(ROW_PARAMS)), np.int32)
        self.params[:, ROW_PARAMS.index("repetition_penalty")] = _bits(1.0)
        self.params[:, ROW_PARAMS.index("top_p")] = _bits(1.0)
        self.edits: dict[int, LogitEdits] = {}  # only slots that have any
        self.logprobs = np.zeros(slots + 1, bool)
        self.prompt_logprobs = np.zeros(slots + 1, bool)
        self.chosen_logprobs: dict[int, list[int]] = {}  # only slots that ask for tokens by name

    def admit(self, request: Request) -> None:
        """Prepare the row of a request that was just given its slot."""
        p, slot = request.params, request.slot
        assert slot is not None
        values = {
            "temperature": 0.0 if p.greedy else p.temperature,
            "top_p": p.top_p,
            "min_p": p.min_p,
            "repetition_penalty": p.repetition_penalty,
            "frequency_penalty": p.frequency_penalty,
            "presence_penalty": p.presence_penalty,
            "top_k": p.top_k,
            "seed_low": _signed(request.seed),
            "seed_high": _signed(request.seed >> 32),
            "prompt_len": len(request.prompt_token_ids),
            "restricted": int(p.allowed_token_ids is not None),
        }
        self.params[slot] = [_bits(values[name]) if name in FLOATS else values[name] for name in ROW_PARAMS]
        self.logprobs[slot] = p.logprobs is not None
        self.prompt_logprobs[slot] = p.prompt_logprobs is not None
        self.chosen_logprobs.pop(slot, None)
        if p.logprob_token_ids:
            self.chosen_logprobs[slot] = p.logprob_token_ids
        edits = LogitEdits(request)
        if edits.any:
            self.edits[slot] = edits
        else:
            self.edits.pop(slot, None)

    def edits_of(self, rows: Iterable[Row]) -> list[tuple[int, Edit]]:
        """The logit edits of a step's sampled rows, with the row each belongs to."""
        if not self.edits:
            return []
        found = []
        for index, row in enumerate(rows):
            source = self.edits.get(row.slot)
            if source is not None and row.sample:
                found += [(index, edit) for edit in source.at(row.start + row.count)]
        return found


class LogitEdits:
    """The logit edits of one request: constant ones, and those that depend on what was generated."""

    def __init__(self, request: Request) -> None:
        p = request.params
        self.request = request
        self.constant: list[Edit] = [(t, BIAS, _bits(v), -1) for t, v in (p.logit_bias or {}).items()]
        self.constant += [(t, ALLOW, 0, -1) for t in p.allowed_token_ids or ()]
        self.constant += [(word[0], BAN, 0, -1) for word in request.bad_word_ids if len(word) == 1]
        self.words = [word for word in request.bad_word_ids if len(word) > 1]
        self.min_len = len(request.prompt_token_ids) + p.min_tokens
        stops = set(p.stop_token_ids or ()) | (set() if p.ignore_eos else set(request.eos_token_ids))
        self.stops: list[Edit] = [(t, BAN, 0, -1) for t in sorted(stops)] if p.min_tokens else []
        self.any = bool(self.constant or self.words or self.stops)

    def at(self, position: int) -> list[Edit]:
        """Edits for the token at `position` (counted from the prompt's first token)."""
        edits = self.constant
        if self.stops and position < self.min_len:
            edits = edits + self.stops
        if self.words:
            edits = edits + [edit for word in self.words if (edit := self._word(word, position))]
        return edits

    def _word(self, word: list[int], position: int) -> Edit | None:
        """Bans a bad word's last token where the ones before it were generated. The newest of those may be known to
        the device alone: the ban then carries it as a condition."""
        request = self.request
        before = word[:-2]
        outputs = request.output_token_ids
        known = position - 1 - len(request.prompt_token_ids)  # outputs before the newest token
        if known < len(before):
            return None
        if before and outputs[known - len(before) : known] != before:
            return None
        return (word[-1], BAN, 0, word[-2]) if known >= 0 else None


def fill(plan: Plan, layout: Layout, table: SlotTable, page_updates: bool = True) -> np.ndarray:
    """The buffer of a plan. A new array every time: the device may still read the last one."""
    buffer = np.full(layout.size, -1, np.int32)
    view, rows = layout.views(buffer), plan.rows
    n = len(rows)
    slots = np.full(layout.rows, table.dummy, np.int32)
    slots[:n] = [row.slot for row in rows]
    view["slot"][:] = slots
    view["scored"][0] = table.logprobs[slots[:n]].any()
    kv_len = np.array([row.start + row.count for row in rows], np.int32)
    view["kv_len"][:n] = kv_len
    view["kv_len"][n:] = 0
    view["params"][:] = table.params[slots].T
    if layout.decode:
        view["store"][:n] = kv_len
    else:
        view["store"][:n] = np.where([row.sample for row in rows], kv_len, -1)
        _fill_tokens(view, rows, layout)
    if page_updates and plan.page_updates:
        view["pages"][:, : len(plan.page_updates)] = np.array(plan.page_updates, np.int32).T
    _fill_asked(view, rows, layout, table)
    return buffer


def fill_again(
    rows: list[tuple[int, Row]], layout: GrammarLayout, table: SlotTable
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The buffer for sampling rows (and their places in the step) under grammars, and its fields, `mask` still to be
    filled."""
    buffer = np.full(layout.size, -1, np.int32)
    view, n = layout.views(buffer), len(rows)
    slots = np.full(layout.places, table.dummy, np.int32)
    slots[:n] = [row.slot for _, row in rows]
    view["slot"][:] = slots
    view["row"][:n] = [index for index, _ in rows]
    view["kv_len"][:n] = [row.start + row.count for _, row in rows]
    view["kv_len"][n:] = 0
    view["params"][:] = table.params[slots].T
    view["scored"][0] = table.logprobs[slots[:n]].any()
    _fill_asked(view, [row for _, row in rows], layout, table)
    return buffer, view


def _fill_asked(view: dict[str, np.ndarray], rows: list[Row], layout: Layout | GrammarLayout, table: SlotTable) -> None:
    """Tokens whose logprobs a row asks for by name, and edits of logits."""
    if layout.chosen_logprobs:
        view["chosen"][:] = 0
        for index, row in enumerate(rows):
            ids = table.chosen_logprobs.get(row.slot, ())
            view["chosen"][index, : len(ids)] = ids
    edits = table.edits_of(rows)
    if edits:
        view["edits"][:, : len(edits)] = np.array([(r, t, k, v, a) for r, (t, k, v, a) in edits], np.int64).T


def _fill_tokens(view: dict[str, np.ndarray], rows: list[Row], layout: Layout) -> None:
    ids, position, row_of, starts = view["ids"], view["position"], view["row"], view["query_start"]
    at = 0
    row_of[:] = 0
    for i, row in enumerate(rows):
        end = at + row.count
        starts[i] = at
        position[at:end] = np.arange(row.start, row.start + row.count)
        row_of[at:end] = i
        tokens = row.request.token_ids(row.start, row.start + row.count + 1)
        ids[at : at + min(len(tokens), row.count)] = tokens[: row.count]
        if layout.prompt_logprobs:
            following = tokens[1:]
            view["next"][at:end] = 0
            view["next"][at : at + len(following)] = following
        at = end
    starts[len(rows) :] = at


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def _signed(word: int) -> int:
    """The low 32 bits as a signed integer."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
