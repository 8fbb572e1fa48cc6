"""Qwen3.5 MoE (Qwen Team, 2026), text: Qwen3.5 with a mixture of experts in every layer."""

from __future__ import annotations

from typing import Any

from vjax.models import qwen3_5, qwen3_next
from vjax.models.config import of_text, positive
from vjax.models.family import Family
from vjax.models.qwen3_next import DeltaConfig

DEFAULTS = {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "num_key_value_heads": 2}
FIXED = {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}


def config(hf: dict[str, Any]) -> DeltaConfig:
    def moe(text: dict[str, Any]) -> DeltaConfig:
        shared = positive(text, "shared_expert_intermediate_size", 512)
        text = {**DEFAULTS, **text, **FIXED, "intermediate_size": shared}  # there is no dense layer
        return qwen3_next.delta_config(text, **qwen3_next.shared_mixture(text))

    return of_text(hf, moe)


FAMILY = Family(
    name="Qwen3.5 MoE (text)",
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    config=config,
    gguf=("qwen35moe",),
    params=qwen3_5.params,
    block=qwen3_next.block,
    gguf_tensor=qwen3_5.gguf_tensor,
    unused=qwen3_5.UNUSED,
)
