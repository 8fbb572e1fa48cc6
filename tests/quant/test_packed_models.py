"""Whole GGUF models from packed weights, against the same files loaded dense."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.goldens import load_case
from tests.goldens.gguf import gguf_checkpoint
from vjax.errors import ModelError
from vjax.native import library
from vjax.quant import GGMLBlocks

needs_library = pytest.mark.skipif(not library.available(), reason="no C++ compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def is_packed(leaf: object) -> bool:
    return isinstance(leaf, GGMLBlocks)


@needs_library
@pytest.mark.parametrize("quantise", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-untied", "qwen3-untied", "gemma3"])
def test_logits_equal_the_dense_load(name: str, quantise: str, folder: Path) -> None:
    path = gguf_checkpoint(name, folder, quantise)
    model, params = vjax.load(path, packed=True, use_tqdm_on_load=False)
    same, dense = vjax.load(path, use_tqdm_on_load=False)
    assert model == same
    found, leaves = jax.tree.leaves(params, is_leaf=is_packed), jax.tree.leaves(dense)
    assert sum(map(is_packed, found)) >= 4 * model.config.num_layers
    size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    assert size(params) < 0.45 * size(dense)
    assert not any(map(is_packed, leaves))
    tokens = jnp.asarray(load_case(name).tokens)
    expected = jax.jit(same.apply)(dense, tokens)
    np.testing.assert_allclose(jax.jit(model.apply)(params, tokens), expected, atol=1e-4)
    np.testing.assert_allclose(jax.jit(model.apply)(params, tokens[:, :5]), expected[:, :5], atol=1e-4)


def test_packed_cannot_be_had_in_other_dtypes(folder: Path) -> None:
    path = gguf_checkpoint("llama-gqa", folder, "Q4_1")
    with pytest.raises(ModelError, match="packed=True needs float32"):
        vjax.load(path, "bfloat16", packed=True, use_tqdm_on_load=False)
    _, params = vjax.load(path, "bfloat16", packed=None, use_tqdm_on_load=False)
    assert not any(map(is_packed, jax.tree.leaves(params, is_leaf=is_packed)))
