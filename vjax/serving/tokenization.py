"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from vjax.frontend.inputs import check_ids, check_text
from vjax.serving.chat import render
from vjax.serving.context import Context
from vjax.serving.protocol import DetokenizeRequest, TokenizeRequest


def routes(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        context.check_model(body.model)
        if body.messages is not None:
            text = render(
                context,
                body.messages,
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
                continue_final_message=body.continue_final_message,
                **(body.chat_template_kwargs or {}),
            )
            special = bool(body.add_special_tokens)
        else:
            text, special = body.prompt or "", body.add_special_tokens is not False
        check_text(text)
        tokens = context.tokenizer.encode(text, add_special_tokens=special)
        texts = [context.tokenizer.token_text(t) for t in tokens] if body.return_token_strs else None
        limit = context.llm.limits.max_model_len
        return {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": texts}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        context.check_model(body.model)
        tokens = check_ids(body.tokens, context.llm.limits.vocab_size) if body.tokens else []
        return {"prompt": context.tokenizer.decode(tokens, skip_special_tokens=False)}

    return router
