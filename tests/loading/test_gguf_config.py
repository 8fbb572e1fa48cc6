"""The translation of metadata. That translated models compute the right thing is tested in `test_models`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loading.files import write_gguf
from vjax.errors import CheckpointError, ModelError, VjaxError
from vjax.loading.gguf import GGUFFile, open_gguf
from vjax.loading.gguf_config import hf_config_from_gguf
from vjax.loading.gguf_header import Header, Tensor

SIZES = {
    "block_count": 2,
    "context_length": 128,
    "embedding_length": 48,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
EMBED = {"token_embd.weight": np.zeros((11, 48), np.float32)}


def translate(
    path: Path,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
    other: dict[str, Any] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """The config of a file whose metadata are `SIZES` and `keys` (dots written as `__`); None leaves a key out."""
    named = {**SIZES, **{key.replace("__", "."): value for key, value in keys.items()}}
    metadata = {f"{architecture}.{key}": value for key, value in named.items() if value is not None}
    write_gguf(path / "m.gguf", {**EMBED, **(tensors or {})}, {**metadata, **(other or {})}, architecture=architecture)
    return hf_config_from_gguf(open_gguf(path / "m.gguf"))


def test_llama(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 0}
    assert translate(tmp_path, rope__freq_base=5e5, other=ids) == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "intermediate_size": 96,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "vocab_size": 11,
        "rope_theta": 5e5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
    }


def test_tensors_tell_biases_and_the_head(tmp_path: Path) -> None:
    tensors = {"output.weight": EMBED["token_embd.weight"], "blk.0.attn_q.bias": np.zeros(48, np.float32)}
    config = translate(tmp_path, tensors=tensors)
    assert not config["tie_word_embeddings"]
    assert config["attention_bias"]


def test_values_per_layer_that_are_equal(tmp_path: Path) -> None:
    config = translate(tmp_path, attention__head_count_kv=[2, 2], feed_forward_length=[96, 96])
    assert config["num_key_value_heads"] == 2
    assert config["intermediate_size"] == 96
    with pytest.raises(CheckpointError, match=r"m\.gguf: metadata key 'llama\.attention\.head_count_kv' must be int"):
        translate(tmp_path, attention__head_count_kv=[2, 4])


def test_ends_of_turn_are_ends(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    assert translate(tmp_path, other=ids)["eos_token_id"] == [2, 5]


def test_heads_wider_than_their_share(tmp_path: Path) -> None:
    config = translate(tmp_path, attention__key_length=16, rope__dimension_count=8)
    assert config["head_dim"] == 16
    assert config["partial_rotary_factor"] == 0.5
    assert "partial_rotary_factor" not in translate(tmp_path, rope__dimension_count=12)


def test_rope_scaling(tmp_path: Path) -> None:
    scaled = {"rope__scaling__factor": 4.0}
    assert "rope_scaling" not in translate(tmp_path, rope__scaling__type="none", **scaled)
    linear = translate(tmp_path, rope__scaling__type="linear", **scaled)
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    scaled["rope__scaling__original_context_length"] = 32
    yarn = translate(tmp_path, rope__scaling__type="yarn", **scaled)
    assert yarn["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    extra = translate(tmp_path, rope__scaling__type="yarn", rope__scaling__attn_factor=2.0, **scaled)
    assert extra["rope_scaling"]["attention_factor"] == pytest.approx(2 * (1 + 0.1 * math.log(4)))
    given = translate(tmp_path, rope__scaling__type="yarn", rope__scaling__yarn_attn_factor=1.5, **scaled)
    assert given["rope_scaling"]["attention_factor"] == 1.5


def test_rope_factors_are_a_tensor(tmp_path: Path) -> None:
    factors = np.asarray([1, 1, 2, 4, 8, 8], np.float32)
    assert translate(tmp_path, tensors={"rope_freqs.weight": factors})["rope_freq_factors"] == factors.tolist()
    for wrong in (factors[:4], factors * 0):
        with pytest.raises(CheckpointError, match=r"'rope_freqs\.weight' must hold 6 positive numbers"):
            translate(tmp_path, tensors={"rope_freqs.weight": wrong})


def test_gemma3(tmp_path: Path) -> None:
    config = translate(tmp_path, "gemma3", attention__key_length=32, attention__sliding_window=64)
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert (config["sliding_window"], config["layer_types"]) == (64, ["sliding_attention"] * 2)
    assert config["query_pre_attn_scalar"] == 32
    assert config["hidden_activation"] == "gelu_pytorch_tanh"
    assert translate(tmp_path, "gemma3", block_count=62, attention__key_length=32)["query_pre_attn_scalar"] == 12
    flags = translate(
        tmp_path, "gemma3", attention__sliding_window=64, attention__sliding_window_pattern=[True, False]
    )  # fmt: skip
    assert flags["layer_types"] == ["sliding_attention", "full_attention"]
    assert translate(tmp_path, "gemma3")["layer_types"] == ["full_attention"] * 2
    with pytest.raises(CheckpointError, match="has 1 items for 2 layers"):
        translate(tmp_path, "gemma3", attention__sliding_window=64, attention__sliding_window_pattern=[True])


def test_windows_of_olmo_and_exaone(tmp_path: Path) -> None:
    windows = {"attention__sliding_window": 64, "rope__freq_base": 5e5}
    assert translate(tmp_path, "olmo2")["model_type"] == "olmo2"
    config = translate(tmp_path, "olmo2", **windows, attention__sliding_window_pattern=2)
    assert config["model_type"] == "olmo3"
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["rope_parameters"]["sliding_attention"] == {"rope_theta": 5e5}
    assert translate(tmp_path, "exaone4")["sliding_window"] is None
    assert translate(tmp_path, "exaone4", **windows)["layer_types"] == ["sliding_attention"] * 2
    with pytest.raises(CheckpointError, match="must be a list or a positive number, found 0"):
        translate(tmp_path, "exaone4", **windows, attention__sliding_window_pattern=0)


def test_constants_of_minicpm(tmp_path: Path) -> None:
    assert "scale_emb" not in translate(tmp_path, "minicpm")
    config = translate(tmp_path, "minicpm", embedding_scale=12.0, residual_scale=1.4 / math.sqrt(2), logit_scale=3.0)
    assert (config["scale_emb"], config["dim_model_base"]) == (12.0, 16.0)
    assert config["scale_depth"] == pytest.approx(1.4)


@pytest.mark.parametrize("key", [key for key in SIZES if key != "attention.head_count_kv"])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"m\.gguf: metadata key 'llama\.{key}' is missing"):
        translate(tmp_path, **{key.replace(".", "__"): None})


def test_what_cannot_be_translated(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"GGUF architecture 'mamba' is not supported\. Known: llama"):
        translate(tmp_path, "mamba")
    with pytest.raises(ModelError, match="rope scaling 'longrope' is not supported"):
        translate(tmp_path, rope__scaling__type="longrope")
    with pytest.raises(CheckpointError, match=r"rope\.scaling\.factor' is missing, but the scaling is yarn"):
        translate(tmp_path, rope__scaling__type="yarn")
    with pytest.raises(CheckpointError, match=r"'llama\.block_count' is 4000000000; at most"):
        translate(tmp_path, block_count=4_000_000_000)
    with pytest.raises(CheckpointError, match=r"'llama\.context_length' must be int, found str"):
        translate(tmp_path, context_length="long")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2**64 - 1), st.floats(width=32), st.sampled_from(["", "yarn", "linear"]),
    st.lists(st.integers(-3, 9), max_size=3), st.lists(st.text(max_size=2), max_size=2),
)  # fmt: skip
KEYS = [*SIZES, "attention.key_length", "rope.freq_base", "rope.dimension_count", "rope.scaling.type",
        "rope.scaling.factor", "rope.scaling.attn_factor", "attention.sliding_window",
        "attention.sliding_window_pattern"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["llama", "gemma3", "olmo2"]), st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1))
def test_any_metadata_give_a_config_or_a_clear_error(architecture: str, changes: dict[str, Any]) -> None:
    keys = {f"{architecture}.{key}": value for key, value in {**SIZES, **changes}.items() if value is not None}
    tensor = Tensor(GGMLQuantizationType.F32, (11, 48), 0, 11 * 48 * 4)
    header = Header({"general.architecture": architecture, **keys}, {"token_embd.weight": tensor}, 0)
    path = Path(os.devnull)
    try:
        config = hf_config_from_gguf(GGUFFile(path, [path], [header]))
    except VjaxError as error:
        assert len(str(error)) < 500  # noqa: PT017
    else:
        assert config["num_hidden_layers"] >= 1
