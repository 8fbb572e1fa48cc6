"""GPT-OSS (OpenAI, 2025): every other layer sees a window, each head's softmax has a sink, and all layers are mixtures
of experts with biases and a clamped unit.

On disk all experts are one tensor, `[E, d, 2 * F]` with each gate beside its value, or packed as MXFP4
`[E, 2 * F, d]`. A GGUF file holds gates and values apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from vjax.layers.mlp import ClampedSwiGLU
from vjax.layers.routing import Routing
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, layer_count, number, positive
from vjax.models.family import Family
from vjax.models.hybrid import layer_types
from vjax.models.moe_parts import stacked_gate_up
from vjax.models.spec import Axes, Param, Source, Tree, vector, weight

DEFAULTS = {
    "head_dim": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
KINDS = ("sliding_attention", "full_attention")
WIDE: Axes = (None, None, "mlp", "embed")
OUT: Axes = (None, "embed", "mlp")


def config(hf: dict[str, Any]) -> ModelConfig:
    hf = {**DEFAULTS, **hf}
    if not hf.get("rope_scaling") and not hf.get("rope_parameters"):
        hf["rope_scaling"] = YARN
    experts, routing = positive(hf, "num_local_experts"), Routing(positive(hf, "num_experts_per_tok"), renormalise=True)
    routing.check(experts)
    kinds = layer_types(hf, KINDS, [KINDS[i % 2] for i in range(layer_count(hf))])
    bias = bool(hf.get("attention_bias", True))
    made = config_from_hf(
        hf,
        hidden_act=ClampedSwiGLU(number(hf, "swiglu_limit", 7.0), number(hf, "swiglu_alpha", 1.702), 1.0),
        qkv_bias=bias,
        o_bias=bias,
        sinks=True,
        routing=routing,
        num_experts=experts,
        expert_size=positive(hf, "intermediate_size"),
    )
    return made.with_windows(kinds, positive(hf, "sliding_window", 128))


def params(config: ModelConfig) -> Tree:
    return llama.pre_norm_params(config, lambda i, prefix: mixture_params(config, f"{prefix}.mlp"))


def mixture_params(config: ModelConfig, prefix: str) -> Tree:
    """The layouts in turn: plain, MXFP4, GGUF."""
    count, width, inner, experts = config.num_experts, config.hidden_size, config.expert_size, f"{prefix}.experts"
    shape, out = (count, 2, inner, width), (count, width, inner)
    gate_up = Source(f"{experts}.gate_up_proj", (count, width, 2 * inner), shape, convert=_columns)
    gate_up_packed = Source(f"{experts}.gate_up_proj_blocks", (count, 2 * inner, width), shape, convert=_rows)
    gate_up_bias = Source(f"{experts}.gate_up_proj_bias", (count, 2 * inner), shape[:3], convert=_rows)
    down = Source(f"{experts}.down_proj", (count, inner, width), out, convert=lambda w: w.swapaxes(1, 2))
    down_packed = Source(f"{experts}.down_proj_blocks", out, out)
    down_apart = Source(f"{experts}.down_proj.weight", out, out, convert=np.asarray)  # not left in blocks
    down_bias, bias_apart = (Source(f"{experts}.down_proj{dot}bias", out[:2], out[:2]) for dot in "_.")
    return {
        "router": weight(f"{prefix}.router.weight", (count, width), (None, "embed")),
        "router_bias": vector(f"{prefix}.router.bias", (count,), fill=0.0),
        "gate_up": _leaf(WIDE, gate_up, _leaf(WIDE, gate_up_packed, stacked_gate_up(config, experts, width))),
        "gate_up_bias": _leaf(WIDE, gate_up_bias, stacked_gate_up(config, experts)),
        "down": _leaf(OUT, down, _leaf(OUT, down_packed, _leaf(OUT, down_apart))),
        "down_bias": _leaf(OUT, down_bias, _leaf(OUT, bias_apart)),
    }


def _leaf(axes: Axes, source: Source, or_else: Param | None = None) -> Param:
    """Of one tensor; a bias has an axis less than its weight."""
    bias = len(source.shape) < len(axes)
    return Param(
        source.shape, axes[: len(source.shape)], (source,), kind="vector" if bias else "weight",
        fill=0.0 if bias else None, or_else=or_else,
    )  # fmt: skip


def _columns(w: np.ndarray) -> np.ndarray:
    """`[E, d, F of (gate, value)]` -> `[E, 2, F, d]`."""
    return w.reshape(*w.shape[:2], -1, 2).transpose(0, 3, 2, 1)


def _rows(w: np.ndarray) -> np.ndarray:
    """`[E, F of (gate, value), ...]` -> `[E, 2, F, ...]`."""
    return w.reshape(w.shape[0], -1, 2, *w.shape[2:]).swapaxes(1, 2)


FAMILY = Family(
    name="GPT-OSS",
    architectures=("GptOssForCausalLM",),
    config=config,
    params=params,
    block=llama.block,
    gguf=("gpt-oss",),
)
