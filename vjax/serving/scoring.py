"""`/generative_scoring`: how likely a model finds each of some tokens after a query with an item."""

from __future__ import annotations

import math
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from vjax.errors import RequestError
from vjax.outputs import LogprobDict
from vjax.sampling_params import MAX_LOGPROB_IDS, SamplingParams
from vjax.serving.completions import MAX_PROMPTS
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.errors import ApiError
from vjax.serving.protocol import GenerationRequest, Many
from vjax.serving.responses import Usage, json_response

router = APIRouter(dependencies=[read_json])


class ScoringRequest(BaseModel):
    """`query` and `items`: all text, or all token ids."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    query: str | Many[int]
    items: Many[str] | Many[Many[int]] = Field(min_length=1, max_length=MAX_PROMPTS)
    label_token_ids: Many[int] = Field(min_length=1, max_length=MAX_LOGPROB_IDS)
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    request_id: str | None = None
    cache_salt: str | None = None
    priority: int = 0


@router.post("/generative_scoring")
async def score(body: ScoringRequest, request: Request) -> Response:
    """For each item the probabilities of the labels as the next token: among each other with `apply_softmax`, else
    among all tokens. `score` is the first label's."""
    service = get_service(request)
    model = service.check_model(body.model)
    id = service.response_id("generative-scoring", request, body.request_id)
    params = SamplingParams(
        temperature=0.0, max_tokens=1, ignore_eos=True, logprob_token_ids=body.label_token_ids, output_kind="final_only"
    )
    common = GenerationRequest(priority=body.priority, cache_salt=body.cache_salt)
    batch = []
    for at, item in enumerate(body.items):
        batch.append(
            await service.prepare(
                _prompt(body, item, at),
                params,
                f"{id}-{at}",
                common,
                default_max_tokens=None,
                add_special_tokens=body.add_special_tokens,
            )
        )
    usage, data = Usage(), []
    for at, output in enumerate(await service.collect(request, batch)):
        usage.add(at, output)
        (one,) = output.outputs
        if not one.logprobs:
            raise ApiError(503, "the server stopped before all items were scored.")
        found = probabilities(one.logprobs[0], body.label_token_ids, body.apply_softmax)
        data.append({"index": at, "object": "score", "score": found[0], "label_probabilities": found})
    head = {"id": id, "object": "list", "created": int(time.time()), "model": model}
    return json_response({**head, "data": data, "usage": usage.body(service.options)})


def probabilities(row: LogprobDict, labels: list[int], among_labels: bool) -> list[float]:
    values = [row[label].logprob for label in labels]
    best = max(values) if among_labels else 0.0
    weights = [math.exp(value - best) for value in values]
    total = sum(weights) if among_labels else 1.0
    return [weight / total for weight in weights]


def _prompt(body: ScoringRequest, item: Any, at: int) -> Any:
    query = body.query
    if isinstance(query, str) != isinstance(item, str):
        raise RequestError(f"items.{at} must be text or token ids as the query is.", f"items.{at}")
    return item + query if body.item_first else query + item
