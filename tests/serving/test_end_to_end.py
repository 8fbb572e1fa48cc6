"""`python -m vjax.serve` on the real engine: the golden tokens of families, through HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.goldens import load_case
from tests.goldens.gguf import gguf_case_names, gguf_checkpoint
from tests.serving.fakes import Running, events, free_port, wait_until_healthy

QUICK, SLOW = ("llama", "gemma3_text"), ("qwen2", "qwen3")
FIRST = gguf_case_names(QUICK[0])[0]
OPTIONS = [
    "--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--block-size", "4", "--warmup", "lazy",
    "--kv-cache-memory-bytes", "1MiB",
]  # fmt: skip


@contextlib.contextmanager
def serving(model: Path, log: Path, *flags: str) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "vjax.serve", str(model), "--port", str(port), *OPTIONS, *flags]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, text=True, cwd=Path(__file__).parents[2], start_new_session=True
        )
    server = Running(process, port)
    try:
        wait_until_healthy(server)
        yield server
    except AssertionError:
        print(log.read_text())
        raise
    finally:
        server.http.close()
        process.kill()
        process.wait()


def check_structured(server: Running, prompt: list[int]) -> None:
    """The last token of a grammar is shown; what ends a text is not."""
    body = {"prompt": prompt, "temperature": 1, "seed": 4, "n": 2, "max_tokens": 30}
    answer = server.post("/v1/completions", **body, structured_outputs={"regex": "[0-9]{3}!"}).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert all(re.fullmatch("[0-9]{3}!", text) for text in texts), texts
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    for form in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}},
        {"structured_outputs": {"json": schema, "disable_any_whitespace": True}},
    ):
        response = server.chat("hi", stream=True, temperature=0, **form)
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in events(response))
        if "response_format" in form:  # this model knows nothing better than white space, of which there is an end
            assert text.startswith("{")
        else:
            assert set(json.loads(text)) == {"a"}


def check_forced_calls(server: Running) -> None:
    """A model that knows nothing of tools calls one all the same."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "additionalProperties": False,
        "required": ["a"],
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("f", "g")]
    for choice in ("required", {"type": "function", "function": {"name": "g"}}):
        body = {
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 2,
            "top_k": 4,
            "seed": 1,
        }
        (one,) = server.chat("hi", **body).json()["choices"]
        (call,) = one["message"]["tool_calls"]
        assert call["function"]["name"] in (("f", "g") if choice == "required" else ("g",))
        assert call["function"]["arguments"].startswith("{")
        if one["finish_reason"] != "length":  # white space may take all the room that there is
            assert json.loads(call["function"]["arguments"])["a"] in ("x", "y")


@pytest.mark.parametrize(
    "name",
    [
        *(gguf_case_names(family)[0] for family in QUICK),
        *(pytest.param(gguf_case_names(family)[0], marks=pytest.mark.slow) for family in SLOW),
    ],
)
def test_golden_tokens(name: str, tmp_path: Path) -> None:
    golden = load_case(name)
    prompts = [prompt.tolist() for prompt in golden.prompts]
    wanted = golden.greedy.tolist()
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": len(wanted[0]), "ignore_eos": True}
    with serving(gguf_checkpoint(name, tmp_path), tmp_path / "log") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            model = client.models.list().data[0].id
            answer = client.completions.create(
                model=model,
                prompt=prompts,
                temperature=0,
                max_tokens=len(wanted[0]),
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
        assert [choice.model_extra["token_ids"] for choice in answer.choices] == wanted  # type: ignore[index]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == golden.greedy.size

        body = {"prompt": prompts[-1], "stream": True, "return_token_ids": True, **greedy}
        chunks = events(server.post("/v1/completions", **body))
        assert [t for chunk in chunks for t in chunk["choices"][0]["token_ids"]] == wanted[-1]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer.choices[-1].text
        check_chat(server, greedy)
        if name == FIRST:
            check_logprobs_of_named_tokens(server, prompts[0])
            check_beams(server, prompts[0], wanted[0])
            check_dialects(server, greedy["max_tokens"])
            check_structured(server, prompts[0])
            check_forced_calls(server)

        with server.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            read = [next(lines)]
            # To the whole group, as service managers do: the engine's process must leave the drain to the server.
            os.killpg(server.process.pid, signal.SIGTERM)
            read += lines
        assert read[-2:] == ["data: [DONE]", ""]
        assert '"error"' not in "".join(read)
        assert server.process.wait(30) == 0


def check_logprobs_of_named_tokens(server: Running, prompt: list[int]) -> None:
    """They are those that the likeliest tokens have."""
    body: dict[str, Any] = {"token_ids": prompt}
    top, named = (
        server.post("/inference/v1/generate", **body, sampling_params={"max_tokens": 1, "temperature": 0, **asked})
        for asked in ({"logprobs": 3}, {"logprob_token_ids": [7, 3]})
    )
    found = {one["token_id"]: one["logprob"] for one in named.json()["choices"][0]["logprobs"][0]["top_logprobs"]}
    wanted = [one["token_id"] for one in top.json()["choices"][0]["logprobs"][0]["top_logprobs"]]
    assert {7, 3} <= set(found)
    params = {"max_tokens": 1, "temperature": 0, "logprob_token_ids": wanted[::-1]}
    again = server.post("/inference/v1/generate", **body, sampling_params=params).json()["choices"][0]["logprobs"][0]
    same = {one["token_id"]: one["logprob"] for one in again["top_logprobs"]}
    for one in top.json()["choices"][0]["logprobs"][0]["top_logprobs"]:
        assert same[one["token_id"]] == pytest.approx(one["logprob"], abs=1e-5)


def check_beams(server: Running, prompt: list[int], greedy: list[int]) -> None:
    """One beam is greedy, and more find nothing worse."""
    body = {"prompt": prompt, "use_beam_search": True, "ignore_eos": True, "max_tokens": 4, "logprobs": 0}
    scores = {}
    for n in (1, 3):
        choices = server.post("/v1/completions", **body, n=n, return_token_ids=True).json()["choices"]
        assert len(choices) == n
        scores[n] = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
        if n == 1:
            assert choices[0]["token_ids"] == greedy[:4]
    assert scores[3] == sorted(scores[3], reverse=True)
    assert scores[3][0] >= scores[1][0] - 1e-5


def check_dialects(server: Running, tokens: int) -> None:
    """A chat says the same in each of them."""
    said = server.chat("ab", temperature=0, max_tokens=tokens).json()["choices"][0]["message"]["content"]
    answer = server.post("/v1/responses", input="ab", temperature=0, max_output_tokens=tokens).json()
    assert answer["output"][0]["content"][0]["text"] == said
    messages = [{"role": "user", "content": "ab"}]
    message = server.post("/v1/messages", messages=messages, temperature=0, max_tokens=tokens).json()
    assert "".join(block["text"] for block in message["content"]) == said


def check_chat(server: Running, greedy: dict[str, Any]) -> None:
    """A chat is the completion of what its template makes of it."""
    chat = server.chat("ab", **greedy, return_token_ids=True).json()
    assert chat["prompt_token_ids"]
    body = {"prompt": chat["prompt_token_ids"], "return_token_ids": True, **greedy}
    plain = server.post("/v1/completions", **body).json()
    assert plain["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"]
    assert plain["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert len(chat["choices"][0]["token_ids"]) == greedy["max_tokens"]
