from __future__ import annotations

import builtins
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.loading.files import write_gguf
from vjax.errors import CheckpointError
from vjax.loading.gguf import open_gguf
from vjax.loading.orbax import is_checkpoint, load_checkpoint, read_checkpoint_config, save_checkpoint
from vjax.models.spec import Tree, vector, weight
from vjax.parallel.mesh import make_mesh, param_sharding
from vjax.quant import Dense

# Reads that fail on a damaged file leave futures behind, which tensorstore complains of when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 1e4}


def spec(rows: int = 8) -> Tree:
    layer = {"o": weight("o", (rows, 4), ("mlp", "embed")), "norm": vector("n", (4,))}
    return {"embed": weight("e", (6, 4), ("vocab", "embed")), "layers": (layer,)}


def params() -> Tree:
    def dense(*shape: int) -> Dense:
        return Dense(jnp.asarray(np.random.default_rng(shape).standard_normal(shape), jnp.float32))

    return {"embed": dense(6, 4), "layers": ({"o": dense(8, 4), "norm": jnp.arange(4.0)},)}


def saved(folder: Path) -> Path:
    save_checkpoint(folder / "model", params(), CONFIG)
    return folder / "model"


def test_round_trip(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert is_checkpoint(path)
    assert read_checkpoint_config(path) == CONFIG
    found = load_checkpoint(path, spec())
    assert jax.tree.structure(found) == jax.tree.structure(params())
    jax.tree.map(np.testing.assert_array_equal, found, params())
    assert [p.name for p in tmp_path.iterdir()] == ["model"]  # no staging folder is left


def test_casts_as_loading_does(tmp_path: Path) -> None:
    found = load_checkpoint(saved(tmp_path), spec(), dtype=jnp.bfloat16)
    assert found["embed"].dtype == jnp.bfloat16
    assert found["layers"][0]["norm"].dtype == jnp.float32
    np.testing.assert_array_equal(found["embed"].data, params()["embed"].data.astype(jnp.bfloat16))


@pytest.mark.parametrize(("writes", "reads"), [(1, 2), (2, 1), (2, 4)])
def test_between_meshes(writes: int, reads: int, tmp_path: Path) -> None:
    if len(jax.devices()) < max(writes, reads):
        pytest.skip(f"needs {max(writes, reads)} devices")
    first, second = make_mesh(writes), make_mesh(reads)
    placed = params()
    placed["layers"][0]["o"] = Dense(
        jax.device_put(placed["layers"][0]["o"].data, param_sharding(first, spec()["layers"][0]["o"]))
    )
    save_checkpoint(tmp_path / "m", placed, CONFIG)
    found = load_checkpoint(tmp_path / "m", spec(), sharding_for=lambda param: param_sharding(second, param))
    data = found["layers"][0]["o"].data
    assert data.sharding == param_sharding(second, spec()["layers"][0]["o"])
    assert {shard.data.shape for shard in data.addressable_shards} == {(8 // reads, 4)}
    jax.tree.map(np.testing.assert_array_equal, found, params())


def test_tokenizer_files_come_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors", "notes.txt"):
        (source / name).write_text(name)
    save_checkpoint(tmp_path / "a", params(), CONFIG, tokenizer=source)
    assert (tmp_path / "a" / "tokenizer.json").read_text() == "tokenizer.json"
    copied = {p.name for p in (tmp_path / "a").iterdir()}
    assert copied == {"params", "vjax.json", "tokenizer.json", "chat_template.jinja"}
    gguf = write_gguf(tmp_path / "m.gguf", {"w": np.ones((2, 2), np.float32)}, {"tokenizer.ggml.tokens": ["a", "b"]})
    save_checkpoint(tmp_path / "b", params(), CONFIG, tokenizer=gguf)
    assert open_gguf(tmp_path / "b" / "tokenizer.gguf").metadata["tokenizer.ggml.tokens"] == ["a", "b"]


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="exists already"):
        save_checkpoint(path, params(), CONFIG)
    save_checkpoint(path, params(), {"new": True}, force=True)
    assert read_checkpoint_config(path) == {"new": True}
    other = tmp_path / "documents"
    other.mkdir()
    (other / "thesis.txt").write_text("dear")
    with pytest.raises(CheckpointError, match="is not a vjax checkpoint, so it is not replaced"):
        save_checkpoint(other, params(), CONFIG, force=True)
    assert (other / "thesis.txt").read_text() == "dear"
    assert {p.name for p in tmp_path.iterdir()} == {"model", "documents"}


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match=r"absent\.gguf"):
        save_checkpoint(path, params(), {"new": True}, tokenizer=tmp_path / "absent.gguf", force=True)
    assert read_checkpoint_config(path) == CONFIG
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vjax.loading.orbax.shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(CheckpointError, match="needs 0 MiB, 0 MiB are free"):
        save_checkpoint(tmp_path / "out", {"a": jnp.zeros(1000)}, {})
    assert not list(tmp_path.iterdir())


def test_another_model(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match=r"'layers/0/o/data' is \[8, 4\], the configuration asks for \[16, 4\]"):
        load_checkpoint(path, spec(rows=16))
    with pytest.raises(CheckpointError, match="'head/data' is absent"):
        load_checkpoint(path, {**spec(), "head": weight("h", (6, 4), ("vocab", "embed"))})
    with pytest.raises(CheckpointError, match="holds 'embed/data', which this model does not have"):
        load_checkpoint(path, {"layers": spec()["layers"]})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "other"}, "is not the description of a vjax checkpoint"),
        ({"version": 99}, r"version 99; this vjax reads up to \d+\. Upgrade vjax"),
        ({"version": "1"}, "is not the description of a vjax checkpoint"),
        ({"hf_config": []}, "'hf_config' is missing or not an object"),
        ({"arrays": {"embed/data": 3}}, "'arrays' must map names"),
    ],
)
def test_a_description_that_is_wrong(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    manifest = saved(tmp_path) / "vjax.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(CheckpointError, match=rf"vjax\.json: {problem}"):
        load_checkpoint(tmp_path / "model", spec())


def test_every_damaged_file_is_noticed(tmp_path: Path) -> None:
    """Emptied, cut in half or with its middle flipped: an error, or the true values; never other values."""
    path = saved(tmp_path)
    refused = 0
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        data = file.read_bytes()
        middle = len(data) // 2
        for damaged in (b"", data[:middle], data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]):
            file.write_bytes(damaged)
            try:
                found = load_checkpoint(path, spec())
            except CheckpointError:
                refused += 1
            else:
                jax.tree.map(np.testing.assert_array_equal, found, params())
        file.write_bytes(data)
    assert refused > 5


def test_without_orbax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = saved(tmp_path), builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("orbax"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CheckpointError, match=r"pip install 'vjax\[orbax\]'"):
        load_checkpoint(path, spec())
