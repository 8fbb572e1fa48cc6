"""`/v1/embeddings`, and `/pooling` for whatever a model that encodes can do."""

from __future__ import annotations

import base64
from typing import Any

import ml_dtypes
import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from vjax.serving.dependencies import embeds, get_service, pools, read_json
from vjax.serving.pooled import head, run_inputs, usage
from vjax.serving.pooling_protocol import EmbeddingRequest, PoolingRequest
from vjax.serving.responses import json_response

router = APIRouter(dependencies=[read_json])

DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ORDERS: dict[str, Any] = {"native": "=", "little": "<", "big": ">"}


@router.post("/v1/embeddings", dependencies=[embeds])
async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """A vector for each text."""
    service = get_service(request)
    model, id = service.check_model(body.model), service.response_id("embd", request, body.request_id)
    outputs = await run_inputs(service, request, body, body.params(task="embed", dimensions=body.dimensions), id)
    data = [
        {"index": at, "object": "embedding", "embedding": encoded(one.outputs.data, body)}
        for at, one in enumerate(outputs)
    ]
    counted = usage(service, [one.prompt_token_ids for one in outputs])
    return json_response({**head(id, model), "data": data, "usage": counted})


@router.post("/pooling", dependencies=[pools])
async def pool(body: PoolingRequest, request: Request) -> Response:
    """What `task` gives for each text: a vector, probabilities, or a vector for each token."""
    service = get_service(request)
    model, id = service.check_model(body.model), service.response_id("pool", request, body.request_id)
    outputs = await run_inputs(service, request, body, body.params(task=body.task, dimensions=body.dimensions), id)
    data = [
        {"index": at, "object": "pooling", "data": encoded(one.outputs.data, body)} for at, one in enumerate(outputs)
    ]
    counted = usage(service, [one.prompt_token_ids for one in outputs])
    return json_response({**head(id, model), "data": data, "usage": counted})


def encoded(values: np.ndarray, body: EmbeddingRequest) -> Any:
    """Lists of numbers, or their bytes as base64."""
    if body.encoding_format == "float":
        return values.tolist()
    kind = np.dtype(DTYPES[body.embed_dtype])
    narrow = np.ascontiguousarray(values, np.float32).astype(kind)
    raw = narrow.view(np.dtype(f"u{kind.itemsize}"))  # numpy swaps the bytes of its own types only
    return base64.b64encode(raw.astype(raw.dtype.newbyteorder(ORDERS[body.endianness])).tobytes()).decode()
