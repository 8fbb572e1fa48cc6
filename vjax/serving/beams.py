"""Beam search over HTTP: one answer of `n` beams, made of many engine requests of one token each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from vjax.errors import RequestError
from vjax.frontend.beam_search import Beams, BeamSearchParams, BeamSearchSequence
from vjax.frontend.inputs import PreparedRequest
from vjax.outputs import CompletionOutput, LogprobDict, RequestMetrics, RequestOutput
from vjax.sampling_params import SamplingParams
from vjax.serving.protocol import GenerationRequest

if TYPE_CHECKING:
    from vjax.frontend.async_llm import AsyncLLM


def make_beams(prepared: PreparedRequest, body: GenerationRequest, max_logprobs: int) -> None:
    """Turn a prepared request into a search of `body.n` beams. Raises `RequestError` naming the field."""
    width = 1 if body.n is None else body.n
    try:
        prepared.beam = BeamSearchParams(
            beam_width=width,
            max_tokens=prepared.params.max_tokens or 1,
            ignore_eos=prepared.params.ignore_eos,
            length_penalty=body.length_penalty,
            include_stop_str_in_output=prepared.params.include_stop_str_in_output,
        )
        prepared.beam.check_against(max_logprobs)
    except RequestError as error:
        raise RequestError(str(error), "n" if error.param == "beam_width" else error.param) from None
    # For whoever counts continuations; no engine request has these.
    prepared.params = prepared.params.clone(n=width, temperature=1.0)


async def run_beams(llm: AsyncLLM, prepared: PreparedRequest, running: set[str]) -> AsyncGenerator[RequestOutput, None]:
    """The search's only output. `running` gets the ids of the engine requests, for whoever has to abort them."""
    search, wanted = prepared.beam, prepared.params.logprobs
    assert search is not None
    first = prepared.children[0]
    beams = Beams(prepared.prompt_token_ids, search, first.eos_token_ids)
    step = search.step_params().clone(detokenize=wanted is not None)
    metrics, cached = RequestMetrics(arrival_time=prepared.arrival_time), 0
    while beams.live:
        outputs = await _extend(llm, prepared, beams, step, running)
        if metrics.first_token_time is None:
            metrics.scheduled_time = outputs[0].metrics.scheduled_time
            metrics.first_token_time, cached = time.monotonic(), outputs[0].num_cached_tokens
        rows = [output.outputs[0].logprobs for output in outputs]
        if any(output.outputs[0].finish_reason == "abort" for output in outputs) or not all(rows):
            beams.close("abort")
        else:
            beams.advance([row[0] for row in rows if row])
    metrics.finished_time = time.monotonic()
    yield RequestOutput(
        request_id=prepared.request_id,
        prompt=prepared.prompt,
        prompt_token_ids=prepared.prompt_token_ids,
        outputs=[_completion(llm, prepared, beams, at, one) for at, one in enumerate(beams.best())],
        finished=True,
        num_cached_tokens=cached,
        metrics=metrics,
    )


async def _extend(
    llm: AsyncLLM, prepared: PreparedRequest, beams: Beams, step: SamplingParams, running: set[str]
) -> list[RequestOutput]:
    """One token after every live beam."""
    first = prepared.children[0]

    async def one(at: int, tokens: list[int]) -> RequestOutput:
        id = f"{prepared.request_id}-beam-{beams.steps}-{at}"
        part = await llm.prepare(tokens, step, id, priority=first.priority, cache_salt=first.cache_salt)
        running.add(id)
        try:
            return [output async for output in llm.generate(part)][-1]
        finally:
            running.discard(id)

    tasks = [asyncio.create_task(one(at, beam.tokens)) for at, beam in enumerate(beams.live)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _completion(
    llm: AsyncLLM, prepared: PreparedRequest, beams: Beams, index: int, sequence: BeamSearchSequence
) -> CompletionOutput:
    params, ids = prepared.params, beams.output_ids(sequence)
    text = ""
    if llm.tokenizer is not None:
        ids_of_text, skip = beams.text_ids(sequence), params.skip_special_tokens
        if skip and prepared.shown_special_ids:
            skipped = llm.tokenizer.special_ids - prepared.shown_special_ids
            ids_of_text, skip = [id for id in ids_of_text if id not in skipped], False
        text = llm.tokenizer.decode(ids_of_text, skip, params.spaces_between_special_tokens)
    logprobs = None
    if params.logprobs is not None:
        logprobs = [_best(row, token, params.logprobs) for row, token in zip(sequence.logprobs, ids, strict=True)]
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=ids,
        cumulative_logprob=sequence.cum_logprob,
        logprobs=logprobs,
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
    )


def _best(row: LogprobDict, token: int, top: int) -> LogprobDict:
    """The beam's own token first, then the likeliest."""
    ranked = sorted(row.items(), key=lambda item: -item[1].logprob)
    return {token: row[token], **dict(ranked[:top] if top != -1 else ranked)}
