"""`--config`, `vjax collect-env`, and the offline benchmarks on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vjax import cli, collect_env
from vjax.cli_config import expand
from vjax.config import EngineConfig
from vjax.errors import ModelError
from vjax.serving.options import ServerOptions

FILE = """
model: from-file
max_model_len: 4k
tensor-parallel-size: 2
enable_prefix_caching: false
enable_log_requests: true
served-model-name: [a, "-b"]
hf_overrides: {rope: {factor: 2}}
chat-template: null
port: 81
"""


def test_a_file_gives_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    seen: list[Any] = []
    monkeypatch.setattr("vjax.serving.server.serve", lambda *given: seen.append(given) or 0)
    assert cli.main(["serve", "--config", str(path)]) == 0
    words = [f"--config={path}", "--port", "82", "--served_model_name", "c", "--enable-prefix-caching"]
    assert cli.main(["serve", "mine", *words]) == 0
    (config, options), (other, changed) = seen
    assert config == EngineConfig(
        model="from-file", max_model_len=4000, tensor_parallel_size=2, enable_prefix_caching=False,
        hf_overrides={"rope": {"factor": 2}},
    )  # fmt: skip
    assert options == ServerOptions(served_model_name=["a", "-b"], port=81, enable_log_requests=True)
    assert (other.model, other.enable_prefix_caching, other.max_model_len) == ("mine", True, 4000)
    assert (changed.port, changed.served_model_name) == (82, ["c"])


@pytest.mark.parametrize(
    "text",
    [
        "[1]", "a: [", "1: 2", "a: {b: 2020-01-01}", "&a [*a]", "!!python/object:os.system {}", "kernels: &a {b: *a}",
        "config: other.yaml", "'': 1", "\x00",
        "\n".join(["a0: &a0 x", *(f"a{at}: &a{at} [{f'*a{at - 1},' * 9}]" for at in range(1, 12))]),
    ],
)  # fmt: skip
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"--config: .*serve\.yaml"):
        expand(["serve", "--config", str(path)])
    with pytest.raises(ModelError, match="cannot be read"):
        expand(["serve", "--config", str(tmp_path / "nothing")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: [1]", "--port: invalid int value"),
        ("port: true", "--port: expected one argument"),
        ("uds: true", "--uds: expected one argument"),
        ("served-model-name: true", "--served-model-name: expected at least one argument"),
        ("served-model-name: [1]", "--served-model-name: a list of strings is needed"),
        ("served-model-name: {a: b}", "--served-model-name: a list of strings is needed"),
        ("served-model-name: [[a]]", "--served-model-name: a list of strings is needed"),
        ("served-model-name: ['']", "--served-model-name must not be empty"),
        ("kernels: [a]", "--kernels: a JSON object is needed"),
        ("max-model-len: .inf", "--max-model-len: 'inf' is not a size"),
        ("enable-log-requests: 'yes'", "--enable-log-requests"),
        ("gpu-memory-utilization: 2", "gpu_memory_utilization must be in"),
    ],
)
def test_wrong_types(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    try:
        code: Any = cli.main(["serve", "a-model", "--config", str(path)])
    except SystemExit as end:
        code = end.code
    assert code in (1, 2)
    assert message in capsys.readouterr().err


def test_an_unknown_key_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("no_such_flag: 1")
    with pytest.raises(SystemExit) as end:
        cli.main(["serve", "--config", str(path)])
    assert end.value.code == 2
    assert "--no-such-flag=1" in capsys.readouterr().err


def test_collect_env(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VJAX_API_KEY", "hush")
    monkeypatch.setenv("VJAX_LOG", "info")
    monkeypatch.setattr(collect_env, "_output", lambda command, **_: f"output of {Path(command[0]).name}")
    assert cli.main(["collect-env", "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert "hush" not in text
    assert found["environment"]["VJAX_LOG"] == "info"
    assert found["packages"]["jax"]
    assert found["devices"]["jax"].startswith("output of python")
    assert cli.main(["collect-env"]) == 0
    assert "VJAX_API_KEY           (hidden)" in capsys.readouterr().out


class FakeLLM:
    """Answers at once."""

    _encoder = None
    engine = SimpleNamespace(
        limits=SimpleNamespace(vocab_size=50, max_model_len=64, max_num_seqs=2), reset_prefix_cache=lambda: True
    )

    def __init__(self, **options: Any) -> None:
        self.config = EngineConfig(**options)
        MADE.append(self)
        self.calls: list[tuple[Any, Any]] = []

    def generate(self, prompts: Any, params: Any, use_tqdm: bool) -> None:
        self.calls.append((prompts, params))

    def shutdown(self) -> None:
        pass


MADE: list[FakeLLM] = []


def test_benchmarks_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vjax.llm.LLM", FakeLLM)
    out = tmp_path / "report.json"
    words = ["--batch-size", "2", "--input-len", "8", "--output-len", "4", "--num-iters", "2"]
    assert cli.main(["bench", "latency", "m", *words, "--num-iters-warmup", "1", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert len(report["runs"]) == 2
    assert 0 < report["latency_seconds"]["min"] <= report["latency_seconds"]["p99"]
    llm = MADE.pop()
    assert (llm.config.model, llm.config.max_num_seqs, llm.config.max_model_len) == ("m", 2, 12)
    assert len(llm.calls) == 3
    assert [len(one["prompt_token_ids"]) for one in llm.calls[0][0]] == [8, 8]
    assert llm.calls[0][1][0].max_tokens == llm.calls[0][1][0].min_tokens == 4

    words = ["--num-prompts", "3", "--input-len", "8", "--output-len", "4", "--max-num-seqs", "3", "--seed", "5"]
    assert cli.main(["bench", "throughput", "qwen3-0.6b", *words, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert (report["num_requests"], report["total_input_tokens"], report["total_output_tokens"]) == (3, 24, 12)
    assert "requests/s" in capsys.readouterr().out
    llm = MADE.pop()
    assert (llm.config.load_format, llm.config.seed, llm.config.max_num_seqs) == ("dummy", 5, 3)  # a shape
    assert cli.main(["bench", "latency", "m", "--batch-size", "0"]) == 1
    assert "--batch-size must be positive" in capsys.readouterr().err


def test_startup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folders: list[str] = []

    def start(options: dict[str, Any], folder: str) -> dict[str, float]:
        folders.append(folder)
        return {"imports": 1, "engine": 2, "first_token": 3, "total": 6}

    monkeypatch.setattr("vjax.benchmarks.startup.start", start)
    assert cli.main(["bench", "startup", "m", "--num-iters-cold", "2", "--num-iters-warm", "2"]) == 0
    assert len(set(folders)) == 2
    assert folders[1] == folders[2] == folders[3]  # warm starts find what the last cold one left
    assert "warm start (2): imports 1.00 s, engine 2.00 s, first token 3.00 s, total 6.00 s" in capsys.readouterr().out
