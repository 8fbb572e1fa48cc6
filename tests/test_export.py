"""Exports run where vjax is not installed and give the engine's tokens."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SEVERAL_DEVICES
from tests.engine.driver import Driver
from tests.goldens import checkpoint, load_case
from tests.goldens.gguf import gguf_checkpoint
from vjax.config import EngineConfig
from vjax.errors import ModelError
from vjax.export import export

CASE = "qwen3-tied"

# Only the runner's stated dependencies may be imported.
WITHOUT_VJAX = """
import runpy, sys
for name in ("vjax", "torch", "transformers", "gguf", "msgspec", "tqdm", "jinja2"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_exported(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["XLA_FLAGS"] = environment["XLA_FLAGS"].replace(SEVERAL_DEVICES, "")
    command = [sys.executable, "-I", "-c", WITHOUT_VJAX, str(folder / "run.py"), *args]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    config = EngineConfig(model=str(checkpoint(CASE, folder)), block_size=4, use_tqdm_on_load=False)
    export(config, folder / "out", batch=(1, 3), prefill=(4, 16), max_len=40, platforms=("cpu", "cuda"), show=False)
    return folder / "out"


def test_the_runner_is_short() -> None:
    import vjax.exported_runner

    assert len(Path(vjax.exported_runner.__file__).read_text().splitlines()) < 120


def test_the_runner_gives_the_golden_tokens(exported: Path) -> None:
    golden = load_case(CASE)
    prompts = [",".join(str(t) for t in prompt) for prompt in golden.prompts]
    done = run_exported(exported, "--ids", "--max-tokens", "16", *prompts)
    assert done.returncode == 0, done.stderr
    assert [[int(t) for t in line.split(",")] for line in done.stdout.split()] == golden.greedy.tolist()


def test_text_through_the_exported_tokenizer(tmp_path: Path) -> None:
    path = gguf_checkpoint("qwen3-untied", tmp_path)
    export(EngineConfig(model=str(path), block_size=4), tmp_path / "out", prefill=(16,), max_len=40, show=False)
    done = run_exported(tmp_path / "out", "hello", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    from vjax.tokenizing.load import load_tokenizer

    tokenizer = load_tokenizer(path)
    driver = Driver(EngineConfig(model=str(path), max_num_seqs=1, max_num_batched_tokens=16, warmup="lazy"))
    want = driver.greedy([tokenizer.encode("hello")], 8)[0]
    driver.close()
    assert done.stdout.rstrip("\n") == tokenizer.decode(want).rstrip("\n")


def test_the_manifest_states_every_input_and_output(exported: Path) -> None:
    manifest = json.loads((exported / "manifest.json").read_text())
    assert {g["name"] for g in manifest["graphs"]} == {"decode_1", "decode_3", "prefill_4", "prefill_16"}
    documented = set(manifest["calling_convention"]["fields"])
    for graph in manifest["graphs"]:
        assert set(graph["fields"]) <= documented
        assert set(graph["files"]) == {"cpu", "cuda"}
    for file in ("weights.safetensors", "run.py"):
        assert (exported / file).is_file()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: m.update(platforms=["cuda"]), "exported for cuda"),
        (lambda m: m.update(jax_version="99.0.0"), "newer than"),
        (
            lambda m: m["graphs"].clear() or m["weights"].append({"name": "lost", "shape": [1], "dtype": "float32"}),
            "lost",
        ),
    ],
)
def test_what_does_not_fit_is_said(exported: Path, tmp_path: Path, damage, message: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    damage(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done = run_exported(folder, "--ids", "1,2")
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_named(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    (folder / "prefill_4.cpu.jaxexp").unlink()
    done = run_exported(folder, "--ids", "1,2")
    assert "prefill_4.cpu.jaxexp is missing" in done.stderr


def test_bad_options(tmp_path: Path) -> None:
    config = EngineConfig(model=str(checkpoint(CASE, tmp_path)))
    with pytest.raises(ModelError, match="'tpu'"):
        export(config, tmp_path / "out", platforms=("tpu",))
    with pytest.raises(ModelError, match="not empty"):
        export(config, tmp_path)
    with pytest.raises(ModelError, match="Not a directory"):
        export(config, Path(__file__))
    with pytest.raises(ModelError, match="--max-len"):
        export(config, tmp_path / "out", max_len=10**6)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("vjax.export._write_weights", full)
    config = EngineConfig(model=str(checkpoint(CASE, tmp_path)), use_tqdm_on_load=False)
    with pytest.raises(ModelError, match="out: cannot be written: No space left on device"):
        export(config, tmp_path / "out", prefill=(4,), max_len=16, show=False)
    assert not list((tmp_path / "out").iterdir())


def test_without_flatbuffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vjax.export.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'vjax\[export\]'"):
        export(EngineConfig(model="unused"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
