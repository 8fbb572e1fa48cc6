"""`vjax bench serve` against a real server."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.serving.fakes import Running
from vjax import cli
from vjax.benchmarks import summary, workload
from vjax.benchmarks.client import Timing
from vjax.benchmarks.serve import arrivals
from vjax.errors import ModelError


def bench(server: Running, *words: str) -> int:
    return cli.main(["bench", "serve", "--base-url", server.url, "--no-progress", *words])


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_a_load(server: Running, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    before = server.metric("vllm:request_success_total", finished_reason="length")
    words = ["--backend", backend, "--num-prompts", "6", "--input-len", "5", "--output-len", "4", "--vocab-size", "200"]
    words += ["--max-concurrency", "2", "--goodput", "ttft:60000", "--json", str(out), "--save-detailed"]
    assert bench(server, *words) == 0
    assert server.metric("vllm:request_success_total", finished_reason="length") == before + 7  # one to warm up
    report = json.loads(out.read_text())
    assert (report["completed"], report["failed"], report["total_output_tokens"]) == (6, 0, 24)
    assert report["total_input_tokens"] == (30 if backend == "openai" else sum(r["input_tokens"] for r in
                                                                               report["requests"]))  # fmt: skip
    assert report["max_concurrent_requests"] <= 2
    assert 0 < report["ttft_ms"]["p50"] <= report["e2el_ms"]["p50"]
    assert report["request_goodput"] == pytest.approx(report["request_throughput"])
    assert report["request_rate"] == "inf"
    assert len(report["requests"]) == 6
    printed = capsys.readouterr().out
    assert "6 in " in printed
    assert "TTFT" in printed


def test_what_fails_is_said(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(server, "--num-prompts", "1", "--model", "nobody") == 1
    assert "nobody" in capsys.readouterr().err
    assert bench(server, "--num-prompts", "1", "--extra-body", '{"temperature": 9}') == 1
    assert "status 400" in capsys.readouterr().err
    assert bench(server, "--num-prompts", "2", "--num-warmups", "0", "--extra-body", '{"temperature": 9}') == 1
    assert "2 failed" in capsys.readouterr().out
    assert cli.main(["bench", "serve", "--base-url", "http://127.0.0.1:9", "--no-progress"]) == 1
    assert "--base-url" in capsys.readouterr().err
    for words in (["--goodput", "speed:1"], ["--metric-percentiles", "101"], ["--percentile-metrics", "x"],
                  ["--request-rate", "0"], ["--random-range-ratio", "2"], ["--num-prompts", "0"]):  # fmt: skip
        assert bench(server, *words) == 1
        assert words[0] in capsys.readouterr().err


def test_arrivals() -> None:
    assert arrivals(3, float("inf"), 1, 0) == [0, 0, 0]
    moments = arrivals(4001, 10, 1, 0)
    assert moments[0] == 0
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(400, rel=0.1)
    assert moments == arrivals(4001, 10, 1, 0)
    even = arrivals(101, 10, 1e6, 0)
    assert even[-1] == pytest.approx(10, rel=0.01)


def test_the_numbers() -> None:
    timings = [
        Timing(started=0, first=0.1, total=0.5, gaps=[0.2, 0.2], prompt_tokens=10, output_tokens=5),
        Timing(started=0.4, first=0.3, total=0.7, gaps=[0.4], prompt_tokens=10, output_tokens=3),
        Timing(started=2, error="no"),
    ]
    found = summary.report(timings, 2.0, [50, 99], {"ttft": 200})
    assert (found["completed"], found["failed"], found["errors"]) == (2, 1, ["no"])
    assert found["output_throughput"] == 4
    assert found["total_token_throughput"] == 14
    assert found["request_goodput"] == 0.5  # the second's first token was late
    assert found["ttft_ms"]["mean"] == pytest.approx(200)
    assert found["tpot_ms"]["max"] == pytest.approx(200)  # (0.7 - 0.3) / 2
    assert found["itl_ms"]["p50"] == pytest.approx(200)
    assert found["max_concurrent_requests"] == 2
    assert summary.report([], 1.0, [50], {})["completed"] == 0


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    workload.add_arguments(parser, file=True)
    return parser.parse_args(words)


def test_workloads(tmp_path: Path) -> None:
    asks = workload.make(
        parse("--num-prompts", "5", "--random-prefix-len", "3", "--random-range-ratio", ".5"), 99, None
    )
    assert len({tuple(ask.prompt[:3]) for ask in asks}) == 1
    assert len({tuple(ask.prompt) for ask in asks}) == 5
    assert all(256 <= len(ask.prompt) - 3 <= 768 and 64 <= ask.output_tokens <= 192 for ask in asks)
    assert all(10 <= one < 99 for ask in asks for one in ask.prompt if isinstance(one, int))
    like = workload.make(parse("--num-prompts", "300", "--dataset-name", "sharegpt-like"), 99, 200)
    assert all(len(ask.prompt) + ask.output_tokens < 200 for ask in like)  # cut to the context
    assert len({len(ask.prompt) for ask in like}) > 20
    path = tmp_path / "share.json"
    turns = [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "because " * 10}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    (ask,) = workload.make(
        parse("--num-prompts", "1", "--dataset-name", "sharegpt", "--dataset-path", str(path)), 9, None
    )
    assert (ask.prompt, ask.output_tokens) == ("why?", 20)
    path.write_text('{"a": 1}')
    with pytest.raises(ModelError, match="--dataset-path"):
        workload.make(parse("--dataset-name", "sharegpt", "--dataset-path", str(path)), 9, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset-name", "sharegpt"], "needs a file of conversations: --dataset-path FILE"),
        (["--base-url", "http://[::1"], "--base-url: http://[::1 is no URL"),
        (["--vocab-size", "0"], "--vocab-size must be positive"),
        (["--request-rate", "nan"], "--request-rate"),
        (["--timeout", "-1"], "--timeout must be positive"),
        (["--json", "/no/such/folder/report.json"], "--json: /no/such/folder is not a folder"),
    ],
)
def test_flags_that_make_no_sense(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is sent."""
    assert cli.main(["bench", "serve", *words]) == 1
    assert message in capsys.readouterr().err
