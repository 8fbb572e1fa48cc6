"""Gemma 4, latent attention and encoders in GGUF, where files differ from the goldens' or are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gguf import PoolingType

import vjax
from tests.goldens import checkpoint, load_case, load_encoder_case
from tests.goldens.gguf import gguf_checkpoint, write_gguf
from tests.goldens.gguf_encoders import encoder_gguf
from tests.goldens.gguf_tensors import converted
from tests.loading.test_gguf_config import translate
from vjax.errors import CheckpointError, ModelError

GEMMA4: dict[str, Any] = {
    "attention__key_length": 16,
    "attention__key_length_swa": 8,
    "attention__sliding_window": 4,
    "attention__sliding_window_pattern": [True, False],
    "rope__freq_base_swa": 1e4,
}
FREQS = {"rope_freqs.weight": np.asarray([1, 1, *[1e30] * 6], np.float32)}
LATENTS = {"attention__q_lora_rank": 8, "attention__kv_lora_rank": 6, "rope__dimension_count": 4}
GLM_DSA: dict[str, Any] = {
    **LATENTS,
    "attention__key_length_mla": 12,
    "attention__value_length_mla": 8,
    "attention__indexer__head_count": 2,
    "attention__indexer__key_length": 6,
    "attention__indexer__top_k": 4,
    "expert_count": 256,
    "expert_used_count": 2,
    "expert_feed_forward_length": 8,
}


def row(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_gemma4(tmp_path: Path) -> None:
    config = translate(tmp_path, "gemma4", FREQS, **GEMMA4, attention__head_count_kv=[4, 2])
    assert (config["head_dim"], config["global_head_dim"], config["num_key_value_heads"]) == (8, 16, 4)
    assert config["per_layer_config"] == {"1": {"num_key_value_heads": 2, "head_dim": 16}}
    assert config["rope_parameters"]["full_attention"]["partial_rotary_factor"] * 16 // 2 == 2
    assert config["attention_k_eq_v"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"attention__sliding_window_pattern": None}, "sliding_window_pattern' is missing"),
        ({"attention__sliding_window_pattern": [False, True]}, "gives the last layer a window"),
        ({"attention__head_count_kv": [4, 2, 2]}, "must say the same of all layers of a kind"),
        ({"feed_forward_length": [96, 100]}, "neither of one width nor twice it"),
        ({"rope__freq_base_swa": None}, "freq_base_swa' is missing"),
        ({"rope__dimension_count_swa": 4}, "a part of a head's is not supported"),
    ],
)
def test_what_gemma4_cannot_be(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, ModelError), match=rf"m\.gguf: .*{problem}"):
        translate(tmp_path, "gemma4", FREQS, **{**GEMMA4, **changes})


def test_divisors_of_gemma4_are_one_or_endless(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor 'rope_freqs\.weight' is missing"):
        translate(tmp_path, "gemma4", **GEMMA4)
    with pytest.raises(CheckpointError, match="must hold ones, and 1e30"):
        translate(tmp_path, "gemma4", {"rope_freqs.weight": FREQS["rope_freqs.weight"][::-1]}, **GEMMA4)


def test_gemma4_keeps_keys_that_layers_do_not_use(tmp_path: Path) -> None:
    """Checkpoints have them in layers that attend to those of others, and so have files."""
    golden = load_case("gemma4")
    _, expected = vjax.load(gguf_checkpoint("gemma4", tmp_path), use_tqdm_on_load=False)
    surplus = {
        "blk.5.attn_k.weight": row(40, 44),
        "blk.5.attn_v.weight": row(40, 44),
        "blk.5.attn_k_norm.weight": row(20),
    }
    write_gguf(tmp_path / "m.gguf", golden, {**converted(golden), **surplus}, "F32", 1)
    _, found = vjax.load(tmp_path / "m.gguf", use_tqdm_on_load=False)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_layers_of_glm_5_that_choose(tmp_path: Path) -> None:
    config = translate(tmp_path, "glm-dsa", **GLM_DSA)
    assert (config["index_topk_freq"], config["n_group"], config["qk_nope_head_dim"]) == (1, 1, 8)
    new = translate(tmp_path, "glm-dsa", **{**GLM_DSA, "context_length": 1 << 20})
    assert (new["index_topk_freq"], new["index_skip_topk_offset"]) == (4, 3)
    listed = translate(tmp_path, "glm-dsa", **GLM_DSA, attention__indexer__types=[True, False])
    assert listed["indexer_types"] == ["full", "shared"]
    with pytest.raises(CheckpointError, match=r"'glm-dsa\.attention\.indexer\.types' must be a list"):
        translate(tmp_path, "glm-dsa", **GLM_DSA, attention__indexer__types=[True])
    with pytest.raises(CheckpointError, match=r"expert_gating_func' is softmax"):
        translate(tmp_path, "glm-dsa", **GLM_DSA, expert_gating_func=1)


def test_layers_that_predict_further_are_not_counted(tmp_path: Path) -> None:
    keys = {name: value for name, value in GLM_DSA.items() if "indexer" not in name}
    assert translate(tmp_path, "deepseek2", **keys, nextn_predict_layers=1)["num_hidden_layers"] == 1


def test_minicpm3_leaves_out_what_follows(tmp_path: Path) -> None:
    factors = {f"rope_factors_{length}.weight": np.ones(2, np.float32) for length in ("long", "short")}
    config = translate(tmp_path, "minicpm3", factors, **LATENTS, attention__key_length=12)
    assert (config["v_head_dim"], config["qk_nope_head_dim"]) == (12, 8)
    assert config["original_max_position_embeddings"] == 128
    scaled = translate(
        tmp_path, "minicpm3", factors, **LATENTS, attention__key_length=12, rope__scaling__type="longrope"
    )
    assert scaled["rope_scaling"]["rope_type"] == "longrope"


def test_glm_with_queries_keys_and_values_apart(tmp_path: Path) -> None:
    """As files from `transformers`' form of the checkpoint have them; the golden's are from the first form."""
    golden = load_case("glm")
    tensors = {name: array for name, array in converted(golden).items() if "attn_qkv" not in name}
    for name, array in golden.tensors().items():
        _, _, layer, block, module, kind = (name.split(".") + [""] * 6)[:6]
        if block == "self_attn" and module in ("q_proj", "k_proj", "v_proj"):
            tensors[f"blk.{layer}.attn_{module[0]}.{kind}"] = array
    write_gguf(tmp_path / "m.gguf", golden, tensors, "F32", 1)
    _, found = vjax.load(tmp_path / "m.gguf", use_tqdm_on_load=False)
    _, expected = vjax.load(checkpoint("glm", tmp_path), use_tqdm_on_load=False)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_half_a_classifier_is_refused(tmp_path: Path) -> None:
    types = {"token_types.weight": row(2, 48)}
    assert translate(tmp_path, "bert", types)["architectures"] == ["BertModel"]
    whole = {**types, "cls.weight": row(48, 48), "cls.output.weight": row(3, 48)}
    assert translate(tmp_path, "bert", whole)["num_labels"] == 3
    for name in ("cls.weight", "cls.output.weight"):
        half = {key: array for key, array in whole.items() if key != name}
        with pytest.raises(CheckpointError, match=rf"m\.gguf: tensor '{name}' is missing"):
            translate(tmp_path, "bert", half)
    with pytest.raises(CheckpointError, match=r"tensor 'token_types\.weight' is missing"):
        translate(tmp_path, "bert")


def test_heads_of_modernbert(tmp_path: Path) -> None:
    """A hidden layer without a last one is left over from pretraining."""
    left = translate(tmp_path, "modern-bert", {"cls.weight": row(48, 48)})
    assert left["architectures"] == ["ModernBertModel"]
    assert left["layer_types"] == ["full_attention"] * 2
    head = {"cls.weight": row(48, 48), "cls.output.weight": row(3, 48)}
    found = translate(tmp_path, "modern-bert", head, hidden_activation="silu", attention__sliding_window=8)
    assert (found["num_labels"], found["classifier_pooling"]) == (3, "mean")
    assert (found["hidden_activation"], found["local_attention"]) == ("silu", 8)


def test_a_pooling_that_is_not_known(tmp_path: Path) -> None:
    golden = load_encoder_case("bert")
    unpooled = encoder_gguf(golden, tmp_path / "m.gguf", PoolingType.NONE)
    data = unpooled.read_bytes()
    key = b"bert.pooling_type" + (4).to_bytes(4, "little")
    unpooled.write_bytes(data.replace(key + bytes(4), key + (9).to_bytes(4, "little")))
    with pytest.raises(ModelError, match=r"m\.gguf: metadata key 'bert\.pooling_type' is 9"):
        vjax.load(unpooled, use_tqdm_on_load=False)
