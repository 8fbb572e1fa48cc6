"""A tokenizer of bytes and an engine without a model: its tokens are a plain function of prompt and position."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits, EngineOutput, EngineRequest, EngineStats, TokenLogprobs, Vocabulary
from vjax.errors import ModelError, RequestError
from vjax.tokenizing import Tokenizer

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
EOS = 256
VOCAB = 300
LIMITS = EngineLimits(
    max_model_len=64, vocab_size=VOCAB, max_logprobs=5, max_num_seqs=4, num_pages=99, block_size=4, eos_token_ids=[EOS]
)


def byte_tokenizer() -> Tokenizer:
    """Ids 0-255 are bytes, 256 is `<eos>`, the rest mean nothing."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    vocab = {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, special_tokens={"eos_token": "<eos>"}, chat_templates={"default": TEMPLATE})


def letter(prompt: list[int], position: int) -> int:
    """What the fake engine says at an output position: the prompt again, each letter one further."""
    source = prompt[position % len(prompt)]
    return source + 1 if source < 255 else source


def row(token: int, named: list[int] | None = None) -> TokenLogprobs:
    """`named` tokens get -1, -2, ..."""
    if named:
        return TokenLogprobs(token, -0.5, 2, named, [-1.0 - at for at in range(len(named))])
    return TokenLogprobs(token, -0.5, 2, [token + 1, token], [-0.25, -0.5])


class FakeEngine:
    """Prompts that start with `!` misbehave: see `add` and `step`."""

    def __init__(self, config: EngineConfig) -> None:
        if config.model == "broken":
            raise ModelError("model: this one is broken.")
        if config.model == "crash":
            os._exit(3)
        if config.model == "hang":
            time.sleep(600)
        self.limits = LIMITS
        self.delay = float(os.environ.get("FAKE_STEP_SECONDS", 0))
        self.running: dict[str, tuple[EngineRequest, int]] = {}
        self.aborted: list[str] = []
        self.tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def add(self, request: EngineRequest) -> None:
        if bytes(t & 255 for t in request.prompt_token_ids) == b"!refuse":
            raise RequestError("refused by the fake.")
        self.running[request.request_id] = (request, 0)

    def teach(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def abort(self, request_ids: Iterable[str]) -> None:
        for one in request_ids:
            self.aborted.append(one)
            self.running.pop(one, None)

    def token(self, request: EngineRequest, position: int) -> int:
        return letter(request.prompt_token_ids, position)

    def step(self) -> list[EngineOutput]:
        time.sleep(self.delay)
        return [self._one(request, done) for request, done in list(self.running.values())]

    def _one(self, request: EngineRequest, done: int) -> EngineOutput:
        start = bytes(t & 255 for t in request.prompt_token_ids)
        if start == b"!raise":
            raise RuntimeError("the device fell over")
        if start == b"!exit":
            os._exit(7)
        if start.rstrip(b">") == b"!fail" and done == 2:
            del self.running[request.request_id]
            return EngineOutput(request.request_id, [], finish_reason="error", error="no luck")
        token = self.token(request, done)
        self.tokens += 1
        reason: str | None = None
        stop_reason: int | str | None = None
        if token in request.eos_token_ids and not request.params.ignore_eos:
            reason = "stop"
        elif token in (request.params.stop_token_ids or ()):
            reason, stop_reason = "stop", token
        elif done + 1 == request.params.max_tokens:
            reason = "length"
        elif request.params.repetition_detection is not None and done == 2:
            reason, stop_reason = "repetition", "repetition_detected"
        self.running[request.request_id] = (request, done + 1)
        if reason:
            del self.running[request.request_id]
        prompt = request.prompt_token_ids[1:] if request.params.prompt_logprobs is not None and not done else None
        return EngineOutput(
            request.request_id,
            [token],
            new_logprobs=[row(token, request.params.logprob_token_ids)]
            if request.params.logprobs is not None
            else None,
            prompt_logprobs=prompt and [row(one) for one in prompt],
            finish_reason=reason,
            stop_reason=stop_reason,
            scheduled_time=time.monotonic(),
        )

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.running), generation_tokens=self.tokens)

    def reset_prefix_cache(self, preempt: bool = False) -> bool:
        return preempt or not self.running

    def shutdown(self) -> None:
        if path := os.environ.get("FAKE_SHUTDOWN_FILE"):
            Path(path).write_text("bye")
