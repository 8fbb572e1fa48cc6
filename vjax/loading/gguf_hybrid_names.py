"""Tensor names of recurrent architectures and hybrids, for `gguf_names`."""

from __future__ import annotations


def _under(module: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{module}.{name}": gguf for name, gguf in names.items()}


MAMBA = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "dt": "ssm_dt",  # `dt_bias`
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
}
SCALARS = {"A_log": "ssm_a", "D": "ssm_d"}  # one for each head
FEED_FORWARD = {f"feed_forward.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
NEMOTRON = {
    "norm": "attn_norm",
    **_under("mixer", MAMBA),
    **{f"mixer.{name}_proj": f"attn_{name}" for name in "qkv"},
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp",
    "mixer.gate.e_score_correction": "exp_probs_b",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
}
DELTA = {
    "post_attention_layernorm": "post_attention_norm",
    **_under("linear_attn", MAMBA),
    "linear_attn.in_proj_qkvz": "ssm_in",  # in old files; since then split in two:
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
}
KIMI = {
    **{f"self_attn.{name}_conv1d": f"ssm_conv1d_{name}" for name in "qkv"},
    **{f"self_attn.{name}_{part}_proj": f"ssm_{name}_{part}" for name in "fg" for part in "ab"},
    "self_attn.b_proj": "ssm_beta",
    "self_attn.dt": "ssm_dt",
    "self_attn.o_norm": "ssm_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.gate.e_score_correction": "exp_probs_b",
    **{f"block_sparse_moe.shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
}
HYBRID_LAYERS = {
    "mamba2": {"norm": "attn_norm", **_under("mixer", MAMBA)},
    "granitehybrid": {"pre_ff_layernorm": "ffn_norm", **FEED_FORWARD, **_under("mamba", MAMBA)},
    "falcon-h1": {**FEED_FORWARD, **_under("mamba", MAMBA)},
    "nemotron_h": NEMOTRON,
    "nemotron_h_moe": NEMOTRON,
    "qwen3next": DELTA,
    "qwen35": DELTA,
    "qwen35moe": DELTA,
    "kimi-linear": KIMI,
}
BACKBONE = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm"}
HYBRID_ROOTS = {
    "mamba2": BACKBONE,
    "granitehybrid": {"model.final_layernorm": "output_norm"},
    "falcon-h1": {"model.final_layernorm": "output_norm"},
    "nemotron_h": BACKBONE,
    "nemotron_h_moe": BACKBONE,
}
# Whole names of tensors that do not say in GGUF whether they are a weight.
BARE = {
    "mamba2": _under("mixer", SCALARS),
    "granitehybrid": _under("mamba", SCALARS),
    "falcon-h1": {**_under("mamba", SCALARS), "pre_ff_layernorm.weight": "ffn_norm"},
    "nemotron_h": _under("mixer", SCALARS),
    "nemotron_h_moe": _under("mixer", SCALARS),
    "qwen3next": {"linear_attn.A_log": "ssm_a"},
    "qwen35": {"linear_attn.A_log": "ssm_a"},
    "qwen35moe": {"linear_attn.A_log": "ssm_a"},
    "kimi-linear": {"self_attn.A_log": "ssm_a"},
}
BACKBONES = tuple(architecture for architecture, names in HYBRID_ROOTS.items() if names is BACKBONE)
