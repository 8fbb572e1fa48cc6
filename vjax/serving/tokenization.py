"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import Response

from vjax.frontend.inputs import check_ids, check_text
from vjax.serving.dependencies import get_service, read_json
from vjax.serving.protocol import DetokenizeRequest, TokenizeRequest
from vjax.serving.rendering import render
from vjax.serving.responses import json_response

router = APIRouter()


@router.post("/tokenize", dependencies=[read_json])
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The ids of a prompt or of a chat. Special tokens are added to prompts by default; a chat template writes its
    own."""
    service = get_service(request)
    service.check_model(body.model)
    tokenizer = service.tokenizer
    text = body.prompt if body.prompt is not None else await render(service, body)
    add = body.add_special_tokens if body.add_special_tokens is not None else body.prompt is not None
    check_text(text)
    tokens = await asyncio.to_thread(tokenizer.encode, text, add)
    return json_response(
        {
            "count": len(tokens),
            "max_model_len": service.llm.limits.max_model_len,
            "tokens": tokens,
            "token_strs": [tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None,
        }
    )


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """What tokenizer_config.json tells of a tokenizer, the chat template included; with
    `--enable-tokenizer-info-endpoint`."""
    service = get_service(request)
    if not service.options.enable_tokenizer_info_endpoint:
        raise HTTPException(404, "Not Found")
    tokenizer = service.tokenizer
    return json_response(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **tokenizer.special_tokens,
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": service.llm.limits.max_model_len,
            "add_bos_token": tokenizer.add_bos,
            "eos_token_ids": list(tokenizer.eos_token_ids),
            "chat_template": service.chat_template or tokenizer.chat_template,
        }
    )


@router.post("/detokenize", dependencies=[read_json])
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    service = get_service(request)
    service.check_model(body.model)
    tokens = check_ids(body.tokens, service.llm.limits.vocab_size) if body.tokens else []
    return json_response({"prompt": await asyncio.to_thread(service.tokenizer.decode, tokens, False)})
