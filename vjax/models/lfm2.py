"""LFM2 (Liquid AI, 2025): most layers mix tokens by a gated short convolution, some by attention with query and key
norms; after either a gated MLP, or in LFM2-MoE a mixture of experts in all but the first layers."""

from __future__ import annotations

from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec, self_attention
from vjax.layers.context import Context
from vjax.layers.moe import feed_forward
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.recurrent import Arrays, read_state, write_state
from vjax.layers.routing import Routing
from vjax.layers.short_conv import short_conv
from vjax.models.config import config_from_hf, positive
from vjax.models.family import Family
from vjax.models.hybrid import HybridConfig, conv_weight, hybrid, layer_types, places
from vjax.models.moe_parts import moe_params
from vjax.models.parts import attention_params, decoder_params, norm_params
from vjax.models.spec import Source, Tree, merged, vector, weight
from vjax.quant import matmul

DEFAULTS = {"rope_theta": 1e6, "tie_word_embeddings": True, "max_position_embeddings": 128_000}


def config(hf: dict[str, Any]) -> HybridConfig:
    hf = {**DEFAULTS, **hf, "tie_word_embeddings": hf.get("tie_embedding", hf.get("tie_word_embeddings", True))}
    layers = positive(hf, "num_hidden_layers")
    attending = hf.get("full_attn_idxs", range(layers))
    default = ["full_attention" if i in attending else "conv" for i in range(layers)]
    kinds = layer_types(hf, ("full_attention", "conv"), default)
    experts = _mixture(hf, layers) if "num_experts" in hf else {}
    sizes = {"intermediate_size": _inner(hf)} if not experts else {}
    base = config_from_hf({**hf, **sizes}, norm_eps=float(hf.get("norm_eps", 1e-5)), **experts)
    base = base.with_changes(
        attention=tuple(AttentionSpec(spec.scale, norm_eps=base.norm_eps) for spec in base.attention)
    )
    window = positive(hf, "conv_L_cache", 3) - 1
    if not window:
        raise ModelError("conv_L_cache=1 is not supported: it must be at least 2.")
    arrays = (("window", (window, base.hidden_size), (None, "mlp")),)
    bias = bool(hf.get("conv_bias", False))  # of the convolution: the MLP has none
    attending, others = places(kinds, "full_attention"), places(kinds, "conv")
    return hybrid(base, HybridConfig, attending, others, arrays, mlp_bias=bias, qk_norm="head")


def _mixture(hf: dict[str, Any], layers: int) -> dict[str, Any]:
    experts, size = positive(hf, "num_experts"), positive(hf, "moe_intermediate_size", 1792)
    routing = Routing(
        positive(hf, "num_experts_per_tok", 4),
        score="sigmoid",
        renormalise=bool(hf.get("norm_topk_prob", True)),
        scaling=float(hf.get("routed_scaling_factor", 1.0)),
    )
    routing.check(experts)
    if not hf.get("use_expert_bias", True):
        raise ModelError("use_expert_bias=False is not supported.")
    dense = frozenset(range(min(hf.get("num_dense_layers", 2), layers)))
    return dict(routing=routing, num_experts=experts, expert_size=size, dense_layers=dense)


def _inner(hf: dict[str, Any]) -> int:
    """The MLP's width: two thirds of what the config says, times a factor and rounded up, unless it is exact."""
    inner = positive(hf, "block_ff_dim", hf.get("intermediate_size"))
    if not hf.get("block_auto_adjust_ff_dim", True):
        return inner
    inner, factor, multiple = int(2 * inner / 3), hf.get("block_ffn_dim_multiplier", 1.0), 1
    if factor is not None:
        inner, multiple = int(factor * inner), positive(hf, "block_multiple_of", 256)
    return -(-inner // multiple) * multiple


def params(config: HybridConfig) -> Tree:
    width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias

    def conv(prefix: str) -> Tree:
        params: Tree = {
            "in": weight(f"{prefix}.in_proj.weight", (3, width, width), (None, "mlp", "embed")),
            "conv": conv_weight(f"{prefix}.conv.weight", width, config.state_arrays[0][1][0] + 1),
            "out": weight(f"{prefix}.out_proj.weight", (width, width), ("embed", "mlp")),
        }
        if bias:
            params["in_bias"] = vector(f"{prefix}.in_proj.bias", (3, width), (None, "mlp"), fill=0.0)
            params["conv_bias"] = vector(f"{prefix}.conv.bias", (width,), ("mlp",), fill=0.0)
            params["out_bias"] = vector(f"{prefix}.out_proj.bias", (width,), fill=0.0)
        return params

    def attention(prefix: str) -> Tree:
        return attention_params(config, prefix, o="out_proj", qk_norm="layernorm")

    def feed_forward_params(prefix: str, i: int) -> Tree:
        if config.num_experts and i not in config.dense_layers:
            return moe_params(config, prefix, names=("w1", "w3", "w2"), choice_bias="expert_bias")
        gate_up = tuple(Source(f"{prefix}.{n}.weight", (inner, width), (1, inner, width)) for n in ("w1", "w3"))
        return {
            "gate_up": merged(gate_up, (None, "mlp", "embed"), concat=0),
            "down": weight(f"{prefix}.w2.weight", (width, inner), ("embed", "mlp")),
        }

    def layer(i: int) -> Tree:
        prefix = f"model.layers.{i}"
        mixer = {"conv": conv(f"{prefix}.conv")} if i in config.recurrent_layers else {
            "attention": attention(f"{prefix}.self_attn")
        }  # fmt: skip
        return mixer | {
            "norm": norm_params(config, f"{prefix}.operator_norm"),
            "mlp_norm": norm_params(config, f"{prefix}.ffn_norm"),
            "mlp": feed_forward_params(f"{prefix}.feed_forward", i),
        }

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)), final_norm="embedding_norm")


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: HybridConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx)
    if "conv" in w:
        place = config.recurrent_layers.index(layer)
        mixed, cache = gated_conv(w["conv"], normed, ctx, cache, place, config.state_arrays)
    else:
        mixed, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, mixed, w["mlp_norm"], config.norm_eps, ctx)
    return x, feed_forward(w["mlp"], normed, "silu", config.routing), cache


def gated_conv(
    w: Tree, x: jax.Array, ctx: Context, cache: Cache | None, place: int, arrays: Arrays
) -> tuple[jax.Array, Cache | None]:  # fmt: skip
    """`out(c * conv(b * v))`, where b, c and v are projections of `x[T, d]`."""
    projected = matmul(x, w["in"])  # [T, 3, d]
    if "in_bias" in w:
        projected = projected + w["in_bias"].astype(x.dtype)
    b, c, v = projected[:, 0], projected[:, 1], projected[:, 2]
    state = read_state(ctx, cache, place, arrays)
    mixed, window = short_conv(b * v, w["conv"], w.get("conv_bias"), state["window"], ctx.step)
    out = matmul(c * mixed.astype(x.dtype), w["out"])
    out = out + w["out_bias"].astype(x.dtype) if "out_bias" in w else out
    return out, write_state(ctx, cache, place, {"window": window})


FAMILY = Family(
    name="LFM2",
    architectures=("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"),
    gguf=("lfm2", "lfm2moe"),
    config=config,
    params=params,
    block=block,
)
