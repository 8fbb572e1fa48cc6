"""Models that encode, over HTTP: vectors, classes, scores, ranks, and which routes there are."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.serving.fakes import Running, running
from tests.serving.test_errors import check

FAKES = "tests.serving.pooling_fakes"


@pytest.fixture(scope="module")
def embedder() -> Iterator[Running]:
    with running("--served-model-name", "fake", FAKE_ENGINE=f"{FAKES}:Embedder") as one:
        yield one


@pytest.fixture(scope="module")
def reranker() -> Iterator[Running]:
    template = "{{ instruction }}{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    with running("--api-key", "key", "--chat-template", template, FAKE_ENGINE=f"{FAKES}:Reranker") as one:
        one.http.headers["Authorization"] = "Bearer key"
        yield one


def data(response: httpx.Response, field: str = "embedding") -> list[Any]:
    assert response.status_code == 200, response.text
    rows = response.json()["data"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [row[field] for row in rows]


def test_openai_client(embedder: Running) -> None:
    """It asks for base64 and decodes it."""
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="fake", input=["abc", "aa"])
        assert [one.embedding for one in answer.data] == [[1, 1, 1, 0], [2, 0, 0, 0]]
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (5, 5)
        assert client.embeddings.create(model="fake", input="abc", dimensions=2).data[0].embedding == [1, 1]
        with pytest.raises(openai.BadRequestError, match="dimensions must be one of 2, 3"):
            client.embeddings.create(model="fake", input="abc", dimensions=4)


def test_inputs(embedder: Running) -> None:
    """Text, ids, lists of either, conversations."""
    path = "/v1/embeddings"
    assert data(embedder.post(path, input=[97, 98])) == [[1, 1, 0, 0]]
    assert data(embedder.post(path, input=[[97], [98, 98]])) == [[1, 0, 0, 0], [0, 2, 0, 0]]
    chats = [[{"role": "user", "content": "ab"}], [{"role": "user", "content": "d"}]]
    assert data(embedder.post(path, messages=chats[0])) == [[1, 1, 0, 0]]
    assert data(embedder.post(path, messages=chats)) == [[1, 1, 0, 0], [0, 0, 0, 1]]
    assert data(embedder.post("/pooling", input="ab", task="token_embed"), "data") == [[[1, 0, 0, 0], [0, 1, 0, 0]]]
    assert data(embedder.post("/pooling", input="ab"), "data") == [[1, 1, 0, 0]]
    assert data(embedder.post("/invocations", input="ab")) == [[1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("dtype", "endianness", "form"),
    [("float32", "little", "<4f"), ("float32", "big", ">4f"), ("float16", "big", ">4e")],
)
def test_base64(embedder: Running, dtype: str, endianness: str, form: str) -> None:
    body = {"encoding_format": "base64", "embed_dtype": dtype, "endianness": endianness}
    [found] = data(embedder.post("/v1/embeddings", input="abba", **body))
    assert struct.unpack(form, base64.b64decode(found)) == (2, 2, 0, 0)


def test_bfloat16(embedder: Running) -> None:
    body = {"encoding_format": "base64", "embed_dtype": "bfloat16", "endianness": "big"}
    [found] = data(embedder.post("/v1/embeddings", input="abba", **body))
    assert base64.b64decode(found) == bytes.fromhex("4000 4000 0000 0000")


def test_long_texts(embedder: Running) -> None:
    path, text = "/v1/embeddings", "a" * 30 + "b" * 30
    check(embedder.post(path, input=text), 400, "BadRequestError", "input_tokens")
    check(embedder.post(path, input="a" * 300), 400, "BadRequestError", "input")  # not even tokenised
    assert data(embedder.post(path, input=text, truncate_prompt_tokens=-1)) == [[30, 10, 0, 0]]
    assert data(embedder.post(path, input=text, truncate_prompt_tokens=20, truncation_side="left")) == [[0, 20, 0, 0]]
    assert data(embedder.post(path, input=[97] * 60, truncate_prompt_tokens=-1)) == [[40, 0, 0, 0]]
    check(embedder.post(path, input=[97] * 60), 400, "BadRequestError", "input_tokens")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input"),
        ("/v1/embeddings", {"input": [[97], []]}, "input"),
        ("/v1/embeddings", {"input": [9999]}, "input"),
        ("/v1/embeddings", {"input": [10**30]}, "input"),
        ("/v1/embeddings", {"input": ["a"] * 4097}, "input"),
        ("/v1/embeddings", {"messages": []}, "messages"),
        ("/v1/embeddings", {"messages": [[]]}, "messages"),
        ("/v1/embeddings", {"messages": [{"content": "a"}]}, "messages.0.role"),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}, "chat_template"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 41}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "priority": 10**30}, "priority"),
        ("/pooling", {"input": "a", "task": "encode"}, "task"),
        ("/pooling", {"input": "a", "task": "classify"}, "task"),
        ("/score", {"data_1": "a"}, "queries"),
        ("/score", {"data_1": ["a", "b"], "data_2": ["c", "d", "e"]}, "data_1"),
        ("/score", {"queries": [], "documents": "c"}, "queries"),
        ("/score", {"queries": "a", "items": [""]}, "items"),
        ("/score", {"queries": "a", "documents": "b", "instruction": "x"}, "instruction"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
    ],
)
def test_bad_values(embedder: Running, path: str, body: dict[str, Any], param: str) -> None:
    check(embedder.post(path, **body), 400, "BadRequestError", param)


def test_half_a_surrogate_pair(embedder: Running) -> None:
    headers = {"Content-Type": "application/json"}
    answer = embedder.http.post("/v1/embeddings", content=b'{"input": "a\\ud800"}', headers=headers)
    check(answer, 400, "Bad Request", "body.input")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "body"),
        ("/v1/embeddings", {"input": "a", "messages": []}, "body"),
        ("/v1/embeddings", {"input": "a", "normalize": True}, "body"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "body.encoding_format"),
        ("/rerank", {"query": "a"}, "body.documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "body.top_n"),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 0}, "body.max_tokens_per_doc"),
    ],
)
def test_bad_bodies(embedder: Running, path: str, body: dict[str, Any], param: str) -> None:
    check(embedder.post(path, **body), 400, "Bad Request", param)


def test_which_routes_there_are(embedder: Running, reranker: Running, server: Running) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    bodies = {
        "/v1/chat/completions": chat, "/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"},
        "/v1/messages": {**chat, "max_tokens": 1, "model": "fake"}, "/v1/embeddings": {"input": "a"},
        "/pooling": {"input": "a"}, "/classify": {"input": "a"}, "/score": {"queries": "a", "documents": "b"},
        "/v1/score": {"data_1": "a", "data_2": "b"}, "/rerank": {"query": "a", "documents": ["b"]},
    }  # fmt: skip
    generating = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
    wanted = {
        server: generating,
        embedder: {"/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank"},
        reranker: {"/pooling", "/classify", "/score", "/v1/score", "/rerank"},
    }
    for one, there in wanted.items():
        answers = {path: one.post(path, **body) for path, body in bodies.items()}
        assert {path for path, answer in answers.items() if answer.status_code == 200} == there
        for path in set(bodies) - there:
            assert (answers[path].status_code, answers[path].json()) == (404, {"detail": "Not Found"})


def test_cosines(embedder: Running) -> None:
    answer = embedder.post("/score", queries="ab", documents=["ab", "aabb", "a", "cd"])
    assert data(answer, "score") == pytest.approx([1, 1, 0.5**0.5, 0])
    assert answer.json()["usage"]["prompt_tokens"] == 2 + 9
    assert data(embedder.post("/v1/score", data_1=["a", "b"], data_2=["a", "a"]), "score") == pytest.approx([1, 0])
    body = {"query": "aaaaabbbbb", "documents": ["aabb", "bbbb", "ab"], "max_tokens_per_query": 5, "top_n": 2}
    ranked = embedder.post("/v2/rerank", **body, max_tokens_per_doc=2).json()["results"]
    assert [one["index"] for one in ranked] == [0, 2]  # of aaaaa, with aa, bb and ab
    assert [one["relevance_score"] for one in ranked] == pytest.approx([1, 0.5**0.5])
    assert ranked[1]["document"] == {"text": "ab"}


def test_pairs_by_a_template(reranker: Running) -> None:
    """`qb` and `da`, one text for each pair, after the instruction."""
    answer = reranker.post("/v1/rerank", query="b", documents=["b", "a"], instruction="aa")
    found = [(one["index"], one["relevance_score"]) for one in answer.json()["results"]]
    assert found == [(1, 3 / 6), (0, pytest.approx(2 / 6))]
    assert answer.json()["usage"]["total_tokens"] == 12
    check(reranker.post("/score", queries="a", documents="b", max_tokens_per_doc=1), 400, "BadRequestError")
    [row] = reranker.post("/classify", input="aab").json()["data"]
    assert row == {"index": 0, "label": "relevant", "probs": [pytest.approx(2 / 3)], "num_classes": 1}


def test_keys(reranker: Running) -> None:
    for path in ("/v2/rerank", "/score", "/pooling", "/v1/embeddings"):
        assert httpx.post(reranker.url + path, json={}, trust_env=False).status_code == 401


def test_failures_are_of_one_request(embedder: Running) -> None:
    for text in ("!fail", "!refuse"):
        check(embedder.post("/v1/embeddings", input=["a", text, "b"]), 500, "InternalServerError")
    assert data(embedder.post("/v1/embeddings", input="a")) == [[1, 0, 0, 0]]
    check(embedder.post("/v1/embeddings", model="nobody", input="a"), 404, "NotFoundError", "model")


def test_a_client_that_leaves(embedder: Running) -> None:
    before = embedder.metric("vllm:num_preemptions_total")
    with pytest.raises(httpx.ReadTimeout):
        embedder.http.post("/v1/embeddings", json={"input": ["!wait", "!wait"]}, timeout=0.3)
    embedder.wait_for("vllm:num_preemptions_total", before + 2)


def test_metrics(embedder: Running) -> None:
    names = ("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total")
    before = [embedder.metric(name) for name in names]
    embedder.post("/v1/embeddings", input=["abc", "ab"])
    assert [embedder.metric(name) - was for name, was in zip(names, before, strict=True)] == [2, 2, 5]
    assert embedder.metric("http_requests_total", handler="/v1/embeddings", status="2xx") > 0
