"""Real GGUF files against llama.cpp's own words on them (`tests/real/generate.py`): log-probabilities of its greedy
continuations, whole and through the engine, and answers that make sense. `make test-slow`.

llama.cpp had the weights in float32, as the plain pass has. The engine on a CPU multiplies packed weights with
activations rounded to 8 bits, so its band is wider.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.real import DATA, MODELS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # the first test of a model fetches it

FLOAT32 = (0.02, 0.002)  # nats: largest, mean
PACKED = (0.2, 0.05)


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def llm(name: str) -> Iterator[vjax.LLM]:
    llm = vjax.LLM(name, max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64)
    yield llm
    llm.shutdown()


def said(name: str) -> dict[str, dict[str, Any]]:
    return json.loads((DATA / f"{name}.json").read_text())["texts"]


def check(name: str, ours: dict[str, list[float]], band: tuple[float, float]) -> None:
    """`ours`: by text, the log-probability of each token that continues the prompt."""
    errors = np.concatenate([np.subtract(ours[title], text["logprobs"]) for title, text in said(name).items()])
    assert len(errors) > 100
    largest, mean = float(np.abs(errors).max()), float(np.abs(errors).mean())
    assert largest < band[0]
    assert mean < band[1]


def test_logprobs_of_the_plain_pass(name: str) -> None:
    model, params = vjax.load(name)
    apply = jax.jit(model.apply)
    ours = {}
    for title, text in said(name).items():
        tokens, start = text["prompt"] + text["tokens"], len(text["prompt"])
        padded = np.zeros(80, np.int32)  # one shape for all
        padded[: len(tokens)] = tokens
        logprobs = np.asarray(jax.nn.log_softmax(apply(params, jnp.asarray(padded)[None])[0]))
        ours[title] = logprobs[np.arange(start - 1, len(tokens) - 1), text["tokens"]].tolist()
    check(name, ours, FLOAT32)


def test_logprobs_through_the_engine(name: str, llm: vjax.LLM) -> None:
    """All texts at once, in chunks of 64 tokens, with the weights as the engine holds them."""
    texts = said(name)
    params = vjax.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompts = [{"prompt_token_ids": text["prompt"] + text["tokens"]} for text in texts.values()]
    ours = {}
    for (title, text), output in zip(texts.items(), llm.generate(prompts, params), strict=True):
        assert output.prompt_logprobs is not None
        found = output.prompt_logprobs[len(text["prompt"]) :]
        ours[title] = [(row or {})[token].logprob for row, token in zip(found, text["tokens"], strict=True)]
    check(name, ours, PACKED)


def test_text_becomes_the_tokens_that_llamacpp_was_asked_about(name: str, llm: vjax.LLM) -> None:
    tokenizer = llm.get_tokenizer()
    for text in said(name).values():
        assert tokenizer.encode(tokenizer.decode(text["prompt"], skip_special_tokens=False)) == text["prompt"]


def test_greedy_answers_are_sensible(name: str, llm: vjax.LLM) -> None:
    def answer(question: str, tokens: int) -> str:
        params = vjax.SamplingParams(temperature=0, max_tokens=tokens)
        [output] = llm.chat([{"role": "user", "content": question}], params)
        return output.outputs[0].text

    assert "Paris" in answer("What is the capital of France?", 40)
    if "coder" in name:
        text = answer("Write a Python function is_prime(n). Answer with one code block only.", 300)
        scope: dict[str, Any] = {}
        exec(text.split("```python\n")[1].split("```")[0], scope)
        assert [n for n in range(2, 30) if scope["is_prime"](n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
