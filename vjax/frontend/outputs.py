"""From the engine's token ids to the outputs that callers see: text, stop strings, logprobs, `n` merged into one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from vjax.engine.messages import EngineOutput, TokenLogprobs
from vjax.errors import RequestError
from vjax.frontend.inputs import PreparedRequest
from vjax.frontend.logprobs import decode_row
from vjax.frontend.text import GrowingText
from vjax.outputs import CompletionOutput, FinishReason, LogprobDict, RequestMetrics, RequestOutput

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer


@dataclass(slots=True)
class News:
    """`outputs` to hand on; engine ids to abort; why requests failed, by id (their last output is there too)."""

    outputs: list[RequestOutput] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


class OutputProcessor:
    """Follows every open request. Late news of requests that are over is dropped."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self._requests: dict[str, _Request] = {}
        self._children: dict[str, tuple[_Request, _Child]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, prepared: PreparedRequest) -> None:
        """Raises `RequestError` when one of its ids is in use."""
        taken = any(child.request_id in self._children for child in prepared.children)
        if taken or prepared.request_id in self._requests:
            raise RequestError(f"request_id {prepared.request_id!r} is in use by a running request.", "request_id")
        request = _Request(prepared, self.tokenizer if prepared.params.detokenize else None)
        self._requests[prepared.request_id] = request
        for child in request.children:
            self._children[child.engine_id] = (request, child)

    def process(self, outputs: Iterable[EngineOutput]) -> News:
        """Take in what one engine step gave."""
        news = News()
        touched: dict[str, _Request] = {}
        for output in outputs:
            request, child = self._children.get(output.request_id, (None, None))
            if request is None or child is None:
                continue
            if output.finish_reason == "error":
                news.errors[request.request_id] = output.error or "unknown error"
                news.aborts += [one for one in self._forget(request) if one != output.request_id]
                request.close("error")
                touched[request.request_id] = request
                continue
            request.update(child, output)
            touched[request.request_id] = request
            if child.finish_reason is not None:
                del self._children[child.engine_id]
                if output.finish_reason is None:
                    news.aborts.append(child.engine_id)
        for request in touched.values():
            if request.finished:
                self._requests.pop(request.request_id, None)
            result = request.output()
            if result is not None:
                news.outputs.append(result)
        return news

    def abort(self, request_id: str) -> tuple[list[str], RequestOutput | None]:
        """Close a request: the engine ids to abort, and its last output. Unknown: nothing."""
        request = self._requests.get(request_id)
        if request is None:
            return [], None
        engine_ids = self._forget(request)
        request.close("abort")
        return engine_ids, request.output()

    def _forget(self, request: _Request) -> list[str]:
        del self._requests[request.request_id]
        return [one.engine_id for one in request.children if self._children.pop(one.engine_id, None)]


class _Child:
    """One continuation."""

    __slots__ = ("changed", "cumulative", "engine_id", "finish_reason", "index", "logprobs", "parts", "stop_reason",
                 "text", "token_ids", "told")  # fmt: skip

    def __init__(self, index: int, engine_id: str, text: GrowingText | None, wants_logprobs: bool) -> None:
        self.index, self.engine_id, self.text = index, engine_id, text
        self.token_ids: list[int] = []  # all of them; for deltas, those since the last output
        self.logprobs: list[LogprobDict] | None = [] if wants_logprobs else None
        self.cumulative: float | None = 0.0 if wants_logprobs else None
        self.parts: list[str] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.changed = False
        self.told = False  # a delta was sent

    def finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self.finish_reason, self.stop_reason, self.changed = reason, stop_reason, True


class _Request:
    """A request and its continuations."""

    __slots__ = ("_last_ids", "children", "params", "prepared", "prompt_logprobs", "request_id", "result", "tokenizer")

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer | None) -> None:
        self.prepared, self.params, self.tokenizer = prepared, prepared.params, tokenizer
        self.request_id = prepared.request_id
        wants = self.params.logprobs is not None
        self.children = [
            _Child(index, one.request_id, self._text(), wants) for index, one in enumerate(prepared.children)
        ]
        self.prompt_logprobs: list[LogprobDict | None] | None = None if self.params.prompt_logprobs is None else [None]
        self._last_ids: dict[int, list[int]] = {}
        self.result = RequestOutput(
            request_id=self.request_id,
            prompt=prepared.prompt,
            prompt_token_ids=prepared.prompt_token_ids,
            outputs=[],
            finished=False,
            metrics=RequestMetrics(arrival_time=prepared.arrival_time),
        )

    def _text(self) -> GrowingText | None:
        if self.tokenizer is None:
            return None
        prepared = self.prepared
        return GrowingText(self.tokenizer, prepared.prompt_token_ids, self.params, prepared.shown_special_ids)

    @property
    def finished(self) -> bool:
        return all(child.finish_reason is not None for child in self.children)

    def update(self, child: _Child, output: EngineOutput) -> None:
        self._measure(output)
        if output.prompt_logprobs and self.prompt_logprobs is not None:
            self._add_prompt_logprobs(output.prompt_logprobs)
        if not output.new_token_ids and output.finish_reason is None:
            return
        child.changed = True
        stopped = self._add_tokens(child, output)
        if stopped is None and output.finish_reason is not None:
            stopped = child.text.finish() if child.text is not None else None
            if stopped is None:
                child.finish(cast(FinishReason, output.finish_reason), output.stop_reason)
        if stopped is not None:
            child.finish("stop", stopped)
        if self.finished:
            self.result.metrics.finished_time = time.monotonic()

    def close(self, reason: FinishReason) -> None:
        """End what has not ended yet."""
        for child in self.children:
            if child.finish_reason is None:
                if child.text is not None:
                    child.text.finish()
                child.finish(reason, None)
        self.result.metrics.finished_time = time.monotonic()

    def _add_tokens(self, child: _Child, output: EngineOutput) -> str | None:
        """Returns the stop string that ended the text, if any; tokens after it are dropped."""
        hide_last = output.finish_reason == "stop" and not self.params.include_stop_str_in_output
        last = len(output.new_token_ids) - 1
        if hide_last and self.params.structured_outputs is not None and output.new_token_ids:
            # A grammar may end with any token: what ends a text is hidden, its last word is not.
            ends = {*self.prepared.children[0].eos_token_ids, *(self.params.stop_token_ids or ())}
            hide_last = output.new_token_ids[last] in ends
        for position, token in enumerate(output.new_token_ids):
            if child.logprobs is not None and output.new_logprobs is not None:
                self._add_logprobs(child, output.new_logprobs[position])
            child.token_ids.append(token)
            if child.text is None or (hide_last and position == last):
                continue
            stopped = child.text.add(token)
            if stopped is not None:
                return stopped
        return None

    def _add_logprobs(self, child: _Child, row: TokenLogprobs) -> None:
        assert child.logprobs is not None
        assert child.cumulative is not None
        assert self.params.logprobs is not None
        before = self._last_ids.setdefault(child.index, self.prepared.prompt_token_ids[-4:])
        child.cumulative += row.logprob
        chosen = self.params.logprob_token_ids
        top = len(chosen) if chosen else self.params.logprobs
        child.logprobs.append(decode_row(row, top, self.tokenizer, before, ranked=not chosen))
        before.append(row.token_id)
        del before[:-4]

    def _add_prompt_logprobs(self, rows: list[TokenLogprobs]) -> None:
        assert self.prompt_logprobs is not None
        assert self.params.prompt_logprobs is not None
        for row in rows:
            at = len(self.prompt_logprobs)
            before = self.prepared.prompt_token_ids[max(0, at - 4) : at]
            self.prompt_logprobs.append(decode_row(row, self.params.prompt_logprobs, self.tokenizer, before))

    def _measure(self, output: EngineOutput) -> None:
        metrics = self.result.metrics
        if metrics.scheduled_time is None:
            metrics.scheduled_time = output.scheduled_time
        if metrics.first_token_time is None and output.new_token_ids:
            metrics.first_token_time = time.monotonic()
        metrics.num_preemptions = max(metrics.num_preemptions, output.num_preemptions)
        self.result.num_cached_tokens = max(self.result.num_cached_tokens, output.num_cached_tokens)

    def _due(self, child: _Child) -> bool:
        """Whether a delta is to be sent: at the first token, then every `stream_interval` tokens, and at the end."""
        if not child.changed or child.finish_reason is not None or not child.told:
            return child.changed
        return len(child.token_ids) >= self.params.stream_interval

    def output(self) -> RequestOutput | None:
        """What to tell the caller now; None if nothing."""
        kind, finished = self.params.output_kind, self.finished
        if kind == "final_only" and not finished:
            return None
        delta = kind == "delta"
        children = [child for child in self.children if self._due(child)] if delta else self.children
        if not any(child.changed for child in children):
            return None
        prompt_logprobs = self.prompt_logprobs
        if delta:
            self.prompt_logprobs = None  # told once
        outputs = [_delta(child) if delta else _whole(child) for child in children]
        return replace(
            self.result,
            outputs=outputs,
            finished=finished,
            prompt_logprobs=prompt_logprobs,
            metrics=replace(self.result.metrics),
        )


def _delta(child: _Child) -> CompletionOutput:
    output = _completion(child, child.text.take() if child.text is not None else "", child.token_ids, child.logprobs)
    child.token_ids, child.told = [], True
    child.logprobs = None if child.logprobs is None else []
    return output


def _whole(child: _Child) -> CompletionOutput:
    if child.text is not None:
        child.parts = ["".join([*child.parts, child.text.take()])]
    logprobs = None if child.logprobs is None else list(child.logprobs)
    return _completion(child, "".join(child.parts), list(child.token_ids), logprobs)


def _completion(child: _Child, text: str, token_ids: list[int], logprobs: list[LogprobDict] | None) -> CompletionOutput:
    child.changed = False
    return CompletionOutput(
        index=child.index,
        text=text,
        token_ids=token_ids,
        cumulative_logprob=child.cumulative,
        logprobs=logprobs,
        finish_reason=child.finish_reason,
        stop_reason=child.stop_reason,
    )


def merge_outputs(old: RequestOutput, new: RequestOutput, *, delta: bool) -> RequestOutput:
    """Two outputs of one request as one; deltas are joined, else the newer one holds all."""
    if not delta:
        return new
    merged = {output.index: output for output in old.outputs}
    for output in new.outputs:
        before = merged.get(output.index)
        merged[output.index] = output if before is None else _join(before, output)
    outputs = [merged[index] for index in sorted(merged)]
    logprobs = new.prompt_logprobs if new.prompt_logprobs is not None else old.prompt_logprobs
    return replace(new, outputs=outputs, prompt_logprobs=logprobs)


def _join(old: CompletionOutput, new: CompletionOutput) -> CompletionOutput:
    old.token_ids += new.token_ids
    if old.logprobs is not None and new.logprobs is not None:
        old.logprobs += new.logprobs
    return replace(new, text=old.text + new.text, token_ids=old.token_ids, logprobs=old.logprobs)
