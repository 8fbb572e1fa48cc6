"""The routes for operators, and the limit of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serving.fakes import Running, fake_llm, running
from vjax.serving.app import build_app
from vjax.serving.operations import PATHS
from vjax.serving.options import ServerOptions

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def admin() -> Iterator[Running]:
    flags = ("--enable-server-dev-mode", "--profile-dir", "/tmp/unused", "--max-num-queued-reqs", "0")
    with running(*flags, FAKE_STEP_SECONDS="0.01") as one:
        yield one


def ask(server: Running, id: str = "x", tokens: int = 150) -> httpx.Response:
    body = {"prompt": "abc", "max_tokens": tokens}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers={"X-Request-Id": id}, timeout=30)


def reasons(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["finish_reason"] for choice in response.json()["choices"]]


def test_nothing_is_there_without_the_flag(server: Running) -> None:
    for path in PATHS:
        assert server.http.get(path).status_code in (404, 405), path
        assert server.http.post(path, json={"request_ids": []}).status_code in (404, 405), path


def test_the_key_guards_them() -> None:
    async def check() -> None:
        app = build_app(fake_llm(), ServerOptions(enable_server_dev_mode=True, api_key=["one"]), ready=False)
        app.state.service.ready = True
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            for path in PATHS:
                assert (await client.post(path)).status_code == 401, path
            info = await client.get("/server_info", headers={"Authorization": "Bearer one"})
            assert info.status_code == 200
            assert "'one'" not in info.text

    asyncio.run(check())


def test_server_info_as_json(admin: Running) -> None:
    info = admin.http.get("/server_info", params={"config_format": "json"}).json()
    assert info["vjax_config"]["engine"]["model"] == "fake"
    assert "api_key" not in info["vjax_config"]["server"]
    assert set(info["system_env"]) == {"vjax", "python", "jax", "os"}


def test_sleep_and_wake(admin: Running) -> None:
    """What is asked meanwhile waits."""
    assert admin.http.post("/sleep", params={"level": 3}).status_code == 400
    assert admin.http.get("/is_sleeping").json() == {"is_sleeping": False}
    assert admin.http.post("/sleep", params={"level": 2}).status_code == 200
    assert admin.http.get("/is_sleeping").json() == {"is_sleeping": True}
    assert admin.metric("vllm:engine_sleep_state", sleep_state="discard_all") == 1
    again = admin.http.post("/sleep")
    assert (again.status_code, again.json()["error"]["code"]) == (409, 409)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, admin, tokens=2)
        assert admin.http.post("/wake_up", params={"tags": ["weights"]}).status_code == 200
        assert admin.http.get("/is_sleeping").json() == {"is_sleeping": True}
        assert not waiting.done()
        assert admin.http.post("/wake_up", params={"tags": ["bones"]}).status_code == 400
        assert admin.http.post("/wake_up", params={"tags": ["kv_cache"]}).status_code == 200
        assert reasons(waiting.result(30)) == ["length"]
    assert admin.metric("vllm:engine_sleep_state", sleep_state="awake") == 1


@pytest.mark.parametrize(("path", "mode", "end"), [("/pause", "abort", "abort"), ("/pause", "wait", "length")])
def test_pause(admin: Running, path: str, mode: str, end: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        open_one = pool.submit(ask, admin, tokens=60)
        admin.wait_for("vllm:num_requests_running", 1)
        assert admin.http.post(path, params={"mode": mode}).json() == {"status": "paused"}
        assert reasons(open_one.result(30)) == [end]
        waiting = pool.submit(ask, admin, tokens=1)
        assert admin.http.get("/is_paused").json() == {"is_paused": True}
        assert admin.http.get("/health").status_code == 200
        assert not waiting.done()
        assert admin.http.post("/resume").json() == {"status": "resumed"}
        assert reasons(waiting.result(30)) == ["length"]


def test_abort_by_the_id_of_the_answer(admin: Running) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(ask, admin, "one"), pool.submit(ask, admin, "one-more")
        admin.wait_for("vllm:num_requests_running", 2)
        answer = admin.post("/abort_requests", request_ids=["cmpl-one", "cmpl-nobody"])
        assert answer.json() == {"aborted": 1}
        assert reasons(one.result(30)) == ["abort"]
        assert admin.post("/abort_requests", request_ids=[]).json() == {"aborted": 1}
        assert reasons(other.result(30)) == ["abort"]
    assert admin.post("/abort_requests").status_code == 400


def test_reset_prefix_cache(admin: Running) -> None:
    assert admin.http.post("/reset_prefix_cache").json() == {"success": True}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, admin, tokens=60)
        admin.wait_for("vllm:num_requests_running", 1)
        assert admin.http.post("/reset_prefix_cache").json() == {"success": False}
        assert admin.http.post("/reset_prefix_cache?reset_running_requests=true").json() == {"success": True}
        assert reasons(waiting.result(30)) == ["length"]


def test_profile(admin: Running) -> None:
    for path, status in (("stop", 409), ("start", 200), ("start", 409), ("stop", 200)):
        assert admin.http.post(f"/{path}_profile").status_code == status


def test_a_full_queue_refuses(admin: Running) -> None:
    """Eight run at once in this engine, and none may wait."""
    before = admin.metric("vllm:admission_rejections_total")
    with ThreadPoolExecutor(8) as pool:
        running_ones = [pool.submit(ask, admin) for _ in range(8)]
        admin.wait_for("vllm:num_requests_running", 8)
        refused = ask(admin)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        assert admin.http.get("/v1/models").status_code == 200
        admin.post("/abort_requests", request_ids=[])
        assert [reasons(one.result(30)) for one in running_ones] == [["abort"]] * 8
    assert admin.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == before + 1
    assert ask(admin, tokens=1).status_code == 200


def test_options() -> None:
    for bad in ({"max_num_queued_reqs": -1}, {"profile_dir": "/tmp"}):
        with pytest.raises(ValueError, match="--"):
            ServerOptions(**bad)  # type: ignore[arg-type]
