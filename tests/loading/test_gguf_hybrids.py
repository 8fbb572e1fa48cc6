"""The metadata of recurrent architectures and hybrids, where files differ from the goldens' or are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loading.test_gguf_config import translate
from vjax.errors import CheckpointError, ModelError
from vjax.loading.gguf_names import to_gguf_name

SSM: dict[str, Any] = {
    "ssm__conv_kernel": 4,
    "ssm__inner_size": 96,
    "ssm__state_size": 16,
    "ssm__time_step_rank": 6,
    "ssm__group_count": 2,
}
KIMI: dict[str, Any] = {
    "ssm__conv_kernel": 4,
    "kda__head_dim": 8,
    "attention__head_count_kv": [0, 1],
    "attention__kv_lora_rank": 8,
    "attention__key_length_mla": 12,
    "attention__value_length_mla": 8,
    "rope__dimension_count": 4,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 8,
}


def test_mamba2_has_neither_heads_nor_mlps(tmp_path: Path) -> None:
    config = translate(tmp_path, "mamba2", **{**SSM, "attention__head_count": 0, "feed_forward_length": 0})
    assert (config["num_heads"], config["head_dim"], config["expand"]) == (6, 16, 2)
    with pytest.raises(CheckpointError, match=r"'mamba2\.ssm\.inner_size' is 96, which 5 heads cannot share"):
        translate(tmp_path, "mamba2", **{**SSM, "ssm__time_step_rank": 5})


def test_layers_of_nemotron(tmp_path: Path) -> None:
    lists = {"attention__head_count_kv": [0, 2, 0, 2], "feed_forward_length": [0, 0, 96, 96], "block_count": 4}
    config = translate(tmp_path, "nemotron_h", **SSM, **lists, nextn_predict_layers=1)
    assert config["layers_block_type"] == ["linear_attention", "full_attention", "mlp"]
    assert (config["num_key_value_heads"], config["intermediate_size"]) == (2, 96)
    with pytest.raises(
        CheckpointError, match=r"'nemotron_h\.feed_forward_length' must be a list with a value for each"
    ):
        translate(tmp_path, "nemotron_h", **SSM, **{**lists, "feed_forward_length": [0, 96]})
    with pytest.raises(CheckpointError, match=r"nextn_predict_layers' is 4, of 4 layers"):
        translate(tmp_path, "nemotron_h", **SSM, **lists, nextn_predict_layers=4)


@pytest.mark.parametrize(
    ("key", "value"), [("rope__scaling__finetuned", False), ("expert_count", 8), ("embedding_scale", 12.0)]
)
def test_granite_4_is_not_bamba(key: str, value: Any, tmp_path: Path) -> None:
    lists = {"attention__head_count_kv": [0, 2]}
    assert translate(tmp_path, "granitehybrid", **SSM, **lists)["attn_layer_indices"] == [1]
    name = key.replace("__", ".")
    with pytest.raises(ModelError, match=rf"m\.gguf: metadata key 'granitehybrid\.{name}' is {value}; only"):
        translate(tmp_path, "granitehybrid", **SSM, **lists, **{key: value})


def test_which_layers_of_qwen_attend(tmp_path: Path) -> None:
    keys = {**SSM, "block_count": 3, "full_attention_interval": 2, "nextn_predict_layers": 1}
    assert translate(tmp_path, "qwen35", **keys)["layer_types"] == ["linear_attention", "full_attention"]
    listed = translate(tmp_path, "qwen35", **keys, attention__recurrent_layers=[False, True, False])
    assert listed["layer_types"] == ["full_attention", "linear_attention"]
    with pytest.raises(CheckpointError, match=r"recurrent_layers' must be a list with a value for each of 2 layers"):
        translate(tmp_path, "qwen35", **keys, attention__recurrent_layers=[False])
    with pytest.raises(CheckpointError, match=r"'qwen35\.ssm\.state_size' is as much as all values"):
        translate(tmp_path, "qwen35", **{**keys, "ssm__state_size": 48})


def test_kimi_with_other_routers(tmp_path: Path) -> None:
    assert translate(tmp_path, "kimi-linear", **KIMI)["linear_attn_config"]["full_attn_layers"] == [2]
    with pytest.raises(ModelError, match=r"'kimi-linear\.expert_group_used_count' is 2; only 1 is supported"):
        translate(tmp_path, "kimi-linear", **KIMI, expert_group_used_count=2)
    with pytest.raises(ModelError, match=r"'kimi-linear\.expert_gating_func' is 1; only 2 is supported"):
        translate(tmp_path, "kimi-linear", **KIMI, expert_gating_func=1)


def test_biases_of_any_layer_count(tmp_path: Path) -> None:
    tensors = {"blk.1.attn_q.bias": np.zeros(48, np.float32)}
    keys = {**SSM, "attention__head_count_kv": [0, 2]}
    assert translate(tmp_path, "granitehybrid", tensors, **keys)["attention_bias"]


def test_old_files_of_qwen3_next() -> None:
    name = "model.layers.3.linear_attn.in_proj_qkvz.weight"
    assert to_gguf_name(name, "qwen3next") == "blk.3.ssm_in.weight"
