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
