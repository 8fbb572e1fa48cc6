"""Runs plans on the device: owns parameters, state and graphs. `dispatch` returns at once; `read` waits."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from vjax.engine import step as steps
from vjax.engine.batch import SlotTable, fill, fill_again
from vjax.engine.grammar import Masks
from vjax.engine.graphs import BucketPlan, Graphs
from vjax.engine.kept import Kept, Places
from vjax.engine.layout import GrammarLayout, Layout
from vjax.engine.messages import TokenLogprobs
from vjax.engine.request import Request, Status
from vjax.engine.scheduler import Plan, Row
from vjax.engine.state import State, StateShape, abstract_state, zeros
from vjax.models.model import Model
from vjax.models.spec import Tree
from vjax.parallel.mesh import replicated, sharding

PAGE_UPDATES = 1024  # entries that `set_pages` takes at a time


@dataclass(slots=True)
class Pending:
    """A dispatched step and where its results will be."""

    plan: Plan
    layout: Layout
    result: dict[str, jax.Array]
    logits: jax.Array | None = None  # until rows with grammars are sampled from them
    again: dict[int, int] = field(default_factory=dict)  # row -> its place in result["again"]


@dataclass(slots=True)
class StepResult:
    """What a step sampled, by row of its plan."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None] | None
    prompt_logprobs: list[list[TokenLogprobs] | None] | None


class Runner:
    """The device side of an engine."""

    def __init__(
        self,
        model: Model,
        params: Tree,
        mesh: Mesh,
        shape: StateShape,
        buckets: BucketPlan,
        *,
        cache_dtype: jnp.dtype,
        max_logprobs: int,
        processed_logprobs: bool = False,
        workers: int = 1,
    ) -> None:
        self.model, self.params, self.mesh, self.shape = model, params, mesh, shape
        vocab = model.config.vocab_size
        self.top = vocab if max_logprobs == -1 else max(min(max_logprobs, vocab), 1)
        self.processed = processed_logprobs
        self.abstract = abstract_state(model.config, shape, cache_dtype, mesh)
        self.state: State = zeros(self.abstract)
        self.table = SlotTable(shape.slots, shape.max_model_len)
        self.graphs = Graphs(self._lower, buckets, workers)
        self.host_seconds = 0.0  # spent filling and dispatching
        self._set_pages: Any = None
        self._set_history: Any = None
        self._copy_state: Any = None
        self._kept = None if mesh.devices.flat[0].platform == "cpu" else Kept(mesh)

    def dispatch(self, plan: Plan) -> Pending:
        """Start a step on the device."""
        started = time.perf_counter()
        for request in plan.admitted:
            self.table.admit(request)
            if request.num_cached_tokens and _penalised(request):
                self._upload_history(request)
        first = self.shape.slots + 1  # snapshot
        for snapshot, slot in plan.restored:
            self._copy(first + snapshot, slot)
        layout, compiled = self._graph(plan)
        fits = len(plan.page_updates) <= layout.page_updates
        if not fits:
            self._upload_pages(plan.page_updates)
        buffer = fill(plan, layout, self.table, page_updates=fits)
        result, logits = self.run(layout, compiled, buffer)
        for slot, snapshot in plan.saved:
            self._copy(slot, first + snapshot)
        for array in result.values():
            array.copy_to_host_async()
        self.host_seconds += time.perf_counter() - started
        kept = logits if any(row.request.grammar is not None for row in plan.rows) else None
        return Pending(plan, layout, result, kept)

    def run(self, layout: Layout, compiled: Any, buffer: np.ndarray) -> tuple[dict[str, jax.Array], jax.Array]:
        """One step on the state: results for the host, and logits, which stand until the next step starts."""
        if self._kept is None:
            self.state, result = compiled(self.params, self.state, buffer, {})
            logits = result.pop("logits")
            return result, logits
        places, kept = self._places(layout), self._kept
        self.state, result = compiled(self.params, self.state, kept.plan(buffer), kept.take(places))
        return kept.keep(result, places), result["logits"]

    def constrain(self, pending: Pending, masks: Masks) -> None:
        """Sample again the rows with a grammar, which must know all their tokens: the step before has been read.
        Meanwhile the device computes this one."""
        logits, pending.logits = pending.logits, None
        rows = [
            (index, row)
            for index, row in enumerate(pending.plan.rows)
            if row.sample and row.request.grammar is not None and row.request.status is Status.RUNNING
        ]
        if not rows or logits is None:
            return
        started = time.perf_counter()
        key = self.graphs.plan.grammar_key(
            pending.layout.rows,
            len(rows),
            self.model.config.vocab_size,
            edits=len(self.table.edits_of(row for _, row in rows)),
            chosen_logprobs=pending.layout.chosen_logprobs,
        )
        compiled = self.graphs.get(key)
        buffer, view = fill_again(rows, key, self.table)
        masks.fill([row.request.grammar for _, row in rows if row.request.grammar is not None], view["mask"])
        tokens, sampled = compiled(self.state.tokens, logits, buffer)
        self.state = State(self.state.cache, tokens, self.state.page_table)
        again = {"again": sampled} if self._kept is None else self._kept.copied({"again": sampled})
        again["again"].copy_to_host_async()
        pending.result |= again
        pending.again = {index: place for place, (index, _) in enumerate(rows)}
        self.host_seconds += time.perf_counter() - started

    def prepare_grammars(self) -> list[Future[Any]]:
        """Compile in the background what rows with a grammar need."""
        return [self.graphs.submit(key) for key in self.graphs.plan.grammar_keys(self.model.config.vocab_size)]

    def read(self, pending: Pending) -> StepResult:
        """Wait for a step and unpack it."""
        rows, plan, top = np.asarray(pending.result["rows"]), pending.plan, self.top
        if pending.again:
            rows = rows.copy()
            rows[list(pending.again)] = np.asarray(pending.result["again"])[list(pending.again.values())]
        n = len(plan.rows)
        logprobs = prompt = None
        wanted = [row.request.params.logprobs if row.sample else None for row in plan.rows]
        if any(k is not None for k in wanted):
            logprobs = [None if k is None else _token_logprobs(rows[i], top, k) for i, k in enumerate(wanted)]
            _name_tokens(plan.rows, logprobs, rows, top)
        if pending.layout.prompt_logprobs:
            prompt = self._prompt_logprobs(plan.rows, np.asarray(pending.result["prompt"]), top)
        return StepResult(rows[:n, 0].tolist(), logprobs, prompt)

    def _graph(self, plan: Plan) -> tuple[Layout, Any]:
        slots = [row.slot for row in plan.rows]
        prompt = not plan.decode_only and bool(self.table.prompt_logprobs[slots].any())
        edits = len(self.table.edits_of(plan.rows)) if self.table.edits else 0
        size = len(plan.rows) if plan.decode_only else plan.num_tokens
        chosen = bool(self.table.chosen_logprobs) and any(slot in self.table.chosen_logprobs for slot in slots)
        return self.graphs.take(
            plan.decode_only, size, edits=edits, prompt_logprobs=prompt, chosen_logprobs=chosen
        )  # fmt: skip

    def _prompt_logprobs(self, rows: list[Row], packed: np.ndarray, top: int) -> list[list[TokenLogprobs] | None]:
        found: list[list[TokenLogprobs] | None] = []
        at = 0
        for row in rows:
            wanted, prompt = row.request.params.prompt_logprobs, row.request.prompt_token_ids
            if wanted is None or row.start >= len(prompt) - 1:
                found.append(None)
            else:
                # The last prompt token is followed by what is sampled, which is no prompt token.
                count = min(row.count, len(prompt) - 1 - row.start)
                following = prompt[row.start + 1 : row.start + 1 + count]
                lines = (np.concatenate([[t], packed[at + j]]) for j, t in enumerate(following))
                found.append([_token_logprobs(line, top, wanted) for line in lines])
            at += row.count
        return found

    def _places(self, key: Layout | GrammarLayout) -> Places:
        """What a step leaves on the device for later."""
        shape = (key.rows, self.model.config.vocab_size)
        whole, spread = replicated(self.mesh), sharding(self.mesh, shape, (None, "vocab"))
        return {
            "rows": jax.ShapeDtypeStruct((key.rows, steps.result_width(key, self.top)), jnp.int32, sharding=whole),
            "logits": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=spread),
        }

    def _lower(self, key: Layout | GrammarLayout) -> jax.stages.Lowered:
        buffer = jax.ShapeDtypeStruct((key.size,), jnp.int32, sharding=replicated(self.mesh))
        places = self._places(key)
        logits = places["logits"]
        if isinstance(key, GrammarLayout):
            return steps.lower_again(
                key, self.top, self.abstract.tokens, logits, buffer, processed=self.processed
            )  # fmt: skip
        if self._kept is not None:
            self._kept.prepare(key.size, places)
        params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.params)
        return steps.lower(
            self.model, key, self.top, params, self.abstract, buffer, processed=self.processed, logits=logits.sharding,
            kept=None if self._kept is None else dict(places),
        )  # fmt: skip

    def _upload_pages(self, updates: list[tuple[int, int, int]]) -> None:
        if self._set_pages is None:
            self._set_pages = jax.jit(steps.set_pages, donate_argnums=0)
        for first in range(0, len(updates), PAGE_UPDATES):
            part = np.full((3, PAGE_UPDATES), -1, np.int32)
            chunk = np.array(updates[first : first + PAGE_UPDATES], np.int32)
            part[:, : len(chunk)] = chunk.T
            self.state = self._set_pages(self.state, part)

    def _upload_history(self, request: Request) -> None:
        if self._set_history is None:
            self._set_history = jax.jit(steps.set_history, donate_argnums=0)
        history = np.zeros(self.shape.max_model_len, np.int32)
        assert request.slot is not None
        history[: len(request.all_token_ids)] = request.all_token_ids
        self.state = self._set_history(self.state, np.int32(request.slot), history)

    def _copy(self, source: int, target: int) -> None:
        if self._copy_state is None:
            self._copy_state = jax.jit(steps.copy_state, donate_argnums=0)
        self.state = self._copy_state(self.state, np.int32(source), np.int32(target))

    def close(self, wait: bool = False) -> None:
        """`wait` until no graph is being compiled any more."""
        self.graphs.close(wait)


def _penalised(request: Request) -> bool:
    """Whether penalties will look at tokens that the request has so far. Outputs are there after a preemption."""
    p = request.params
    return p.repetition_penalty != 1 or bool(request.output_token_ids and (p.frequency_penalty or p.presence_penalty))


def _name_tokens(rows: list[Row], logprobs: list[TokenLogprobs | None], packed: np.ndarray, top: int) -> None:
    """Put in the logprobs of the tokens that a request named, which lie behind those of the likeliest."""
    for row, found, line in zip(rows, logprobs, packed, strict=False):
        ids = row.request.params.logprob_token_ids
        if found is not None and ids:
            first = 3 + 2 * top
            found.top_ids = list(ids)
            found.top_logprobs = np.ascontiguousarray(line[first : first + len(ids)]).view(np.float32).tolist()


def _token_logprobs(line: np.ndarray, top: int, wanted: int) -> TokenLogprobs:
    """One packed line (`step.pack_rows`), cut to the number of alternatives the request asked for."""
    k = top if wanted == -1 else min(wanted, top)
    line = np.ascontiguousarray(line, np.int32)
    values = line[3 + top : 3 + 2 * top].view(np.float32)
    chosen = float(line[1:2].view(np.float32)[0])
    return TokenLogprobs(int(line[0]), chosen, int(line[2]), line[3 : 3 + k].tolist(), values[:k].tolist())
