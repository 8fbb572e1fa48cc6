"""`AsyncLLM` and the engine's process, with a fake engine in the child."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.frontend.fakes import LIMITS, byte_tokenizer, letter
from vjax.config import EngineConfig
from vjax.errors import CheckpointError, EngineDeadError, ModelError, RequestError, VjaxError
from vjax.frontend.async_llm import AsyncLLM
from vjax.frontend.files import FrontendFiles
from vjax.outputs import RequestOutput
from vjax.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]
FAKE = "tests.frontend.fakes:FakeEngine"


def make(model: str = "fake", **options: Any) -> AsyncLLM:
    return AsyncLLM(EngineConfig(model=model, **options), engine=FAKE, files=FrontendFiles(byte_tokenizer()))


def run(work: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    """With a started engine, whose process must be gone afterwards."""

    async def body() -> None:
        llm = make()
        await llm.start()
        pid = llm.process.pid
        assert pid is not None
        try:
            await asyncio.wait_for(work(llm), 60)
        finally:
            await llm.shutdown()
        assert not psutil.pid_exists(pid)

    asyncio.run(body())


def said(prompt: bytes, count: int) -> str:
    return bytes(letter(list(prompt), at) for at in range(count)).decode()


async def collect(llm: AsyncLLM, prompt: Any, request_id: str = "r", **params: Any) -> list[RequestOutput]:
    options = SamplingParams(**{"max_tokens": 20, "output_kind": "delta", **params})
    return [output async for output in llm.generate(prompt, options, request_id)]


def text(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


def test_requests_side_by_side() -> None:
    async def work(llm: AsyncLLM) -> None:
        assert llm.limits == LIMITS
        prompts = [f"prompt {at}" for at in range(20)]
        results = await asyncio.gather(*(collect(llm, prompt, f"r{prompt}") for prompt in prompts))
        assert [text(outputs) for outputs in results] == [said(prompt.encode(), 20) for prompt in prompts]
        assert all((outputs[-1].finished and not outputs[0].outputs[0].finished()) or len(outputs) == 1
                   for outputs in results)  # fmt: skip
        assert llm.num_inflight == 0
        assert llm.stats().generation_tokens == 400

    run(work)


def test_n_stop_strings_and_final_only() -> None:
    async def work(llm: AsyncLLM) -> None:
        [output] = await collect(llm, "abc", n=3, stop=["db"], output_kind="final_only")
        assert [(one.index, one.text, one.stop_reason) for one in output.outputs] == [(i, "bc", "db") for i in range(3)]
        assert await llm.reset_prefix_cache()  # the aborts reached the engine before this did

    run(work)


def test_bad_requests_leave_nothing_behind() -> None:
    async def work(llm: AsyncLLM) -> None:
        for prompt, params, param in (
            ("", {}, "prompt"),
            ("a" * 30, {"max_tokens": 60}, "input_tokens"),
            ("a" * 10**6, {}, "input_text"),
        ):
            with pytest.raises(RequestError) as caught:
                await collect(llm, prompt, **params)
            assert caught.value.param == param
        with pytest.raises(RequestError):
            await llm.prepare([1000], SamplingParams(), "r")
        assert llm.num_inflight == 0
        prepared = await llm.prepare("abc", SamplingParams(max_tokens=2), "r")
        outputs = [output async for output in llm.generate(prepared)]
        assert outputs[-1].outputs[0].text == "bc"

    run(work)


def test_a_request_that_fails_in_the_engine_harms_no_other() -> None:
    async def work(llm: AsyncLLM) -> None:
        fine = asyncio.create_task(collect(llm, "abc", "fine", max_tokens=60))
        with pytest.raises(VjaxError, match="no luck"):
            await collect(llm, "!fail", "bad")
        with pytest.raises(VjaxError, match="refused by the fake"):
            await collect(llm, "!refuse", "worse")
        assert text(await fine) == said(b"abc", 60)
        assert not llm.errored
        with pytest.raises(VjaxError, match="no method"):
            await llm.process.call("shutdown")

    run(work)


@pytest.mark.parametrize("way", ["close", "cancel", "abort"])
def test_ending_early_aborts_in_the_engine(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.02")

    async def work(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=60, output_kind="delta")
        stream = llm.generate("abc", params, "r")
        first = await anext(stream)
        assert not first.finished
        with pytest.raises(RequestError, match="in use"):
            await collect(llm, "abc", "r")
        if way == "close":
            await stream.aclose()
        elif way == "cancel":
            waiting = asyncio.create_task(_drain(stream))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            llm.abort("r")
            last = [output async for output in stream][-1]
            assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
        assert llm.num_inflight == 0
        assert await llm.reset_prefix_cache()  # the fake refuses while anything runs
        assert text(await collect(llm, "abc", "r", max_tokens=3)) == "bcd"

    run(work)


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def test_a_slow_consumer_gets_merged_deltas_and_blocks_nobody() -> None:
    async def work(llm: AsyncLLM) -> None:
        slow = llm.generate("abc", SamplingParams(max_tokens=60, output_kind="delta"), "slow")
        first = await anext(slow)
        assert text(await collect(llm, "xyz", "quick", max_tokens=60)) == said(b"xyz", 60)
        rest = [output async for output in slow]
        assert len(rest) <= 1
        assert text([first, *rest]) == said(b"abc", 60)
        assert sum(len(output.outputs[0].token_ids) for output in [first, *rest]) == 60

    run(work)


@pytest.mark.parametrize(("end", "words"), [("!raise", "RuntimeError: the device fell over"), ("!exit", "code 7")])
def test_the_engines_death_fails_every_open_request(
    end: str, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.02")

    async def work(llm: AsyncLLM) -> None:
        others = [asyncio.create_task(collect(llm, "abc", f"{at}", max_tokens=60)) for at in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(EngineDeadError, match=words):
            await collect(llm, end, "killer")
        for other in others:
            with pytest.raises(EngineDeadError):
                await other
        assert (llm.is_dead, llm.num_inflight) == (True, 0)
        assert words in str(llm.dead_error)
        assert await asyncio.wait_for(llm.wait_dead(), 1) is llm.dead_error
        with pytest.raises(EngineDeadError):
            await collect(llm, "abc")
        with pytest.raises(EngineDeadError):
            await llm.reset_prefix_cache()

    run(work)


def test_a_killed_engine_is_noticed_at_once() -> None:
    async def work(llm: AsyncLLM) -> None:
        assert llm.process.pid is not None
        os.kill(llm.process.pid, signal.SIGKILL)
        start = time.monotonic()
        error = await llm.wait_dead()
        assert "killed by SIGKILL" in str(error)
        assert time.monotonic() - start < 2

    run(work)


@pytest.mark.parametrize(
    ("model", "kind", "words"), [("broken", ModelError, "broken"), ("crash", EngineDeadError, "3")]
)
def test_an_engine_that_does_not_start(model: str, kind: type[Exception], words: str) -> None:
    async def body() -> None:
        llm = make(model)
        with pytest.raises(kind, match=words):
            await asyncio.wait_for(llm.start(), 60)
        assert llm.process.pid is not None
        assert not psutil.pid_exists(llm.process.pid)
        with pytest.raises(RuntimeError, match="not started"):
            await collect(llm, "abc")
        await llm.shutdown()

    asyncio.run(body())


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    async def body() -> None:
        llm = make("hang")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(llm.start(), 1)
        assert llm.process.pid is not None
        assert not psutil.pid_exists(llm.process.pid)

    asyncio.run(body())


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    async def body() -> None:
        llm = AsyncLLM(EngineConfig(model=str(tmp_path / "none")), engine=FAKE)
        with pytest.raises(CheckpointError, match="none"):
            await llm.start()
        await llm.shutdown()

    asyncio.run(body())


@pytest.mark.parametrize(("drain", "finish"), [(30.0, "length"), (0.0, "abort")])
def test_shutdown_drains_or_aborts(drain: float, finish: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.01")
    monkeypatch.setenv("FAKE_SHUTDOWN_FILE", str(tmp_path / "bye"))

    async def work(llm: AsyncLLM) -> None:
        consumer = asyncio.create_task(collect(llm, "abc", max_tokens=60))
        while not llm.num_inflight:
            await asyncio.sleep(0.01)
        await llm.shutdown(drain_timeout=drain)
        assert (await consumer)[-1].outputs[0].finish_reason == finish
        assert not llm.is_dead
        assert (tmp_path / "bye").read_text() == "bye"  # the engine ended in order
        with pytest.raises(EngineDeadError, match="shutting down"):
            await collect(llm, "abc")

    run(work)


ORPHAN = """
import asyncio, sys
from tests.frontend.test_async_llm import make
async def main():
    llm = make(sys.argv[1])
    starting = asyncio.create_task(llm.start())
    if sys.argv[1] != "hang":
        await starting
    while llm.process.pid is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    print(llm.process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("model", ["fake", "hang"])
def test_the_child_dies_with_its_parent_even_while_loading(model: str) -> None:
    command = [sys.executable, "-c", ORPHAN, model]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 5
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.02)


def test_long_text_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(llm: AsyncLLM) -> None:
        tokenizer = llm.tokenizer
        assert tokenizer is not None

        def encode(text: str, add_special_tokens: bool = True) -> list[int]:
            time.sleep(0.3)
            return [1]

        monkeypatch.setattr(tokenizer, "encode", encode)
        monkeypatch.setattr(llm.limits, "max_model_len", 10_000)
        preparing = asyncio.create_task(llm.prepare("a" * 5000, SamplingParams(), "r"))
        ticks = 0
        while not preparing.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 5

    run(work)
