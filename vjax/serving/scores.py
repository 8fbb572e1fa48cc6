"""`/classify`, `/score` and `/rerank`."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from vjax.errors import RequestError
from vjax.frontend.scores import Scoring, render_pair
from vjax.serving.dependencies import classifies, get_service, read_json, scores
from vjax.serving.pooled import head, inputs_of, prepare, run, run_inputs, usage
from vjax.serving.pooling_protocol import ClassifyRequest, PairFields, RerankRequest, ScoreRequest, check_count
from vjax.serving.rendering import RESERVED
from vjax.serving.responses import json_response
from vjax.serving.service import Service

router = APIRouter(dependencies=[read_json])


@router.post("/classify", dependencies=[classifies])
async def classify(body: ClassifyRequest, request: Request) -> Response:
    """The likeliest class of each text, and the probabilities of all."""
    service = get_service(request)
    model, id = service.check_model(body.model), service.response_id("classify", request, body.request_id)
    outputs = await run_inputs(service, request, body, body.params(task="classify"), id)
    labels = inputs_of(service).pooling.labels
    data = [
        {
            "index": at,
            "label": labels[int(np.argmax(one.outputs.data))],
            "probs": one.outputs.data.tolist(),
            "num_classes": len(labels),
        }
        for at, one in enumerate(outputs)
    ]
    counted = usage(service, [one.prompt_token_ids for one in outputs])
    return json_response({**head(id, model), "data": data, "usage": counted})


@router.post("/score", dependencies=[scores])
@router.post("/v1/score", dependencies=[scores])
async def score(body: ScoreRequest, request: Request) -> Response:
    """How well each pair of texts fits."""
    service = get_service(request)
    model, id = service.check_model(body.model), service.response_id("score", request, body.request_id)
    first, second, names = body.texts()
    found, tokens = await _run(service, request, body, id, first, second, names)
    data = [{"index": at, "object": "score", "score": value} for at, value in enumerate(found)]
    return json_response({**head(id, model), "data": data, "usage": usage(service, tokens)})


@router.post("/rerank", dependencies=[scores])
@router.post("/v1/rerank", dependencies=[scores])
@router.post("/v2/rerank", dependencies=[scores])
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Documents by how well they answer the query, the best first."""
    service = get_service(request)
    model, id = service.check_model(body.model), service.response_id("rerank", request, body.request_id)
    documents = check_count(body.documents, "documents")
    found, tokens = await _run(service, request, body, id, [body.query], documents, ("query", "documents"))
    order = sorted(range(len(found)), key=lambda at: -found[at])[: body.top_n or None]
    results = [{"index": at, "document": {"text": documents[at]}, "relevance_score": found[at]} for at in order]
    return json_response({"id": id, "model": model, "usage": usage(service, tokens), "results": results})


async def _run(
    service: Service, request: Request, body: PairFields, id: str, queries: list[str], documents: list[str],
    names: tuple[str, str],
) -> tuple[list[float], list[list[int]]]:  # fmt: skip
    """Scores by pair, and the tokens that were read."""
    inputs = inputs_of(service)
    variables = _variables(service, body)

    def render(query: str, document: str) -> str:
        return render_pair(service.tokenizer, service.chat_template, query, document, **variables)

    scoring = await asyncio.to_thread(
        Scoring, inputs, queries, documents, names=names, most_query=body.max_tokens_per_query,
        most_document=body.max_tokens_per_doc, render=render if service.chat_template is not None else None,
    )  # fmt: skip
    params, most = body.params(task=scoring.task), inputs.limits.max_model_len
    asked = params.truncate_prompt_tokens
    cut = most if asked in (None, -1) else asked
    each = [
        params if limit is None else params.clone(truncate_prompt_tokens=min(limit, most, cut))
        for limit in scoring.limits
    ]
    special = scoring.embeds or service.chat_template is None
    batch = await prepare(service, scoring.prompts, each, body, id, param=names[1], add_special_tokens=special)
    outputs = await run(service, request, batch)
    found = scoring.scores([one.outputs.data for one in outputs])
    return found, [one.prompt_token_ids for one in outputs]


def _variables(service: Service, body: PairFields) -> dict[str, Any]:
    """What a score template is given beside the texts. Raises `RequestError` where there is none."""
    variables = dict(body.chat_template_kwargs or {})
    if clash := sorted(RESERVED & set(variables)):
        raise RequestError(f"chat_template_kwargs may not set {clash[0]!r}.", "chat_template_kwargs")
    if body.instruction is not None:
        variables["instruction"] = body.instruction
    templated = service.chat_template is not None and "embed" not in inputs_of(service).pooling.tasks
    if variables and not templated:
        name = "instruction" if body.instruction is not None else "chat_template_kwargs"
        raise RequestError(f"{name} needs a classifier, and a score template (--chat-template).", name)
    if templated and (body.max_tokens_per_query or body.max_tokens_per_doc):
        name = "max_tokens_per_query" if body.max_tokens_per_query else "max_tokens_per_doc"
        raise RequestError(f"{name} does not go with a score template; use truncate_prompt_tokens.", name)
    return variables
