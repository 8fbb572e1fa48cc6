"""Bad requests: the status, the error object, and a server that goes on."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.serving.fakes import Running, events, running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "abc"}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]}]
TOOL = {"type": "function", "function": {"name": "f"}}
BIG = 10**30


def check(response: Any, status: int, kind: str, param: str | None = None) -> str:
    """The message of a well-formed error."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (kind, status), error
    if param is not None:
        assert error["param"] == param, error
    message: str = error["message"]
    assert message
    assert "Traceback" not in message
    return message


@pytest.fixture(autouse=True)
def goes_on(server: Running) -> Any:
    yield
    assert server.chat("abc", max_tokens=1).json()["choices"][0]["message"]["content"] == "b"


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_unknown_model(server: Running, path: str) -> None:
    body: dict[str, Any] = {"model": "nobody", "prompt": "a", "messages": MESSAGES, "tokens": [1]}
    if path == "/tokenize":
        del body["messages"]
    message = check(server.post(path, **body), 404, "NotFoundError", "model")
    assert "nobody" in message


def test_an_empty_model_name_is_the_first(server: Running) -> None:
    assert server.post(TEXT, model="", prompt="a", max_tokens=1).json()["model"] == "fake"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 20000}, "n"),
        ({"temperature": 0, "n": 2}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 500}, "max_tokens"),
        ({"max_tokens": 198}, "input_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [999]}, "allowed_token_ids"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words"),
        ({"prompt_logprobs": 9}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 900}, "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": BIG}, "priority"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"guided": "a"}}, "structured_outputs.guided"),
        ({"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}, "structured_outputs.json"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"structural_tag": {"format": {"type": "poem"}}}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}}, "response_format"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_bad_values(server: Running, path: str, body: dict[str, Any], param: str) -> None:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "abc>"}
    check(server.post(path, **prompt, **body), 400, "BadRequestError", param)
    check(server.post(path, **prompt, **body, stream=True), 400, *_streamed(param))


def _streamed(param: str) -> tuple[str, str]:
    """prompt_logprobs cannot be streamed at all, which is found earlier."""
    return ("Bad Request", "body") if param == "prompt_logprobs" else ("BadRequestError", param)


BAD_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"uniqueItems": True, "type": "array"}}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": IMAGE}, "messages.0.content"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "tool_calls": [3]}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "tool_calls": 3}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages.0.content"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL]}, "tool_choice"),  # the server was not told how calls are written
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "use_beam_search": True}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "a"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools.0"),
        ({"tools": [{"type": "search"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]}, "tools.0"),
        ({"tools": [BAD_TOOL], "tool_choice": "required"}, "tools"),
        ({"tools": [BAD_TOOL], "tool_choice": TOOL}, "tools"),
        ({"thinking_token_budget": 3}, "thinking_token_budget"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"top_logprobs": 6, "logprobs": True}, "logprobs"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "input_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 30000}]}, "input_text"),
    ],
)
def test_bad_chats(server: Running, body: dict[str, Any], param: str) -> None:
    check(server.post(CHAT, **{"messages": MESSAGES, **body}), 400, "BadRequestError", param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [-1]}, "prompt_token_ids"),
        ({"prompt": [257]}, "prompt_token_ids"),
        ({"prompt": [BIG]}, None),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"suffix": "b"}, "suffix"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
    ],
)
def test_bad_completions(server: Running, body: dict[str, Any], param: str | None) -> None:
    response = server.post(TEXT, **{"prompt": "abc", **body})
    if param is None:
        assert response.status_code == 400
    else:
        check(response, 400, "BadRequestError", param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "body.messages"),
        (CHAT, {"messages": []}, "body.messages"),
        (CHAT, {"messages": "hello"}, "body.messages"),
        (CHAT, {"messages": MESSAGES, "temperature": "hot"}, "body.temperature"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 1.5}, "body.max_tokens"),
        (CHAT, {"messages": MESSAGES, "stop": [1]}, None),
        (CHAT, {"messages": MESSAGES, "stream_options": {"include_usage": True}}, "body"),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 2}, "body"),
        (TEXT, {}, "body.prompt"),
        (TEXT, {"prompt": {"a": 1}}, None),
        (TEXT, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "body"),
        ("/tokenize", {}, "body"),
        ("/detokenize", {"tokens": "a"}, "body.tokens"),
    ],
)
def test_wrong_types(server: Running, path: str, body: dict[str, Any], param: str | None) -> None:
    check(server.post(path, **body), 400, "Bad Request", param)


def test_validation_messages_are_short(server: Running) -> None:
    message = check(server.post(TEXT, prompt=[[["x" * 5000]]] * 50), 400, "Bad Request")
    assert len(message) < 3000


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"null", b'"text"', b"[" * 100_000, b'{"messages": NaN'])
def test_bad_json(server: Running, content: bytes) -> None:
    response = server.http.post(CHAT, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] in ("Bad Request", "BadRequestError")


def test_not_a_number(server: Running) -> None:
    content = b'{"prompt": "a", "temperature": NaN}'
    response = server.http.post(TEXT, content=content, headers={"Content-Type": "application/json"})
    check(response, 400, "BadRequestError", "temperature")


def test_not_utf8(server: Running) -> None:
    content = '{"prompt": "é"}'.encode("latin-1")
    response = server.http.post(TEXT, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == 400


def test_lone_surrogates(server: Running) -> None:
    for content, param in (
        (b'{"prompt": "a\\ud800", "max_tokens": 1}', "body.prompt"),
        (b'{"prompt": ["a", "\xed\xa0\x80"]}', "body"),
        (b'{"prompt": "a", "vllm_xargs": {"a": [{"\\uDFFF": 1}]}}', "body.vllm_xargs.a.0"),
    ):
        response = server.http.post(TEXT, content=content, headers={"Content-Type": "application/json"})
        check(response, 400, "Bad Request", param)
    pair = b'{"prompt": "\\ud83d\\ude00", "max_tokens": 1}'
    assert server.http.post(TEXT, content=pair, headers={"Content-Type": "application/json"}).status_code == 200


def test_deep_bodies(server: Running) -> None:
    for depth, status in ((90, 200), (120, 400)):
        content = b'{"prompt": "a", "max_tokens": 1, "vllm_xargs": {"a": %s}}' % (b"[" * depth + b"]" * depth)
        response = server.http.post(TEXT, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == status, response.text
    assert check(response, 400, "Bad Request", "body.vllm_xargs").endswith("more than 100 levels deep.")


def test_errors_are_short(server: Running) -> None:
    response = server.post("/inference/v1/generate", token_ids=[97], sampling_params={"x" * 10**5: 1})
    check(response, 400, "BadRequestError")
    assert len(response.content) < 3000


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_wrong_content_type(server: Running, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = server.http.post(TEXT, content=b'{"prompt": "a"}', headers=headers)
    check(response, 400, "Bad Request")


def test_content_type_parameters_are_fine(server: Running) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert server.http.post(TEXT, content=b'{"prompt": "a", "max_tokens": 1}', headers=headers).status_code == 200


def test_routes_that_are_not_there(server: Running) -> None:
    response = server.http.get("/v1/nothing")
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})
    assert server.http.get(CHAT).status_code == 405


def test_body_limit() -> None:
    with running("--max-request-body-bytes", "1K") as server:
        check(server.post(TEXT, prompt="x" * 2000), 413, "BadRequestError")
        headers = {"Content-Type": "application/json"}
        chunked = server.http.post(TEXT, content=(b"x" * 100 for _ in range(50)), headers=headers)
        check(chunked, 413, "BadRequestError")
        assert server.post(TEXT, prompt="x", max_tokens=1).status_code == 200


def test_engine_error_before_and_in_a_stream(server: Running) -> None:
    message = check(server.post(TEXT, prompt="!fail", max_tokens=9), 500, "InternalServerError")
    assert "no luck" in message
    *chunks, last = events(server.post(TEXT, prompt="!fail", max_tokens=9, stream=True))
    assert chunks
    assert last["error"]["code"] == 500


def test_one_of_many_prompts_fails(server: Running) -> None:
    check(server.post(TEXT, prompt=["abc", "!fail"], max_tokens=50), 500, "InternalServerError")


def test_clients_raise_their_own_errors(server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="fake", prompt="a", temperature=9)
    assert caught.value.param == "temperature"
