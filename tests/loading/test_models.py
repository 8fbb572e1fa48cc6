"""Whole models, from every kind of file, against the reference logits."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.goldens import Golden, checkpoint, load_case
from tests.goldens.gguf import dequantised, gguf_case_names, gguf_checkpoint
from tests.goldens.gguf_hybrids import text_of
from tests.goldens.gguf_tensors import taken_apart
from tests.goldens.weights import write_checkpoint
from vjax.loading.checkpoint import load_params
from vjax.loading.gguf import GGUFFile, open_gguf
from vjax.loading.gguf_config import hf_config_from_gguf
from vjax.loading.gguf_names import to_gguf_name, to_hf_name
from vjax.loading.hf_config import read_hf_config
from vjax.loading.safetensors import open_safetensors
from vjax.models.model import Model
from vjax.models.spec import Tree


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def from_safetensors(path: Path) -> tuple[Model, Tree]:
    model = Model.from_hf(read_hf_config(path))
    return model, load_params(model.spec(), open_safetensors(path))


def from_gguf(gguf: GGUFFile) -> tuple[Model, Tree]:
    model = Model.from_hf(hf_config_from_gguf(gguf))
    undo, architecture = model.family.gguf_tensor, gguf.metadata["general.architecture"]
    transform = (lambda name, array: undo(name, array, model.config)) if undo else None
    return model, load_params(
        model.spec(), gguf, transform=transform, rename=lambda name: to_gguf_name(name, architecture)
    )


def logits(model: Model, params: Tree, golden: Golden) -> np.ndarray:
    return np.asarray(jax.jit(model.apply)(params, jnp.asarray(golden.tokens)))


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3"])
def test_shards_of_either_format(name: str, folder: Path) -> None:
    golden = load_case(name)
    _, whole = from_safetensors(checkpoint(name, folder))
    _, sharded = from_safetensors(checkpoint(name, folder, shards=3))
    jax.tree.map(np.testing.assert_array_equal, whole, sharded)
    first = gguf_checkpoint(name, folder, splits=3)
    for path in sorted(first.parent.glob(f"{name}-*-of-00003.gguf")):
        np.testing.assert_allclose(logits(*from_gguf(open_gguf(path)), golden), golden.logits, atol=1e-4)


@pytest.mark.parametrize("quantise", ["Q8_0", "Q4_0", "BF16"])
def test_quantised_gguf_equals_its_dequantised_folder(quantise: str, folder: Path, tmp_path: Path) -> None:
    golden = load_case("qwen2-untied")
    _, found = from_gguf(open_gguf(gguf_checkpoint("qwen2-untied", folder, quantise)))
    write_checkpoint(tmp_path, golden.config, dequantised(golden, quantise))
    _, expected = from_safetensors(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("name", gguf_case_names())
def test_names_go_both_ways(name: str, folder: Path) -> None:
    """The converter's own table, through the fixture, agrees with ours in both directions."""
    gguf = open_gguf(gguf_checkpoint(name, folder))
    architecture = gguf.metadata["general.architecture"]
    stored = {name for name in gguf.names() if not name.startswith("rope_f")}
    golden = text_of(load_case(name))
    names = taken_apart(golden.tensors(), golden.config)
    found = {name: to_gguf_name(name, architecture) for name in names}
    assert {name if isinstance(name, str) else name[0] for name in found.values()} == stored
    shared = {place[0] for place in found.values() if not isinstance(place, str)}  # by several of ours
    alone = {name for name, place in found.items() if isinstance(place, str)}
    assert {to_hf_name(name, architecture) for name in stored - shared} == alone
