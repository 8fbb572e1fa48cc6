"""From texts to requests of an engine that encodes, and from its answers to outputs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vjax.engine.messages import EngineLimits, EngineOutput, Pooled, PoolRequest
from vjax.errors import EngineDeadError, RequestError, VjaxError
from vjax.frontend.inputs import Prompt, check_ids, check_text, split_prompt
from vjax.outputs import PoolingOutput, PoolingRequestOutput
from vjax.pooling_params import PoolingParams, not_cut

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer


class AbortedError(VjaxError):
    """A request that was ended before it was done."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that the model reads together, and how many tokens of each it gets."""

    first: str
    second: str
    most_first: int | None = None
    most_second: int | None = None


@dataclass(slots=True)
class PreparedPooling:
    """A text that passed every check. `pieces`: itself, or the parts that a long one is encoded in."""

    request_id: str
    prompt_token_ids: list[int]
    pieces: list[PoolRequest]
    normalizes: bool
    arrival_time: float
    scheduled_time: float | None = None

    def output(self, arrays: Sequence[np.ndarray]) -> PoolingRequestOutput:
        """The answer. That of several pieces is their mean, weighted by their tokens."""
        data = arrays[0]
        if len(arrays) > 1:
            weights = [len(piece.prompt_token_ids) for piece in self.pieces]
            data = np.average(np.stack(arrays), axis=0, weights=weights).astype(np.float32)
            if self.normalizes:
                data = data / np.float32(max(float(np.linalg.norm(data)), 1e-12))
        return PoolingRequestOutput(self.request_id, PoolingOutput(data), self.prompt_token_ids)


class PoolingInputs:
    """Tokenises and validates. Thread-safe: it holds no state of a request."""

    def __init__(self, tokenizer: Tokenizer | None, limits: EngineLimits, *, lower_case: bool = False) -> None:
        assert limits.pooling is not None
        self.tokenizer, self.limits, self.pooling = tokenizer, limits, limits.pooling
        self._lower_case = lower_case

    @property
    def scores(self) -> bool:
        """Whether it can tell how well a document answers a query."""
        return "embed" in self.pooling.tasks or len(self.pooling.labels) == 1

    def process(
        self, request_id: str, prompt: Prompt | Pair, params: PoolingParams, *, priority: int = 0,
        add_special_tokens: bool = True, param: str = "prompt",
    ) -> PreparedPooling:  # fmt: skip
        """Raises `RequestError` naming the field, `param` for the text itself."""
        arrival, task = time.monotonic(), self.check(params)
        if type(priority) is not int or not -(2**31) <= priority < 2**31:
            raise RequestError(f"priority must be a 32-bit integer, got {priority!r}.", "priority")
        most = self._most(params)
        second: int | None = None
        text, ids, _ = (None, None, None) if isinstance(prompt, Pair) else split_prompt(prompt)
        if isinstance(prompt, Pair):
            ids, second = self._pair(prompt, most, params.truncation_side == "left", param)
        elif ids is None:
            ids = self._encode(text or "", most, params.truncation_side == "left", add_special_tokens, param)
        try:
            ids = check_ids(ids, self.limits.vocab_size)
        except RequestError as error:
            raise RequestError(str(error), param) from None
        if most is not None and len(ids) > most:  # of ids; of text what special tokens alone take up
            ids = ids[-most:] if params.truncation_side == "left" else ids[:most]
        normalizes = self.pooling.normalizes if params.use_activation is None else params.use_activation
        return PreparedPooling(
            request_id, ids, self._pieces(request_id, ids, second, task, params, priority, arrival), normalizes, arrival
        )

    def check(self, params: PoolingParams) -> str:
        """The task that is asked for. Raises `RequestError` for what this model cannot do."""
        tasks = self.pooling.tasks
        task = params.task or tasks[0]
        if task not in tasks:
            raise RequestError(f"task must be one of {', '.join(tasks)} for this model, got {task!r}.", "task")
        if params.dimensions is not None:
            why = not_cut(params.dimensions, self.pooling.width, self.pooling.cut, self.pooling.sizes)
            if why or task == "classify":
                raise RequestError(why or "classes have no dimensions.", "dimensions")
        return task

    def _most(self, params: PoolingParams) -> int | None:
        keep, most = params.truncate_prompt_tokens, self.limits.max_model_len
        if keep is not None and keep > most:
            raise RequestError(
                f"truncate_prompt_tokens={keep} is more than the {most} tokens that the model takes.",
                "truncate_prompt_tokens",
            )
        return most if keep == -1 else keep

    def _encode(self, text: str, most: int | None, left: bool, add_special_tokens: bool, param: str) -> list[int]:
        tokenizer = self._tokenizer(param)
        longest = self.pooling.max_embed_len or self.limits.max_model_len
        text = self._fitting(text, longest, most, left, param)
        return tokenizer.encode_within(text, most=most, left=left, add_special_tokens=add_special_tokens)[0]

    def _pair(self, pair: Pair, most: int | None, left: bool, param: str) -> tuple[list[int], int | None]:
        tokenizer, longest = self._tokenizer(param), self.limits.max_model_len
        limits = [most if limit is None else limit for limit in (pair.most_first, pair.most_second)]
        first, second = (
            self._fitting(text, longest, limit, left, param)
            for text, limit in zip((pair.first, pair.second), limits, strict=True)
        )
        if self.pooling.joined and pair.most_first is None and pair.most_second is None:
            return tokenizer.encode_within(first + second, most=most, left=left)[0], None
        return tokenizer.encode_within(
            first, second, most=most, left=left, most_text=pair.most_first, most_pair=pair.most_second
        )

    def _tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError("this engine runs without a tokenizer: give token ids.", param)
        return self.tokenizer

    def _fitting(self, text: str, longest: int, most: int | None, left: bool, param: str) -> str:
        """Refuses, before the work of tokenising it, text that no tokenisation fits; text that will be cut anyway loses
        what lies far behind."""
        assert self.tokenizer is not None
        check_text(text, param)
        text = text.lower() if self._lower_case else text
        piece = self.tokenizer.max_token_length
        if most is not None:
            room = 2 * piece * most
            return text[-room:] if left else text[:room]
        if len(text) > longest * piece:
            raise RequestError(
                f"{param} has {len(text)} characters; {longest} tokens hold at most {longest * piece}. Shorten it, or "
                "give truncate_prompt_tokens.",
                param,
            )
        return text

    def _pieces(
        self, request_id: str, ids: list[int], second: int | None, task: str, params: PoolingParams, priority: int,
        arrival: float,
    ) -> list[PoolRequest]:  # fmt: skip
        most, longest = self.limits.max_model_len, self.pooling.max_embed_len
        if len(ids) > most and not (longest is not None and task == "embed" and len(ids) <= longest):
            room = longest if longest is not None and task == "embed" else most
            raise RequestError(
                f"a text has {len(ids)} tokens; the model takes {room}. Shorten it, or give truncate_prompt_tokens.",
                "input_tokens",
            )
        parts = [ids[at : at + most] for at in range(0, len(ids), most)]
        return [
            PoolRequest(
                request_id if len(parts) == 1 else f"{request_id}_{at}", part, task, params.dimensions,
                params.use_activation, second, priority, arrival,
            )
            for at, part in enumerate(parts)
        ]  # fmt: skip


def as_array(pooled: Pooled) -> np.ndarray:
    return np.frombuffer(pooled.data, np.float32).reshape(pooled.shape)


class PoolingFutures:
    """Pieces that are under way, for an asyncio front end."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[EngineOutput]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, pieces: Sequence[PoolRequest]) -> list[asyncio.Future[EngineOutput]]:
        """Raises `RequestError` for an id in use."""
        if any(piece.request_id in self._open for piece in pieces):
            raise RequestError(f"request id {pieces[0].request_id!r} is in use.", "request_id")
        loop = asyncio.get_running_loop()
        for piece in pieces:
            self._open[piece.request_id] = loop.create_future()
        return [self._open[piece.request_id] for piece in pieces]

    def settle(self, outputs: Iterable[EngineOutput]) -> list[EngineOutput]:
        """Takes its own out of an engine's outputs; the rest."""
        rest = []
        for output in outputs:
            future = self._open.pop(output.request_id, None)
            if future is None:
                rest.append(output)
            elif not future.done():
                if output.pooled is not None:
                    future.set_result(output)
                else:
                    future.set_exception(VjaxError(f"the engine failed: {output.error}"))
        return rest

    def forget(self, ids: Iterable[str]) -> list[str]:
        """Those of the ids that were open."""
        return [one for one in ids if self._open.pop(one, None) is not None]

    def fail(self, error: EngineDeadError) -> None:
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)
        self._open.clear()

    def abort(self, request_id: str) -> list[str]:
        """The pieces of a request that were open; whoever waits for it gets an error."""
        found = [one for one in self._open if one == request_id or one.rpartition("_")[0] == request_id]
        for one in found:
            future = self._open.pop(one)
            if not future.done():
                future.set_exception(AbortedError("the request was aborted."))
        return found

    def ids(self) -> list[str]:
        return list(self._open)
