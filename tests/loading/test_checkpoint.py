from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from safetensors.numpy import save_file

from tests.loading.files import write_gguf
from vjax.errors import CheckpointError
from vjax.loading.checkpoint import abstract_params, load_params
from vjax.loading.gguf import open_gguf
from vjax.loading.safetensors import open_safetensors
from vjax.models.spec import Source, Tree, merged, vector, weight
from vjax.parallel.mesh import make_mesh, param_sharding
from vjax.quant import Dense

K, G, D, E = 2, 3, 4, 8


def spec() -> Tree:
    """Each kind of leaf: a merged one along axis 1, plain ones, and a vector."""
    qkv = tuple(
        Source(f"{n}.weight", (K * count * D, E), (K, count, D, E)) for n, count in {"q": G, "k": 1, "v": 1}.items()
    )
    return {
        "qkv": merged(qkv, ("kv_heads", None, None, "embed"), concat=1),
        "layers": ({"o": weight("o.weight", (E, K * G * D), ("embed", "heads"))},),
        "norm": vector("norm.weight", (E,)),
        "embed": weight("embed.weight", (6, E), ("vocab", "embed")),
    }


def tensors(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"q.weight": (K * G * D, E), "k.weight": (K * D, E), "v.weight": (K * D, E), "o.weight": (E, K * G * D),
              "norm.weight": (E,), "embed.weight": (6, E)}  # fmt: skip
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def expected(stored: dict[str, np.ndarray]) -> np.ndarray:
    parts = [stored[f"{n}.weight"].reshape(K, count, D, E) for n, count in {"q": G, "k": 1, "v": 1}.items()]
    return np.concatenate(parts, axis=1)


def reader(folder: Path, stored: dict[str, np.ndarray]) -> Any:
    save_file(stored, folder / "model.safetensors")
    return open_safetensors(folder)


def test_values_land_where_they_belong(tmp_path: Path) -> None:
    stored = tensors()
    params = load_params(spec(), reader(tmp_path, stored))
    assert isinstance(params["qkv"], Dense)
    assert isinstance(params["norm"], jax.Array)
    np.testing.assert_array_equal(params["qkv"].data, expected(stored))
    np.testing.assert_array_equal(params["layers"][0]["o"].data, stored["o.weight"])
    np.testing.assert_array_equal(params["norm"], stored["norm.weight"])


@pytest.mark.parametrize("held", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("asked", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_casts(held: Any, asked: Any, tmp_path: Path) -> None:
    stored = tensors(held)
    params = load_params(spec(), reader(tmp_path, stored), dtype=asked)
    assert params["qkv"].dtype == asked
    assert params["norm"].dtype == jnp.float32  # a vector never has 16 bits
    np.testing.assert_array_equal(params["qkv"].data, expected(stored).astype(asked))
    np.testing.assert_array_equal(params["embed"].data, stored["embed.weight"].astype(asked))
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), params)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), abstract_params(spec(), dtype=asked))


def test_a_later_write_to_the_file_changes_nothing(tmp_path: Path) -> None:
    stored = tensors()
    params = load_params(spec(), reader(tmp_path, stored))
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    np.testing.assert_array_equal(params["qkv"].data, expected(stored))


def test_loaded_parameters_can_be_donated(tmp_path: Path) -> None:
    stored = tensors()
    params = load_params(spec(), reader(tmp_path, stored))
    params = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)(params)
    np.testing.assert_array_equal(params["embed"].data, stored["embed.weight"] + 1)


def test_onto_a_mesh(tmp_path: Path) -> None:
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    mesh, stored = make_mesh(2), tensors()
    params = load_params(spec(), reader(tmp_path, stored), sharding_for=lambda param: param_sharding(mesh, param))
    qkv = params["qkv"].data
    assert qkv.sharding.spec == PartitionSpec("model", None, None, None)
    np.testing.assert_array_equal(qkv, expected(stored))
    for shard in qkv.addressable_shards:
        assert shard.data.shape == (1, G + 2, D, E)
        np.testing.assert_array_equal(shard.data, expected(stored)[shard.index])
    assert params["norm"].sharding.is_fully_replicated


def test_rename_and_transform(tmp_path: Path) -> None:
    stored = tensors()
    renamed = {f"x.{name}": array for name, array in stored.items()}
    seen = []

    def transform(name: str, array: np.ndarray) -> np.ndarray:
        seen.append(name)
        return array[::-1] if name == "embed.weight" else array

    params = load_params(spec(), reader(tmp_path, renamed), rename=lambda name: f"x.{name}", transform=transform)
    np.testing.assert_array_equal(params["embed"].data, stored["embed.weight"][::-1])
    assert set(seen) == set(stored)


def expert(name: str, offset: int) -> str | tuple[str, int]:
    return ("exps", int(name.split(".")[1]) + offset) if name.startswith("experts") else name


def test_experts_of_one_tensor(tmp_path: Path) -> None:
    experts = np.random.default_rng(0).standard_normal((3, 4, 32)).astype(np.float32)
    sources = tuple(Source(f"experts.{i}.weight", (4, 32), (1, 4, 32)) for i in range(3))
    tree = {"experts": merged(sources, (None, "mlp", "embed"), concat=0)}
    file = open_gguf(write_gguf(tmp_path / "e.gguf", {"exps": experts}, kind="F16"))
    params = load_params(tree, file, rename=lambda name: expert(name, 0))
    np.testing.assert_array_equal(params["experts"].data, experts.astype(np.float16).astype(np.float32))
    with pytest.raises(CheckpointError, match="1 tensor of the wrong shape"):
        load_params(tree, file, rename=lambda name: expert(name, 1))


def test_a_vector_with_axes_of_one(tmp_path: Path) -> None:
    stored = tensors()
    stored["norm.weight"] = stored["norm.weight"].reshape(1, E)
    params = load_params(spec(), reader(tmp_path, stored))
    assert params["norm"].shape == (E,)


def test_missing_tensors_are_counted(tmp_path: Path) -> None:
    stored = tensors()
    with pytest.raises(CheckpointError, match=r"2 tensors missing: 'norm\.weight', 'k\.weight'\.$"):
        load_params(spec(), reader(tmp_path, {n: a for n, a in stored.items() if n not in ("k.weight", "norm.weight")}))
    many = {f"w{i}": weight(f"w{i}", (2, 2), (None, None)) for i in range(9)}
    with pytest.raises(CheckpointError, match=r"9 tensors missing: 'w0', .*'w4' and 4 more\.$"):
        load_params(many, open_safetensors(tmp_path))


def test_left_over_tensors(tmp_path: Path) -> None:
    one = np.ones(3, np.float32)
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": one, "lm_head.weight": one, "rope_freqs.weight": one}
    load_params(spec(), reader(tmp_path, {**tensors(), **harmless}))
    with pytest.raises(CheckpointError, match=r"1 tensor unknown to this model: 'vision\.weight'"):
        load_params(spec(), reader(tmp_path, {**tensors(), **harmless, "vision.weight": one}))
    load_params(spec(), open_safetensors(tmp_path), ignore=lambda name: name.startswith("vision."))


def test_a_wrong_shape_names_file_and_both_shapes(tmp_path: Path) -> None:
    stored = {**tensors(), "o.weight": np.zeros((E, 5), np.float32)}
    message = r"model\.safetensors: 1 tensor of the wrong shape: 'o\.weight' is \[8, 5\], .* asks for \[8, 24\]"
    with pytest.raises(CheckpointError, match=message):
        load_params(spec(), reader(tmp_path, stored))
    transposed = {**tensors(), "o.weight": np.zeros((K * G * D, E), np.float32)}  # the same size is not enough
    with pytest.raises(CheckpointError, match="of the wrong shape"):
        load_params(spec(), reader(tmp_path, transposed))


def test_integers_are_not_weights(tmp_path: Path) -> None:
    stored = {**tensors(), "o.weight": np.zeros((E, K * G * D), np.int32)}
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'o\.weight' holds int32"):
        load_params(spec(), reader(tmp_path, stored))


def test_progress_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = reader(tmp_path, tensors())
    load_params(spec(), source)
    assert capsys.readouterr() == ("", "")
    load_params(spec(), source, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Loading weights: 100%" in err
