"""Kimi Linear (Kimi Team, 2025): three layers of Kimi Delta Attention, the gated delta rule with a decay for every
channel, to one of multi-head latent attention, all without positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec
from vjax.layers.context import Context
from vjax.layers.gated_delta import gated_delta_rule, gated_norm, l2_norm
from vjax.layers.mla import latent_attention
from vjax.layers.mlp import activation
from vjax.layers.moe import feed_forward
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.recurrent import read_state, write_state
from vjax.layers.routing import Routing
from vjax.layers.short_conv import short_conv
from vjax.models.config import CacheSpec, positive
from vjax.models.family import Family
from vjax.models.hybrid import HybridConfig, decay_from_gguf, hybrid, layer_types, places
from vjax.models.mla import MLAConfig, mla_config, mla_params
from vjax.models.moe_parts import moe_params
from vjax.models.parts import decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Source, Tree, merged, vector, weight
from vjax.quant import matmul

KINDS = ("linear_attention", "full_attention")
DEFAULTS = {
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True)
class KimiConfig(MLAConfig, HybridConfig):
    """Sizes of the delta layers."""

    delta_heads: int = 0
    delta_dim: int = 0
    conv_size: int = 0

    @property
    def cache_specs(self) -> dict[str, CacheSpec]:
        return {"full": CacheSpec(len(self.attention_layers), 1, self.head_dim, values=False)}


def config(hf: dict[str, Any]) -> KimiConfig:
    longest = hf.get("max_position_embeddings") or hf.get("model_max_length") or 1048576
    hf, layers = {**DEFAULTS, **hf, "max_position_embeddings": longest}, positive(hf, "num_hidden_layers")
    own = hf.get("linear_attn_config") or {}
    if "full_attn_layers" in own:  # numbered from 1
        default = [KINDS[i + 1 in own["full_attn_layers"]] for i in range(layers)]
    else:
        default = [KINDS[i > 0 and i % 4 == 0] for i in range(layers)]
    kinds = layer_types(hf, KINDS, default)
    base = mla_config(hf, MLAConfig, interleaved=False, **_mixture(hf, layers))
    base = base.with_changes(attention=(AttentionSpec(base.attention[0].scale, rope=None),) * layers)
    heads = positive(own, "num_heads", positive(hf, "linear_num_heads", 32))
    dim = positive(own, "head_dim", positive(hf, "linear_head_dim", 128))
    size = positive(own, "short_conv_kernel_size", positive(hf, "linear_conv_kernel_dim", 4))
    if size < 2:
        raise ModelError("short_conv_kernel_size must be at least 2.")
    arrays = (
        ("window", (size - 1, heads, 3, dim), (None, "heads", None, None)),
        ("memory", (heads, 1, dim, dim), ("heads", None, None, None)),
    )
    return hybrid(
        base, KimiConfig, places(kinds, KINDS[1]), places(kinds, KINDS[0]), arrays, delta_heads=heads, delta_dim=dim,
        conv_size=size,
    )  # fmt: skip


def _mixture(hf: dict[str, Any], layers: int) -> dict[str, Any]:
    first, kinds = hf.get("first_k_dense_replace", 1), hf.get("mlp_layer_types")
    dense = range(first) if kinds is None else [i for i, kind in enumerate(kinds) if kind == "dense"]
    experts, size = positive(hf, "num_experts", 256), positive(hf, "moe_intermediate_size", 1024)
    routing = Routing(
        positive(hf, "num_experts_per_token", 8),
        score="sigmoid",
        renormalise=bool(hf.get("moe_renormalize", True)),
        scaling=float(hf.get("routed_scaling_factor", 2.446)),
        groups=positive(hf, "num_expert_group", 1),
        top_groups=positive(hf, "topk_group", 1),
    )
    routing.check(experts)
    shared = positive(hf, "num_shared_experts", 1) * size
    return dict(
        routing=routing, num_experts=experts, expert_size=size, shared_size=shared,
        dense_layers=frozenset(i for i in range(layers) if i in dense),
    )  # fmt: skip


def params(config: KimiConfig) -> Tree:
    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        mixer = (
            {"delta": delta_params(config, f"{prefix}.self_attn")}
            if i in config.recurrent_layers
            else {"attention": mla_params(config, f"{prefix}.self_attn")}
        )
        return mixer | {
            "norm": norm_params(config, f"{prefix}.input_layernorm"),
            "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
            "mlp": gated_mlp_params(config, f"{prefix}.mlp")
            if i in config.dense_layers
            else moe_params(
                config,
                f"{prefix}.block_sparse_moe",
                names=("w1", "w3", "w2"),
                shared="shared_experts",
                choice_bias="gate.e_score_correction_bias",
            ),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def delta_params(config: KimiConfig, prefix: str) -> Tree:
    heads, dim, width, size = config.delta_heads, config.delta_dim, config.hidden_size, config.conv_size
    rows, axes = heads * dim, ("heads", None, None, None)
    low_rank = tuple(Source(f"{prefix}.{n}_a_proj.weight", (dim, width), (1, dim, width)) for n in "fg")
    qkv = tuple(Source(f"{prefix}.{n}_proj.weight", (rows, width), (heads, 1, dim, width)) for n in "qkv")
    conv = tuple(Source(f"{prefix}.{n}_conv1d.weight", (rows, 1, size), (heads, 1, dim, size)) for n in "qkv")
    return {
        "qkv": merged(qkv, axes, concat=1),
        "conv": merged(conv, axes, concat=1, kind="vector"),
        "fg": merged(low_rank, (None, None, "embed"), concat=0),
        "f": weight(f"{prefix}.f_b_proj.weight", (heads, dim, dim), ("heads", None, None)),
        "g": weight(f"{prefix}.g_b_proj.weight", (heads, dim, dim), ("heads", None, None)),
        "beta": weight(f"{prefix}.b_proj.weight", (heads, width), ("heads", "embed")),
        "dt_bias": vector(f"{prefix}.dt_bias", (heads, dim), ("heads", None)),
        "a_log": vector(f"{prefix}.A_log", (heads,), ("heads",), fill=0.0),
        "out_norm": vector(f"{prefix}.o_norm.weight", (dim,)),
        "out": weight(f"{prefix}.o_proj.weight", (width, rows), ("embed", "heads")),
    }


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: KimiConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx)
    if "delta" in w:
        mixed, cache = delta_attention(w["delta"], normed, ctx, cache, config, config.recurrent_layers.index(layer))
    else:
        mixed, cache = latent_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, mixed, w["mlp_norm"], config.norm_eps, ctx)
    return x, feed_forward(w["mlp"], normed, config.hidden_act, config.routing), cache


def delta_attention(
    w: Tree, x: jax.Array, ctx: Context, cache: Cache | None, config: KimiConfig, place: int
) -> tuple[jax.Array, Cache | None]:
    """A layer of Kimi Delta Attention on `x[T, d]`."""
    state, low = read_state(ctx, cache, place, config.state_arrays), matmul(x, w["fg"])
    mixed, window = short_conv(matmul(x, w["qkv"]), w["conv"], None, state["window"], ctx.step)
    mixed = activation(config.hidden_act)(mixed)  # [T, H, 3, D] float32
    forget = matmul(low[:, 0], w["f"]).astype(jnp.float32) + w["dt_bias"]
    decay = -jnp.exp(w["a_log"].astype(jnp.float32))[:, None] * jax.nn.softplus(forget)  # [T, H, D]
    beta = jax.nn.sigmoid(matmul(x, w["beta"]).astype(jnp.float32))
    q, k, v = l2_norm(mixed[:, :, 0]) * config.delta_dim**-0.5, l2_norm(mixed[:, :, 1]), mixed[:, :, 2:]
    out, memory = gated_delta_rule((q, k, v, decay[:, :, None], beta[..., None]), state["memory"], ctx.step)
    gate = matmul(low[:, 1], w["g"])  # [T, H, D]
    out = gated_norm(out[:, :, 0], w["out_norm"], gate, config.norm_eps, "sigmoid").astype(x.dtype)
    cache = write_state(ctx, cache, place, {"window": window, "memory": memory})
    return matmul(out.reshape(x.shape[0], -1), w["out"]), cache


FAMILY = Family(
    name="Kimi Linear",
    architectures=("KimiLinearForCausalLM",),
    gguf=("kimi-linear",),
    config=config,
    params=params,
    block=block,
    gguf_tensor=decay_from_gguf,
)
