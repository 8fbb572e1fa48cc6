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
from vjax.models.spec import Param, Source, Tree, merged, vector, weight

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
WIDE: tuple[str | None, ...] = (None, None, "mlp", "embed")


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
        hidden_act=ClampedSwiGLU(number(hf, "swiglu_limit", 7.0), number(hf, "swiglu_alpha", 1.702)),
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
    shape, out, axes, out_axes = (count, 2, inner, width), (count, width, inner), WIDE, (WIDE[0], *WIDE[:1:-1])

    def apart(kind: str, *rest: int) -> tuple[Source, ...]:
        names, one = ("gate", "up"), (count, inner, *rest)
        return tuple(Source(f"{experts}.{n}_proj.{kind}", one, (count, 1, inner, *rest)) for n in names)

    gate_up = Source(f"{experts}.gate_up_proj", (count, width, 2 * inner), shape, convert=_columns)
    packed = Source(f"{experts}.gate_up_proj_blocks", (count, 2 * inner, width), shape, convert=_rows)
    bias = Source(f"{experts}.gate_up_proj_bias", (count, 2 * inner), shape[:3], convert=_rows)
    down = Source(f"{experts}.down_proj", (count, inner, width), out, convert=lambda w: w.swapaxes(1, 2))
    others = Param(shape, axes, (packed,), or_else=merged(apart("weight", width), axes, 1))
    down_others = Param(out, out_axes, (Source(f"{experts}.down_proj_blocks", out, out),),
                        or_else=Param(out, out_axes, (Source(f"{experts}.down_proj.weight", out, out),)))  # fmt: skip
    bias_apart = merged(apart("bias"), axes[:3], 1, "vector")
    down_bias = Param(out[:2], out_axes[:2], (Source(f"{experts}.down_proj.bias", out[:2], out[:2]),), kind="vector")
    return {
        "router": weight(f"{prefix}.router.weight", (count, width), (None, "embed")),
        "router_bias": vector(f"{prefix}.router.bias", (count,), fill=0.0),
        "gate_up": Param(shape, axes, (gate_up,), or_else=others),
        "gate_up_bias": merged((bias,), axes[:3], 1, "vector", or_else=bias_apart),
        "down": Param(out, out_axes, (down,), or_else=down_others),
        "down_bias": merged((Source(f"{experts}.down_proj_bias", out[:2], out[:2]),), out_axes[:2], 0, "vector",
                            or_else=down_bias),
    }  # fmt: skip


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
)
