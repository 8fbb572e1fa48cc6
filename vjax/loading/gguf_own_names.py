"""Tensor names of architectures that share few with Llama, for `gguf_names`."""

from __future__ import annotations

LATENTS = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",  # in DeepSeek's files from before April 2025; then split in two:
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
}
DEEPSEEK = {
    **LATENTS,
    "mlp.gate.e_score_correction": "exp_probs_b",
    **{f"mlp.shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
}
INDEXER = {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}
OWN_LAYERS = {
    "deepseek2": DEEPSEEK,
    "glm-dsa": {**DEEPSEEK, **{f"self_attn.indexer.{name}": f"indexer.{gguf}" for name, gguf in INDEXER.items()}},
    "minicpm3": LATENTS,
    "gemma4": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "router.proj": "ffn_gate_inp",
        "experts.gate_up_proj": "ffn_gate_up_exps",
        "experts.down_proj": "ffn_down_exps",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
    },
    "chatglm": {"self_attn.query_key_value": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "bert": {
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    },
    "modern-bert": {
        "attn_norm": "attn_norm",
        "mlp_norm": "ffn_norm",
        "attn.Wqkv": "attn_qkv",
        "attn.Wo": "attn_output",
        "mlp.Wi": "ffn_up",
        "mlp.Wo": "ffn_down",
    },
    "gpt2": {
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
        "attn.c_attn.linear": "attn_qkv",
        "attn.c_proj.linear": "attn_output",
        "mlp.c_fc.linear": "ffn_up",
        "mlp.c_proj.linear": "ffn_down",
    },
}
OWN_ROOTS = {
    "bert": {
        "bert.embeddings.word_embeddings": "token_embd",
        "bert.embeddings.position_embeddings": "position_embd",
        "bert.embeddings.token_type_embeddings": "token_types",
        "bert.embeddings.LayerNorm": "token_embd_norm",
        "bert.pooler.dense": "cls",
        "classifier": "cls.output",
    },
    "modern-bert": {
        "model.embeddings.tok_embeddings": "token_embd",
        "model.embeddings.norm": "token_embd_norm",
        "model.final_norm": "output_norm",
        "head.dense": "cls",
        "head.norm": "cls.norm",
        "classifier": "cls.output",
    },
    "gemma4": {
        "model.embed_tokens_per_layer": "per_layer_token_embd",
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
    },
    "gpt2": {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"},
}
# Whole names of tensors that do not say here that they are a weight.
OWN_BARE = {
    "gemma4": {
        "layer_scalar": "layer_output_scale.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
    },
}
# Of the names of layers, where it is not `model.layers`.
STEMS = {"gpt2": "transformer.h", "bert": "bert.encoder.layer"}
