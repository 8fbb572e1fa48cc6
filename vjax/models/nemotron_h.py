"""Nemotron-H (NVIDIA, 2025): one mixer a block, each with its norm: Mamba-2, attention without positions, an MLP of
squared ReLU, or a mixture of such."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec, self_attention
from vjax.layers.context import Context
from vjax.layers.moe import feed_forward
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.routing import Routing
from vjax.layers.ssm import SSMSpec, mamba2
from vjax.models.config import config_from_hf, positive
from vjax.models.family import Family
from vjax.models.hybrid import MambaConfig, decay_from_gguf, hybrid, mamba2_params, places
from vjax.models.parts import attention_params, decoder_params, mlp_params, norm_params
from vjax.models.spec import Source, Tree, merged, vector, weight

PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
KINDS = ("linear_attention", "full_attention", "mlp", "moe")
OLD_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}
SPELLINGS = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_min": "time_step_min",
    "mamba_conv_bias": "use_conv_bias",
}
DEFAULTS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 21504,
    "max_position_embeddings": 4096,
}


@dataclass(frozen=True)
class NemotronConfig(MambaConfig):
    latent_size: int | None = None  # channels that routed experts work on; None: all


def config(hf: dict[str, Any]) -> NemotronConfig:
    hf = {**DEFAULTS, **hf, **{new: hf[old] for old, new in SPELLINGS.items() if old in hf}}
    kinds, eps = _kinds(hf), float(hf.get("layer_norm_epsilon", 1e-5))
    spec = SSMSpec(
        heads=positive(hf, "mamba_num_heads", 128),
        head_dim=positive(hf, "mamba_head_dim", 64),
        groups=positive(hf, "n_groups", 8),
        state=positive(hf, "ssm_state_size", 128),
        conv_size=positive(hf, "conv_kernel", 4),
        act=hf.get("mamba_hidden_act", "silu"),
        norm_eps=eps,
        time_step=(float(hf.get("time_step_min", 0.001)), math.inf),
    )
    act, mlp_bias = hf.get("mlp_hidden_act", "relu2"), bool(hf.get("mlp_bias", False))
    base = config_from_hf({**hf, "num_hidden_layers": len(kinds)}, norm_eps=eps, hidden_act=act, mlp_bias=mlp_bias)
    if "moe" in kinds:
        base = base.with_changes(**_mixture(hf), dense_layers=frozenset(places(kinds, "mlp")))
    attention = (AttentionSpec(base.head_dim**-0.5, rope=None),) * len(kinds)
    bias, conv_bias = bool(hf.get("use_bias", False)), bool(hf.get("use_conv_bias", True))
    latent = positive(hf, "moe_latent_size") if hf.get("moe_latent_size") is not None else None
    return hybrid(
        base.with_changes(attention=attention), NemotronConfig, places(kinds, "full_attention"),
        places(kinds, "linear_attention"), spec.arrays, ssm=spec, in_bias=bias, out_bias=bias, conv_bias=conv_bias,
        latent_size=latent,
    )  # fmt: skip


def _mixture(hf: dict[str, Any]) -> dict[str, Any]:
    experts = positive(hf, "n_routed_experts", 8)
    routing = Routing(
        positive(hf, "num_experts_per_tok", 2),
        score="sigmoid",
        renormalise=bool(hf.get("norm_topk_prob", True)),
        scaling=float(hf.get("routed_scaling_factor", 1.0)),
        groups=positive(hf, "n_group", 1),
        top_groups=positive(hf, "topk_group", 1),
    )
    routing.check(experts)
    size = positive(hf, "moe_intermediate_size", 7688)
    shared = positive(hf, "moe_shared_expert_intermediate_size", 7688)
    return dict(routing=routing, num_experts=experts, expert_size=size, shared_size=shared)


def _kinds(hf: dict[str, Any]) -> list[str]:
    """Of every layer: `layers_block_type`, or a letter each in `hybrid_override_pattern`."""
    found = hf.get("layers_block_type") or [PATTERN.get(c, c) for c in hf.get("hybrid_override_pattern") or ""]
    kinds = [OLD_NAMES.get(kind, kind) for kind in found]
    for kind in kinds:
        if kind not in KINDS:
            raise ModelError(f"layers_block_type {kind!r} is not supported; known: {', '.join(KINDS)}.")
    if not kinds:
        raise ModelError("config field 'hybrid_override_pattern' or 'layers_block_type' is missing.")
    return kinds


def params(config: NemotronConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"backbone.layers.{i}"
        if i in config.recurrent_layers:
            mixer = {"mamba": mamba2_params(config, f"{prefix}.mixer")}
        elif i in config.attention_layers:
            mixer = {"attention": attention_params(config, f"{prefix}.mixer")}
        elif i not in config.dense_layers and config.num_experts:
            mixer = {"mlp": _moe_params(config, f"{prefix}.mixer")}
        else:
            mixer = {"mlp": mlp_params(config, f"{prefix}.mixer", up="up_proj", down="down_proj")}
        return mixer | {"norm": norm_params(config, f"{prefix}.norm")}

    layers = tuple(layer(i) for i in range(config.num_layers))
    return decoder_params(config, layers, "backbone.", embed="embeddings", final_norm="norm_f")


def _moe_params(config: NemotronConfig, prefix: str) -> Tree:
    """Experts without gates, perhaps between projections to fewer channels; the shared one takes all channels."""
    count, width, inner = config.num_experts, config.hidden_size, config.expert_size
    latent = config.latent_size or width
    names = {"up": (inner, latent), "down": (latent, inner)}
    experts = {
        name: tuple(Source(f"{prefix}.experts.{e}.{name}_proj.weight", shape, (1, *shape)) for e in range(count))
        for name, shape in names.items()
    }
    shared = config.with_changes(intermediate_size=config.shared_size)
    params: Tree = {
        "router": weight(f"{prefix}.gate.weight", (count, width), (None, "embed")),
        "choice_bias": vector(f"{prefix}.gate.e_score_correction_bias", (count,), fill=0.0),
        "up": merged(experts["up"], (None, "mlp", "embed"), concat=0),
        "down": merged(experts["down"], (None, "embed", "mlp"), concat=0),
        "shared": mlp_params(shared, f"{prefix}.shared_experts", up="up_proj", down="down_proj"),
    }
    if config.latent_size:
        params["latent_in"] = weight(f"{prefix}.fc1_latent_proj.weight", (latent, width), (None, "embed"))
        params["latent_out"] = weight(f"{prefix}.fc2_latent_proj.weight", (width, latent), ("embed", None))
    return params


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: NemotronConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx)
    if "mamba" in w:
        mixed, cache = mamba2(w["mamba"], normed, ctx, cache, config.recurrent_layers.index(layer), config.ssm)
    elif "attention" in w:
        mixed, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    else:
        mixed = feed_forward(w["mlp"], normed, config.hidden_act, config.routing)
    return x, mixed, cache


FAMILY = Family(
    name="Nemotron-H",
    architectures=("NemotronHForCausalLM",),
    gguf=("nemotron_h", "nemotron_h_moe"),
    config=config,
    params=params,
    block=block,
    gguf_tensor=decay_from_gguf,
)
