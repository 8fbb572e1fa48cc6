"""Every field of every POST route, at every depth, replaced by what it should not be: never a 5xx, never a hang, always
an error object. A bounded choice of these here; `-m slow` tries all."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.serving.examples import BODILESS, CLASSIFYING, ENCODING, EXAMPLES
from tests.serving.fakes import Running, fake_llm, running
from vjax.serving.app import build_app
from vjax.serving.errors import speaks_messages
from vjax.serving.operations import PATHS

SPOILED = "\x01spoiled\x01"
ALL = EXAMPLES | ENCODING | CLASSIFYING
Path = tuple[str | int, ...]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


# As JSON text, since some of it is none.
BAD: dict[str, str] = {
    "null": "null", "true": "true", "-1": "-1", "0": "0", "1.5": "1.5", "1e400": "1e400", "NaN": "NaN",
    "huge": str(10**30), "-huge": str(-(10**30)), "empty": '""', "long": json.dumps("x" * 3000),
    "surrogate": r'"\ud800"', "NUL": r'"a\u0000b"', "list": "[]", "list in list": "[[]]", "object in list": "[{}]",
    "null in list": "[null]", "huge in list": f"[{10**30}]", "strings": '["a", "b"]', "mixed": '[1, "a", null]',
    "many": json.dumps([{}] * 2000), "many numbers": json.dumps([1] * 2000), "object": "{}",
    "list as type": '{"type": []}', "object as type": '{"type": {}}', "surrogate as type": r'{"type": "\ud800"}',
    "surrogate as name": r'{"\ud800": "\udfff"}', "many names": json.dumps({str(at): [] for at in range(2000)}),
    "deep": nested(90), "too deep": nested(500), "deep objects": '{"a":' * 400 + "1" + "}" * 400,
}  # fmt: skip


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Places in a body, of a list only its first."""
    yield at
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*at, name))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*at, 0))


def spoiled(body: Any, at: Path, bad: str) -> str:
    """The body as JSON, with `bad` at one place."""
    if not at:
        return bad
    body = copy.deepcopy(body)
    inner = body
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = SPOILED
    return json.dumps(body).replace(json.dumps(SPOILED), bad)


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return build_app(fake_llm(), ready=False)


@pytest.fixture(scope="module")
def encodes() -> Iterator[Running]:
    with running("--served-model-name", "fake", FAKE_ENGINE="tests.serving.pooling_fakes:Embedder") as one:
        yield one


@pytest.fixture(scope="module")
def classifies() -> Iterator[Running]:
    with running("--served-model-name", "fake", FAKE_ENGINE="tests.serving.pooling_fakes:Reranker") as one:
        yield one


@pytest.fixture
def server(path: str, request: pytest.FixtureRequest) -> Running:
    """One that has the route."""
    name = "encodes" if path in ENCODING else "classifies" if path in CLASSIFYING else "full_server"
    found: Running = request.getfixturevalue(name)
    return found


def post_routes(app: FastAPI) -> set[str]:
    return {path for path, ways in app.openapi()["paths"].items() if "post" in ways}


def fields(app: FastAPI, path: str) -> list[str]:
    """The names of a body's fields, as the OpenAPI document has them."""
    document = app.openapi()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return list(schema.get("properties", ()))


def cases(app: FastAPI, path: str) -> Iterator[tuple[Any, Path]]:
    """Bodies with a place to spoil: those of the examples, and fields that no example has."""
    bodies = ALL[path]
    seen: set[tuple[str, Path]] = set()
    for body in bodies:
        for at in paths(body):
            key = (f"{body.get('stream', False)}", at)
            if key not in seen:
                seen.add(key)
                yield body, at
    known = {name for body in bodies for name in body}
    for name in fields(app, path):
        if name not in known:
            yield bodies[0], (name,)


def check(path: str, response: httpx.Response) -> None:
    """An answer, or an error object that says what is wrong."""
    assert response.status_code < 500, response.text[:2000]
    if response.status_code >= 400:
        body = response.json()
        if speaks_messages(path):
            assert body["type"] == "error"
            assert set(body["error"]) == {"type", "message"}
        else:
            assert set(body["error"]) == {"message", "type", "param", "code"}
            assert body["error"]["code"] == response.status_code
        assert body["error"]["message"]
        problems = re.match(r"(\d+) validation error", body["error"]["message"])
        assert problems is None or int(problems[1]) < 50, "each of many wrong entries costs memory and time"
        assert len(response.content) < 6000, len(response.content)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert '"code":500' not in response.text
    else:
        response.json()


def test_every_route_has_an_example(app: FastAPI) -> None:
    """A new route brings a body that it takes (tests/serving/examples.py)."""
    operators = set(PATHS)  # 404s here: tests/serving/test_admin.py
    assert post_routes(app) - operators == {*ALL, *BODILESS}


@pytest.mark.parametrize("path", ALL)
def test_examples_are_good(server: Running, path: str) -> None:
    for body in ALL[path]:
        response = server.http.post(path, json=body)
        assert response.status_code == 200, response.text


def sweep(server: Running, app: FastAPI, path: str, stride: int) -> None:
    """With a `stride` above 1 each place gets every so-manieth bad value, others than its neighbours do."""
    failed = []
    for count, (body, at) in enumerate(cases(app, path)):
        for kind in list(BAD)[count % stride :: stride]:
            content = spoiled(body, at, BAD[kind]).encode()
            try:
                response = server.http.post(
                    path, content=content, headers={"Content-Type": "application/json"}, timeout=20
                )
                check(path, response)
            except (AssertionError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                failed.append(f"{'.'.join(map(str, at)) or 'body'} = {kind}: {error!r}")
                # Their tracebacks lie in a pipe that nobody reads yet: many more, and the server would wait.
                assert len(failed) < 6, "\n".join(failed)
    assert not failed, "\n".join(failed)
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("path", ALL)
def test_bad_values_anywhere(server: Running, app: FastAPI, path: str) -> None:
    sweep(server, app, path, stride=25)


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL)
def test_all_bad_values_anywhere(server: Running, app: FastAPI, path: str) -> None:
    sweep(server, app, path, stride=1)
