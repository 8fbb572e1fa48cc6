"""Who answers: a server, through the `openai` client, or an engine started for it. Both stream pieces of text."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from vjax.config import EngineConfig
from vjax.errors import VjaxError

Message = dict[str, str]


@dataclass(slots=True)
class Answer:
    """What one answer took. Seconds; filled while its pieces are read."""

    started: float = field(default_factory=time.perf_counter)
    first: float | None = None
    total: float = 0.0
    tokens: int = 0
    text: str = ""

    def take(self, text: str, tokens: int | None = None) -> None:
        """`tokens`: all so far, where known; otherwise a piece counts as one."""
        now = time.perf_counter() - self.started
        self.first = now if self.first is None else self.first
        self.total = now
        self.tokens = self.tokens + 1 if tokens is None else tokens
        self.text += text

    def line(self) -> str:
        """For people: time to first token, and tokens a second after it."""
        if self.first is None:
            return "no answer"
        rate = (self.tokens - 1) / (self.total - self.first) if self.tokens > 1 and self.total > self.first else 0.0
        return f"first token after {self.first:.2f} s, {self.tokens} tokens, {rate:.1f} tokens/s"


class Backend(Protocol):
    """`sampling` holds temperature, top_p, max_tokens and seed, where given. Pieces are (text, is it reasoning)."""

    name: str

    def chat(
        self, messages: list[Message], sampling: dict[str, Any], answer: Answer
    ) -> Generator[tuple[str, bool], None, None]: ...
    def complete(
        self, prompt: str, sampling: dict[str, Any], answer: Answer
    ) -> Generator[tuple[str, bool], None, None]: ...
    def close(self) -> None: ...


class Server:
    """A server that speaks OpenAI's dialect."""

    def __init__(self, url: str, name: str | None, api_key: str | None) -> None:
        """`name` is the server's first model by default. Raises `VjaxError` when nobody answers."""
        try:
            import openai
        except ImportError:
            raise VjaxError('the openai client is missing: pip install "vjax[client]", or use --model') from None
        self._errors = openai.OpenAIError
        key = api_key or os.environ.get("VJAX_API_KEY") or os.environ.get("OPENAI_API_KEY") or "none"
        self._client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
        try:
            self.name = name or self._client.models.list().data[0].id
        except openai.APIConnectionError:
            raise VjaxError(
                f"no server answers at {url}. Start one (`vjax serve MODEL`), name another with --url, or load a model "
                "here with --model."
            ) from None
        except (openai.OpenAIError, IndexError) as error:
            raise VjaxError(f"{url}: {error}") from None

    def chat(
        self, messages: list[Message], sampling: dict[str, Any], answer: Answer
    ) -> Generator[tuple[str, bool], None, None]:
        body = {"messages": messages, **sampling}
        for choice in self._choices(self._client.chat.completions.create, body, answer):
            thought = getattr(choice.delta, "reasoning", None) or getattr(choice.delta, "reasoning_content", None)
            if thought or choice.delta.content:
                answer.take(choice.delta.content or "")
                yield thought or choice.delta.content, bool(thought)

    def complete(
        self, prompt: str, sampling: dict[str, Any], answer: Answer
    ) -> Generator[tuple[str, bool], None, None]:
        for choice in self._choices(self._client.completions.create, {"prompt": prompt, **sampling}, answer):
            answer.take(choice.text)
            yield choice.text, False

    def _choices(self, create: Any, body: dict[str, Any], answer: Answer) -> Iterator[Any]:
        try:
            with create(model=self.name, stream=True, stream_options={"include_usage": True}, **body) as stream:
                for chunk in stream:
                    if chunk.choices:
                        yield chunk.choices[0]
                    if chunk.usage:
                        answer.tokens = chunk.usage.completion_tokens
        except self._errors as error:
            raise VjaxError(str(error)) from None

    def close(self) -> None:
        self._client.close()


class Local:
    """An engine of our own, in a process beside this one."""

    def __init__(self, config: EngineConfig, llm: Any = None) -> None:
        """Loads the model. Raises `VjaxError`. `llm` replaces the engine made from `config`."""
        from vjax.frontend.async_llm import AsyncLLM

        self.name = config.model
        self._llm = llm or AsyncLLM(config)
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self._llm.start())
        except BaseException:
            self.close()
            raise

    def chat(
        self, messages: list[Message], sampling: dict[str, Any], answer: Answer
    ) -> Generator[tuple[str, bool], None, None]:
        prompt = self._tokenizer().render_chat(messages, add_generation_prompt=True)
        yield from self._stream(prompt, sampling, answer, add_special_tokens=False)

    def complete(
        self, prompt: str, sampling: dict[str, Any], answer: Answer
    ) -> Generator[tuple[str, bool], None, None]:
        yield from self._stream(prompt, sampling, answer, add_special_tokens=True)

    def _tokenizer(self) -> Any:
        if self._llm.tokenizer is None:
            raise VjaxError("text needs a tokenizer: leave --skip-tokenizer-init out.")
        return self._llm.tokenizer

    def _stream(
        self, prompt: str, sampling: dict[str, Any], answer: Answer, *, add_special_tokens: bool
    ) -> Generator[tuple[str, bool], None, None]:
        self._tokenizer()
        params = self._llm.get_default_sampling_params().clone(**{"max_tokens": None, **sampling}, output_kind="delta")
        outputs = self._llm.generate(prompt, params, uuid.uuid4().hex, add_special_tokens=add_special_tokens)
        tokens = 0
        with closing(_Awaited(self._runner, outputs)) as news:
            for output in news:
                (one,) = output.outputs
                tokens += len(one.token_ids)
                if one.token_ids:
                    answer.take(one.text, tokens)
                yield one.text, False

    def close(self) -> None:
        self._runner.run(self._llm.shutdown())
        self._runner.close()


class _Awaited:
    """An async generator as a plain iterator. Ctrl-C while it waits ends the request."""

    def __init__(self, runner: asyncio.Runner, outputs: Any) -> None:
        self._runner, self._outputs = runner, outputs

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                output = self._runner.run(self._next())
            except StopAsyncIteration:
                return
            yield output

    async def _next(self) -> Any:
        return await anext(self._outputs)

    def close(self) -> None:
        self._runner.run(self._outputs.aclose())
