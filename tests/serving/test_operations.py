"""What operators use: models, health, metrics, keys, CORS, ids."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.serving.fakes import Running, fake_llm, running
from vjax.serving.app import build_app
from vjax.serving.logs import stats_line
from vjax.serving.options import ServerOptions
from vjax.serving.server import listen
from vjax.version import __version__


def test_models(server: Running) -> None:
    cards = server.http.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["fake", "other"]
    assert {card["max_model_len"] for card in cards} == {200}
    assert server.http.get("/v1/models/other").json()["id"] == "other"
    assert server.http.get("/v1/models/nobody").status_code == 404


def test_health_version_load(server: Running) -> None:
    for response in (server.http.get("/health"), server.http.get("/ping"), server.http.post("/ping")):
        assert (response.status_code, response.content) == (200, b"")
    assert server.http.get("/version").json() == {"version": __version__}
    assert server.http.get("/load").json() == {"server_load": 0}


def test_while_the_model_loads_everything_waits() -> None:
    import asyncio

    async def ask() -> None:
        app = build_app(fake_llm(), ready=False)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for path in ("/health", "/v1/models"):
                response = await client.get(path)
                assert response.status_code == 503
                assert response.json()["error"]["type"] == "ServiceUnavailableError"
            assert (await client.get("/version")).status_code == 200

    asyncio.run(ask())


def test_root_path_and_cors() -> None:
    flags = ["--root-path", "/llm", "--allowed-origins", '["http://page.example"]', "--api-key", "secret"]
    with running(*flags) as server:
        assert server.http.get("/llm/health").status_code == 200
        assert server.http.get("/llm/v1/models").status_code == 401
        headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
        preflight = server.http.options("/v1/models", headers=headers)
        assert preflight.headers["access-control-allow-origin"] == "http://page.example"
        refused = server.http.get("/v1/models", headers={"Origin": "http://page.example"})
        assert refused.headers["access-control-allow-origin"] == "http://page.example"


def test_keys() -> None:
    with running("--api-key", "one", "two") as server:
        for header in (None, "Bearer three", "Bearer", "Basic one", "one", "Bearer on", "Bearer \xe9"):
            headers = {} if header is None else {"Authorization": header.encode("latin-1")}
            response = server.http.get("/v1/models", headers=headers)  # type: ignore[arg-type]
            assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})
        for key in ("one", "two"):
            assert server.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        for path in ("/health", "/metrics", "/version"):
            assert server.http.get(path).status_code == 200
        assert server.post("/v1/completions", prompt="a").status_code == 401
        assert server.post("/tokenize", prompt="a").status_code == 200
        for path in ("/inference/v1/generate", "/invocations", "/generative_scoring"):
            assert server.post(path, prompt="a").status_code == 401
        # Anthropic's clients have a header of their own, and errors.
        message = {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
        for key, status in (("two", 200), ("three", 401)):
            response = server.http.post("/v1/messages", json=message, headers={"x-api-key": key})
            assert response.status_code == status
        assert response.json()["error"]["type"] == "authentication_error"
        assert server.http.get("/v1/models", headers={"x-api-key": "two"}).status_code == 401


def test_a_key_from_the_environment() -> None:
    with running(VJAX_API_KEY="hidden") as server:
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.get("/v1/models", headers={"Authorization": "Bearer hidden"}).status_code == 200


def test_request_ids(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    response = server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
    assert response.json()["id"] == "cmpl-mine"
    assert response.headers["x-request-id"] == "mine"
    made = server.http.post("/v1/completions", json=body)
    assert re.fullmatch(r"[0-9a-f]{32}", made.headers["x-request-id"])
    assert made.json()["id"] == "cmpl-" + made.headers["x-request-id"]
    assert server.post("/v1/completions", **body, request_id="x" * 5000).status_code == 200


def test_the_same_id_twice_at_once() -> None:
    import threading

    with running(FAKE_STEP_SECONDS="0.05") as server:
        codes: list[int] = []

        def ask() -> None:
            headers = {"X-Request-Id": "same"}
            response = httpx.post(
                f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 5}, headers=headers, timeout=30
            )  # fmt: skip
            codes.append(response.status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == [200, 200]


NAMES = [
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
    "vllm:cache_config_info",
]  # fmt: skip
HISTOGRAMS = [
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_time_per_output_token_seconds", "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_params_max_tokens",
    "vllm:request_params_n",
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_metrics_move(stream: bool) -> None:
    with running() as server:
        text = server.http.get("/metrics").text
        for name in [*NAMES, *(f"{name}_count" for name in HISTOGRAMS)]:
            assert re.search(rf"^{name}{{", text, re.MULTILINE), name
        assert server.metric("vllm:request_success_total") == 0
        server.post("/v1/completions", prompt="abc", max_tokens=4, stream=stream)
        assert server.metric("vllm:request_success_total", finished_reason="length", model_name="fake") == 1
        assert server.metric("vllm:request_success_total") == 1
        assert server.metric("vllm:generation_tokens_total") == 4
        assert server.metric("vllm:request_prompt_tokens_sum") == 3
        assert server.metric("vllm:request_generation_tokens_sum") == 4
        assert server.metric("vllm:request_params_max_tokens_sum") == 4
        assert server.metric("vllm:inter_token_latency_seconds_count") == 3 or stream  # several tokens may come at once
        for name in HISTOGRAMS:
            if name != "vllm:inter_token_latency_seconds":
                assert server.metric(f"{name}_count") == 1, name
        assert 0 < server.metric("vllm:e2e_request_latency_seconds_sum") < 30
        assert server.metric("http_requests_total", handler="/v1/completions", status="2xx", method="POST") == 1
        server.http.get("/wp-admin")
        assert server.metric("http_requests_total", handler="none", status="4xx") == 1


@pytest.mark.once
def test_the_documents_table_is_what_is_served(server: Running) -> None:
    document = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    table = dict(re.findall(r"^\| `((?:vllm:|http_)\w+)` \| (\w+) \|", document, re.MULTILINE))
    served = dict(re.findall(r"^# TYPE (\S+) (\w+)$", server.http.get("/metrics").text, re.MULTILINE))
    assert {name: kind for name, kind in served.items() if not name.endswith("_created")} == table


@pytest.mark.once
def test_the_dashboard_asks_for_what_there_is(server: Running) -> None:
    panels = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())["panels"]
    served = server.http.get("/metrics").text
    names = {name for panel in panels for one in panel["targets"] for name in re.findall(r"vllm:\w+", one["expr"])}
    assert len(names) > 10
    assert not [name for name in names if not re.search(rf"^{name}{{", served, re.MULTILINE)]


def test_buckets(server: Running) -> None:
    text = server.http.get("/metrics").text
    assert 'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="fake"}' in text
    assert 'vllm:request_prompt_tokens_bucket{engine="0",le="200.0",model_name="fake"}' in text


def test_stats_line() -> None:
    from vjax.engine.messages import EngineStats

    before = EngineStats(prompt_tokens=10, generation_tokens=5, prefix_queries=8, prefix_hits=2)
    now = EngineStats(
        running=3, waiting=1, cache_usage=0.5, prompt_tokens=30, generation_tokens=25, prefix_queries=16, prefix_hits=4
    )
    assert stats_line(before, now, 10.0) == (
        "2.0 prompt tokens/s, 2.0 generated tokens/s, 3 running, 1 waiting, cache 50.0% used, prefix hits 25.0%"
    )


def test_usage_details() -> None:
    with running("--enable-prompt-tokens-details", "--enable-force-include-usage") as server:
        assert server.chat("a", max_tokens=1).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        last = server.post("/v1/completions", prompt="a", max_tokens=1, stream=True).text.split("\n\n")[-3]
        assert '"usage"' in last


def test_options_are_checked() -> None:
    for bad in ({"port": 70000}, {"shutdown_timeout": -1}, {"ssl_keyfile": "/nothing"}, {"max_request_body_bytes": 0}):
        with pytest.raises(ValueError, match="--"):
            ServerOptions(**bad)  # type: ignore[arg-type]


def test_responses_do_not_wait_for_confirmations() -> None:
    """asyncio turns Nagle's algorithm off only for sockets that name their protocol, uvloop for none that we bring."""
    with listen(ServerOptions(host="127.0.0.1", port=0)) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.proto == socket.IPPROTO_TCP
