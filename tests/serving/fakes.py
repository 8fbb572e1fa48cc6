"""A real server over an engine without a model. `python -m tests.serving.fakes [flags]` is `vjax serve` with it.

It says the prompt again, each letter one further; the chat template ends prompts with `>`. With $FAKE_SCRIPT it says
what the last message is, and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.frontend.fakes import EOS, FakeEngine, byte_tokenizer
from vjax.cli_args import add_flags, from_flags
from vjax.config import EngineConfig
from vjax.engine.messages import EngineLimits, EngineRequest, EngineStats
from vjax.errors import VjaxError
from vjax.frontend.async_llm import AsyncLLM
from vjax.frontend.files import FrontendFiles
from vjax.serving.options import ServerOptions
from vjax.serving.server import serve
from vjax.tokenizing import Tokenizer

MODEL = "fake"
ENGINE = "tests.serving.fakes:ServingEngine"
CONTEXT = 200
START_TIMEOUT = 60.0


class ServingEngine(FakeEngine):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        time.sleep(float(os.environ.get("FAKE_LOAD_SECONDS", 0)))
        self.limits = EngineLimits(
            max_model_len=CONTEXT, vocab_size=EOS + 1, max_logprobs=5, max_num_seqs=8, num_pages=99,
            block_size=16, eos_token_ids=[EOS],
        )  # fmt: skip

        self.level, self.asleep = 0, set[str]()

    def stats(self) -> EngineStats:
        aborted = len(self.aborted)  # shown as preemptions, of which this engine has none
        return EngineStats(
            running=len(self.running), generation_tokens=self.tokens, preemptions=aborted, sleep_level=self.level
        )  # fmt: skip

    @property
    def has_work(self) -> bool:
        return bool(self.running) and not self.level

    def sleep(self, level: int = 1) -> None:
        self.level, self.asleep = level, {"weights", "kv_cache"}

    def wake_up(self, tags: list[str] | None = None) -> bool:
        self.asleep -= set(tags or self.asleep)
        self.level = self.level if self.asleep else 0
        return not self.asleep

    def start_profile(self, folder: str) -> None: ...
    def stop_profile(self) -> None: ...


SPECIAL = ("<|im_end|>", "<|other|>", "[THINK]", "[/THINK]", "<|channel|>", "<|message|>", "<|start|>", "<|end|>")
SCRIPT_TEMPLATE = (  # shows what was said before; with `tail` it begins the answer
    "{% for m in messages[:-1] %}{{ m.role }}:{{ m.reasoning_content }}|{{ m.content }}|{{ m.tool_calls | tojson }}\n"
    "{% endfor %}{{ tools | tojson }}\x02{{ messages[-1].content }}\x03{{ tail }}"
)


class ScriptEngine(ServingEngine):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        vocab = EOS + 3 + len(SPECIAL)
        self.limits = msgspec.structs.replace(self.limits, max_model_len=4000, vocab_size=vocab)

    def token(self, request: EngineRequest, position: int) -> int:
        ids = request.prompt_token_ids
        script = ids[ids.index(2) + 1 : ids.index(3)]
        return script[position] if position < len(script) else EOS


def script_tokenizer() -> Tokenizer:
    """Bytes, `<eos>`, `<think>` and `</think>`, which are not special, and tokens that are."""
    plain = byte_tokenizer()
    plain.backend.add_tokens(["<think>", "</think>"])
    plain.backend.add_special_tokens(list(SPECIAL))
    return Tokenizer(plain.backend, special_tokens={"eos_token": "<eos>"}, chat_templates={"default": SCRIPT_TEMPLATE})


def fake_llm(**generation_config: Any) -> AsyncLLM:
    script = bool(os.environ.get("FAKE_SCRIPT"))
    files = FrontendFiles(script_tokenizer() if script else byte_tokenizer(), generation_config)
    engine = "tests.serving.fakes:ScriptEngine" if script else os.environ.get("FAKE_ENGINE", ENGINE)
    return AsyncLLM(EngineConfig(model=MODEL), engine=engine, files=files)


class Running:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, text: str, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples of that name whose labels fit."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(f'{key}="{text}"' in sample for key, text in labels.items()):
                total += float(value)
        return total

    def wait_for(self, name: str, value: float, **labels: str) -> None:
        deadline = time.monotonic() + 10
        while self.metric(name, **labels) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name, **labels)}, not {value}"
            time.sleep(0.05)

    def end(self, timeout: float = 30) -> tuple[int, str]:
        """Exit code and stderr, once it ends by itself."""
        _, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, err


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def running(*flags: str, port: int | None = None, wait: bool = True, **environment: str) -> Iterator[Running]:
    """A server with these flags, up when the block starts, and gone after it."""
    port = port or free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.serving.fakes", "--port", str(port), *flags],
        stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], env={**os.environ, **environment},
    )  # fmt: skip
    server = Running(process, port)
    try:
        if wait:
            wait_until_healthy(server)
        yield server
    finally:
        server.http.close()
        process.kill()
        process.communicate()


def wait_until_healthy(server: Running) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.process.communicate()[1]
        with contextlib.suppress(httpx.TransportError):
            if server.http.get("/health").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the server did not start")


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end in `[DONE]`."""
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def main() -> int:
    parser = argparse.ArgumentParser()
    add_flags(parser, ServerOptions, "server")
    llm = fake_llm(**json.loads(os.environ.get("FAKE_GENERATION_CONFIG", "{}")))
    try:
        return serve(EngineConfig(model=MODEL), from_flags(ServerOptions, parser.parse_args()), llm)
    except VjaxError as error:
        print(f"vjax: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
