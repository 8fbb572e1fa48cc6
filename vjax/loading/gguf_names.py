"""One table of tensor names: Hugging Face's on the left, GGUF's on the right."""

from __future__ import annotations

import operator
import re
from functools import reduce

from vjax.loading.gguf_hybrid_names import BACKBONES, BARE, HYBRID_LAYERS, HYBRID_ROOTS
from vjax.loading.gguf_own_names import OWN_BARE, OWN_LAYERS, OWN_ROOTS, STEMS

ROOT = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
# Families that also norm what each half of a block puts out use one Hugging Face name in another sense.
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SHARED = {f"mlp.shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")}
LFM2 = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}
# What single architectures call otherwise; here the later of two names for one tensor is the one that is meant.
ARCHITECTURE = {
    "gemma2": SANDWICH,
    "gemma3": SANDWICH,
    "olmo2": SANDWICH,
    "exaone4": SANDWICH,
    "phi2": {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "lfm2": LFM2,
    "lfm2moe": {**LFM2, "feed_forward.gate": "ffn_gate_inp", "feed_forward.expert": "exp_probs_b"},  # `expert_bias`
    "starcoder2": {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    "llama": {"block_sparse_moe.gate": "ffn_gate_inp"},  # Mixtral
    "gpt-oss": {
        "post_attention_layernorm": "post_attention_norm",
        "self_attn.sinks": "attn_sinks",
        "mlp.router": "ffn_gate_inp",
        **{f"mlp.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
    },
    "hunyuan-dense": {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    "seed_oss": {"post_attention_layernorm": "post_attention_norm"},
    "glm4": {
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
    },
    "glm4moe": {
        "post_attention_layernorm": "post_attention_norm",
        "mlp.gate.e_score_correction": "exp_probs_b",
        **SHARED,
    },
    "minimax-m2": {
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.e_score_correction": "exp_probs_b",
    },
    "granitemoe": {
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.experts.gate_proj": "ffn_gate_exps",
        "block_sparse_moe.experts.up_proj": "ffn_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "shared_mlp.gate_proj": "ffn_gate_shexp",
        "shared_mlp.up_proj": "ffn_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
    },
    "ernie4_5-moe": {"mlp.moe_statics.e_score_correction": "exp_probs_b", **SHARED},
    "internlm2": {
        "attention_norm": "attn_norm",
        "attention.wo": "attn_output",
        "ffn_norm": "ffn_norm",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w3": "ffn_up",
        "feed_forward.w2": "ffn_down",
    },
}
ROOTS = {
    "lfm2": {"model.embedding_norm": "token_embd_norm"},
    "lfm2moe": {"model.embedding_norm": "token_embd_norm"},
    "phi2": {"model.final_layernorm": "output_norm"},
    "internlm2": {"model.tok_embeddings": "token_embd", "output": "output"},
}
# Experts are tensors of their own there, and one tensor `[E, out, in]` here.
KINDS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
EXPERT = {
    f"{block}.experts.{name}": f"ffn_{kind}_exps"
    for block in ("mlp", "block_sparse_moe", "feed_forward", "mixer")
    for name, kind in KINDS.items()
}
# So are StableLM's norms of each head.
EXPERT |= {"self_attn.q_layernorm.norms": "attn_q_norm", "self_attn.k_layernorm.norms": "attn_k_norm"}

_STEM = r"(?:model\.layers|backbone\.layers|transformer\.h|bert\.encoder\.layer)"
_HF = re.compile(_STEM + r"\.(?P<layer>\d+)\.(?P<part>.+)[._](?P<kind>weight|bias)")
_GGUF = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>.+)\.(?P<kind>weight|bias)")
_HF_BARE = re.compile(_STEM + r"\.(?P<layer>\d+)\.(?P<part>.+)")
_GGUF_BARE = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>[\w.]+)")


def _layer_table(architecture: str) -> dict[str, str]:
    tables = (ARCHITECTURE, OWN_LAYERS, HYBRID_LAYERS)
    return reduce(operator.or_, (table.get(architecture, {}) for table in tables), LAYER)


def _roots(architecture: str) -> dict[str, str]:
    tables = (ROOTS, OWN_ROOTS, HYBRID_ROOTS)
    return reduce(operator.or_, (table.get(architecture, {}) for table in tables), ROOT)


def _bare(architecture: str) -> dict[str, str]:
    return BARE.get(architecture) or OWN_BARE.get(architecture, {})


def to_gguf_name(name: str, architecture: str) -> str | tuple[str, int]:
    """The GGUF tensor that holds a Hugging Face one, with the index of an expert where it holds all of them.
    A name that the table does not know comes back as it is."""
    bare, known = _HF_BARE.fullmatch(name), _bare(architecture)
    if bare and bare["part"] in known:
        return f"blk.{bare['layer']}.{known[bare['part']]}"
    match = _HF.fullmatch(name)
    if match is None:
        stem, _, kind = name.rpartition(".")
        roots = _roots(architecture)
        return f"{roots[stem]}.{kind}" if stem in roots else name
    part, expert = match["part"], re.search(r"\.(?:experts|norms)\.(\d+)", match["part"])
    if expert:
        part = part[: expert.start(1) - 1] + part[expert.end(1) :]
    found = EXPERT.get(part) if expert else _layer_table(architecture).get(part)
    if found is None:
        return name
    stored = f"blk.{match['layer']}.{found}.{match['kind']}"
    return (stored, int(expert[1])) if expert else stored


def to_hf_name(name: str, architecture: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for one that the table does not know or that holds experts."""
    layers = "backbone.layers" if architecture in BACKBONES else STEMS.get(architecture, "model.layers")
    bare, known = _GGUF_BARE.fullmatch(name), {gguf: hf for hf, gguf in _bare(architecture).items()}
    if bare and bare["part"] in known:
        return f"{layers}.{bare['layer']}.{known[bare['part']]}"
    match = _GGUF.fullmatch(name)
    if match is None:
        stem, _, kind = name.rpartition(".")
        roots = {gguf: hf for hf, gguf in _roots(architecture).items()}
        return f"{roots[stem]}.{kind}" if stem in roots else None
    parts = {gguf: hf for hf, gguf in _layer_table(architecture).items()}
    part = parts.get(match["part"])
    join = "_" if match["part"] in ("exp_probs_b", "ssm_dt") else "."
    return f"{layers}.{match['layer']}.{part}{join}{match['kind']}" if part else None
