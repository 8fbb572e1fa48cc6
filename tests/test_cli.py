"""The `vjax` command: flags, errors in one line, and its sub commands on tiny models."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import vjax
from tests.goldens import checkpoint, load_case
from tests.goldens.gguf import gguf_checkpoint
from vjax import cli, serve
from vjax.cli_args import add_flags, from_flags, normalise, parse_size
from vjax.config import EngineConfig, option
from vjax.serving.options import ServerOptions
from vjax.version import __version__

CASE = "llama-gqa"
ROOT = Path(__file__).parents[1]
TINY = ["--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--block-size", "4", "--port", "0"]


def run(*words: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """`vjax` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "vjax.cli", *words], capture_output=True, text=True, timeout=timeout, cwd=ROOT,
        env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def last_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    """What stderr ends with; there must be no traceback before it."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096), ("4k", 4000), ("4K", 4096), ("1K", 1024), ("25.6k", 25600), ("1.5K", 1536), ("2m", 2_000_000),
        ("2M", 2 << 20), ("2g", 2 * 10**9), ("2G", 2 << 30), ("2GiB", 2 << 30), ("2gib", 2 << 30), ("2GB", 2 << 30),
        ("1T", 1 << 40), (" 7 ", 7), ("0", 0),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "4x", "1e3", "0.5", "1.0001k", "4 k k", "0x10", "٤"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a"):
        parse_size(text)


@dataclass(frozen=True, kw_only=True)
class Options:
    number: int = option(3, "a number with 50% in its help")
    size: int | None = option(None, "a size", size=True)
    share: float = option(0.5, "a share")
    on: bool = option(True, "a switch")
    kind: Literal["a", "b"] = option("a", "a choice")
    words: list[str] | None = option(None, "words")
    table: dict[str, Any] | None = option(None, "a table")
    short: int = option(1, "a short one", short="-s")


def parse(*words: str) -> Options:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, Options, "options")
    assert "50%" in parser.format_help()
    return from_flags(Options, parser.parse_args(normalise(words)))


def test_flags_come_from_fields() -> None:
    assert parse() == Options()
    given = parse(
        "--number", "7", "--size=4K", "--share", ".25", "--no-on", "--kind", "b", "--words", "x", "y", "--words", "z",
        "--table", '{"a": {"b": 1}}', "-s", "9",
    )  # fmt: skip
    assert given == Options(
        number=7, size=4096, share=0.25, on=False, kind="b", words=["x", "y", "z"], table={"a": {"b": 1}}, short=9
    )
    assert parse("--words", '["x", "y z"]').words == ["x", "y z"]


@pytest.mark.parametrize(
    "words",
    [
        ["--number", "x"], ["--size", "1e3"], ["--kind", "c"], ["--table", "[1]"], ["--table", "{"], ["--words", "[1]"],
        ["--words", "["], ["--share", "much"],
    ],
)  # fmt: skip
def test_bad_flags_name_themselves(words: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError, match=f"argument {words[0]}"):
        parse(*words)


def test_underscores_are_dashes() -> None:
    assert normalise(["serve", "a_b", "--max_model_len=a_b", "--max_num_seqs", "-x_y"]) == [
        "serve", "a_b", "--max-model-len=a_b", "--max-num-seqs", "-x_y"
    ]  # fmt: skip


def test_serve_has_a_flag_for_every_option() -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    flags = {word for action in parser._actions for word in action.option_strings}
    for item in (*fields(EngineConfig), *fields(ServerOptions)):
        assert "--" + item.name.replace("_", "-") in flags
        assert item.metadata["help"], item.name
    assert "-tp" in flags


def test_serve_hands_over_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("vjax.serving.server.serve", lambda *given: seen.append(given) or 0)
    words = "serve m --max-model-len 4k -tp 2 --no-enable-prefix-caching --served_model_name a b --port 81"
    assert cli.main([*words.split(), "--hf-overrides", '{"a": 1}']) == 0
    assert cli.main(["serve"]) == 0
    assert cli.main(["serve", "--model", "m"]) == 0
    (config, options), (plain, _), (named, _) = seen
    assert config == EngineConfig(
        model="m", max_model_len=4000, tensor_parallel_size=2, enable_prefix_caching=False, hf_overrides={"a": 1}
    )
    assert options == ServerOptions(served_model_name=["a", "b"], port=81)
    assert plain == EngineConfig()
    assert named.model == "m"


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["bench", "--help"], ["convert", "--help"]])
def test_help_is_quick(words: list[str]) -> None:
    """No JAX is imported for it."""
    script = (
        "import sys; from vjax.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'jax', 'fastapi', 'numpy', 'tokenizers'} & set(sys.modules), 'imported too much'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: vjax")


def test_the_http_process_imports_no_jax() -> None:
    script = (
        "import sys, vjax.serving.server, vjax.tokenizing.load\n"
        "from vjax.loading.source import find_source\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_package_is_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "vjax", "--version"], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == f"vjax {__version__}"


def test_version() -> None:
    for flag in ("--version", "-v"):
        assert run(flag).stdout == f"vjax {__version__}\n"


@pytest.mark.parametrize("words", [[], ["dance"], ["serve", "m", "--no-such-flag"], ["serve", "m", "--port", "x"]])
def test_usage_errors(words: list[str]) -> None:
    assert last_line(run(*words), 2).startswith("vjax")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["serve", "/nowhere/model", "--port", "0"], "/nowhere/model: no such file or folder"),
        (["serve", "no-such-name", "--port", "0"], "not a registered name (qwen2.5-coder-0.5b-instruct, smollm2-demo)"),
        (["serve", "someone/model", "--port", "0"], "Models are not downloaded from hubs"),
        (["serve", "m", "--port", "70000"], "--port must be in [0, 65535], got 70000"),
        (["serve", "m", "--max-num-seqs", "0"], "max_num_seqs must be a positive integer, got 0"),
        (["serve", "m", "--gpu-memory-utilization", "2"], "gpu_memory_utilization must be in (0, 1], got 2.0"),
        (["serve", "m", "--ssl-keyfile", "key"], "--ssl-keyfile and --ssl-certfile are needed together"),
        (["serve", "m", "--chat-template", "/nowhere.jinja", "--port", "0"], "--chat-template: /nowhere.jinja cannot"),
        (["bench", "llama8b", "--work", "8"], "--work must look like 1x128,64x128, got '8'"),
        (["convert", "/nowhere/model", "out"], "/nowhere/model: no such file or folder"),
    ],
)
def test_an_error_is_one_line(words: list[str], text: str) -> None:
    result = run(*words)
    line = last_line(result, 1)
    assert line.startswith("vjax: error: ")
    assert text in line
    assert result.stdout == ""


def test_the_traceback_is_there_for_debugging() -> None:
    assert "Traceback" in run("serve", "m", "--port", "70000", VJAX_LOG="debug").stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(CASE, tmp_path)


def test_an_unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["WombatForCausalLM"], "model_type": "wombat"}
    (folder / "config.json").write_text(json.dumps(config))
    line = last_line(run("serve", str(folder), "--skip-tokenizer-init", *TINY), 1)
    assert line.startswith("vjax: error: ")
    assert "WombatForCausalLM" in line
    assert "LlamaForCausalLM" in line  # what there is instead


def test_a_bad_dtype(folder: Path) -> None:
    line = last_line(run("serve", str(folder), "--skip-tokenizer-init", "--dtype", "float7", *TINY), 1)
    assert line.startswith("vjax: error: ")
    assert "float7" in line
    assert "bfloat16" in line


def test_a_truncated_checkpoint(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    line = last_line(run("serve", str(folder), "--skip-tokenizer-init", *TINY), 1)
    assert line.startswith("vjax: error: ")
    assert "model.safetensors" in line


def test_bench(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    words = ["bench", str(folder), "--work", "1x8,2x8", "--decode", "4", "--max-num-batched-tokens", "16"]
    assert cli.main([*words, "--max-model-len", "96", "--json", str(out)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("RESULT ")]
    assert [line.split()[2:4] for line in lines[1:]] == [["B=1", "in=8"], ["B=2", "in=8"]]
    report = json.loads(out.read_text())
    assert [(row["batch"], row["prompt"]) for row in report["results"]] == [(1, 8), (2, 8)]
    assert all(row["prefill"] > 0 for row in report["results"])
    assert report["versions"]["vjax"] == __version__
    assert report["machine"]["platform"] == "cpu"


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_convert_changes_no_logit(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = checkpoint(CASE, tmp_path) if form == "safetensors" else gguf_checkpoint(CASE, tmp_path)
    out = tmp_path / "converted"
    assert cli.main(["convert", str(source), str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    tokens = load_case(CASE).tokens
    before, after = (logits(path, tokens) for path in (source, out))
    np.testing.assert_array_equal(before, after)
    assert cli.main(["convert", str(source), str(out)]) == 1
    assert "exists" in capsys.readouterr().err
    assert cli.main(["convert", str(source), str(out), "--force"]) == 0


def logits(path: Path, tokens: np.ndarray) -> np.ndarray:
    model, params = vjax.load(path, use_tqdm_on_load=False)
    return np.asarray(model.apply(params, tokens))
