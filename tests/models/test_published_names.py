"""Checkpoints whose tensors lack the prefix that `transformers` writes, or carry its buffers."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.goldens import load_case
from tests.goldens.weights import write_checkpoint


@pytest.mark.parametrize(("case", "prefix"), [("gpt2", "transformer."), ("opt", "model.")])
def test_names_without_the_prefix(case: str, prefix: str, tmp_path: Path) -> None:
    golden = load_case(case)
    tensors = {name.removeprefix(prefix): tensor for name, tensor in golden.tensors().items()}
    if case == "gpt2":
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
    write_checkpoint(tmp_path, golden.config, tensors)
    model, params = vjax.load(tmp_path, use_tqdm_on_load=False)
    np.testing.assert_allclose(model.apply(params, jnp.asarray(golden.tokens)), golden.logits, atol=1e-4)


def test_the_text_model_of_a_larger_one(tmp_path: Path) -> None:
    golden = load_case("gemma4")
    tensors = {name.replace("model.", "model.language_model.", 1): t for name, t in golden.tensors().items()}
    shared = "model.language_model.layers.5.self_attn.k_proj.weight"  # published, of a layer that has no use for it
    tensors |= {shared: np.zeros((40, 44), np.float32), "model.vision_tower.patch.weight": np.zeros(3, np.float32)}
    text = {key: value for key, value in golden.config.items() if key not in ("architectures", "tie_word_embeddings")}
    config = {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": text}
    write_checkpoint(tmp_path, config, tensors)
    model, params = vjax.load(tmp_path, use_tqdm_on_load=False)
    np.testing.assert_allclose(model.apply(params, jnp.asarray(golden.tokens)), golden.logits, atol=1e-4)
