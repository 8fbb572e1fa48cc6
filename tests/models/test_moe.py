"""Mixtures of experts: shapes of published models, and what their files may hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.goldens import load_case
from tests.goldens.gguf import write_gguf
from tests.goldens.gguf_tensors import converted
from tests.goldens.weights import write_checkpoint
from vjax.errors import ModelError
from vjax.models.model import Model
from vjax.plan import plan

# Billions of parameters, as their cards say.
PUBLISHED = {
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "glm-4.5": 352.8,  # and 3.9 that predict a further token
    "glm-4.5-air": 106.9,
    "minimax-m2": 228.7,
    "granite-3.1-1b-a400m": 1.334,
    "laguna-xs.2": 33.4,
    "ernie-4.5-21b-a3b": 21.83,
    "olmoe-1b-7b": 6.92,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    assert plan(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=2e-3)


@pytest.mark.parametrize("name", ["qwen3-moe", "glm4-moe", "laguna", "minimax-m2"])
def test_experts_as_one_tensor(name: str, tmp_path: Path) -> None:
    """As transformers 5 writes what it has trained or changed."""
    golden = load_case(name)
    tensors, layers = golden.tensors(), golden.config["num_hidden_layers"]
    parts = ("w1", "w3", "w2") if name == "minimax-m2" else ("gate_proj", "up_proj", "down_proj")
    block = "block_sparse_moe" if name == "minimax-m2" else "mlp"
    for prefix in (f"model.layers.{i}.{block}.experts" for i in range(layers)):
        count = sum(key.startswith(f"{prefix}.") and key.endswith(f"{parts[0]}.weight") for key in tensors)
        if count:
            gate, up, down = (
                np.stack([tensors.pop(f"{prefix}.{e}.{part}.weight") for e in range(count)]) for part in parts
            )
            tensors |= {f"{prefix}.gate_up_proj": np.concatenate([gate, up], axis=1), f"{prefix}.down_proj": down}
    model, params = vjax.load(write_checkpoint(tmp_path / "model", golden.config, tensors), use_tqdm_on_load=False)
    np.testing.assert_allclose(jax.jit(model.apply)(params, jnp.asarray(golden.tokens)), golden.logits, atol=1e-4)


def test_gguf_with_a_layer_that_predicts_further(tmp_path: Path) -> None:
    golden = load_case("glm4-moe")
    config = {**golden.config, "num_hidden_layers": 4, "num_nextn_predict_layers": 1}
    tensors = converted(golden) | {"blk.3.nextn.eh_proj.weight": np.zeros((48, 96), np.float32)}
    write_gguf(tmp_path / "m.gguf", replace(golden, case=replace(golden.case, config=config)), tensors, "F32", 1)
    model, params = vjax.load(tmp_path / "m.gguf", use_tqdm_on_load=False)
    np.testing.assert_allclose(jax.jit(model.apply)(params, jnp.asarray(golden.tokens)), golden.logits, atol=1e-4)


REFUSED = [
    ("minimax-m2", "scoring_func", "softmax"),
    ("minimax-m2", "rotary_dim", 5),
    ("glm4-moe", "first_k_dense_replace", -1),
    ("gpt-oss", "swiglu_limit", 0),
    ("gpt-oss", "layer_types", ["full_attention"]),
    ("laguna", "gating", "per-layer"),
    ("laguna", "num_attention_heads_per_layer", [6, 4, 3]),
    ("laguna", "moe_apply_router_weight_on_input", True),
    ("laguna", "rope_parameters", {"full_attention": {}}),
    ("ernie-4.5-moe", "use_bias", True),
    ("olmoe", "clip_qkv", 8.0),
    ("granite-moe-shared", "shared_intermediate_size", -1),
]


@pytest.mark.parametrize(("case", "field", "value"), REFUSED)
def test_what_is_refused(case: str, field: str, value: object) -> None:
    match = "partial_rotary_factor" if field == "rotary_dim" else field
    with pytest.raises(ModelError, match=match):
        Model.from_hf({**load_case(case).config, field: value})
