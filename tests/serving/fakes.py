"""A server over an engine without a model: a real tokenizer, a real engine process, tokens from a formula.

Run as a program it is `vjax serve` with that engine: `python -m tests.serving.fakes [flags]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cache
from typing import Any

import httpx

from tests.frontend.fakes import FakeEngine
from tests.tokenizing.vocabularies import CHATML, byte_level
from vjax.cli_args import add_flags, from_flags
from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits
from vjax.errors import VjaxError
from vjax.frontend.async_llm import AsyncLLM
from vjax.frontend.files import FrontendFiles
from vjax.serving.options import ServerOptions
from vjax.serving.server import serve
from vjax.tokenizing.tokenizer import Tokenizer

ENGINE = "tests.serving.fakes:ServingEngine"
MODEL = "fake"
CONTEXT = 200


@cache
def tokenizer() -> Tokenizer:
    backend = byte_level()
    tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    return Tokenizer(backend, (), tokens, {"default": CHATML})


class ServingEngine(FakeEngine):
    """Says the prompt again, each token's id one higher. Prompts with `!raise`, `!exit`, `!fail` misbehave, as in FakeEngine."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        own = tokenizer()
        self.limits = EngineLimits(
            max_model_len=CONTEXT, vocab_size=own.vocab_size, max_logprobs=5, max_num_seqs=8, num_pages=99,
            block_size=16, eos_token_ids=list(own.eos_token_ids),
        )  # fmt: skip

    def _one(self, request: Any, done: int) -> Any:
        prompt = tokenizer().decode(request.prompt_token_ids)
        for word in ("!raise", "!exit", "!fail"):  # the parent knows them as bytes
            if word in prompt:
                request.prompt_token_ids = list(word.encode())
        return super()._one(request, done)


def fake_llm(**generation_config: Any) -> AsyncLLM:
    return AsyncLLM(EngineConfig(model=MODEL), engine=ENGINE, files=FrontendFiles(tokenizer(), generation_config))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end in `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def main() -> int:
    parser = argparse.ArgumentParser()
    add_flags(parser, ServerOptions, "server")
    try:
        return serve(EngineConfig(model=MODEL), from_flags(ServerOptions, parser.parse_args()), fake_llm())
    except VjaxError as error:
        print(f"vjax: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
