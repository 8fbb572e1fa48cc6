"""Qwen3-Next (Qwen Team, 2025): three layers of Gated DeltaNet to one of attention, whose outputs are gated and whose
rope turns a quarter of a head; a mixture of experts in most layers, with one for all tokens behind a gate; weights of
norms mean 1 + w."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec, self_attention
from vjax.layers.context import Context
from vjax.layers.gated_delta import gated_delta_rule, gated_norm, l2_norm
from vjax.layers.mlp import activation
from vjax.layers.moe import feed_forward
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.recurrent import read_state, write_state
from vjax.layers.short_conv import short_conv
from vjax.models.config import config_from_hf, positive
from vjax.models.family import Family
from vjax.models.hybrid import HybridConfig, decay_from_gguf, hybrid, layer_types, places
from vjax.models.moe_parts import moe_params
from vjax.models.parts import attention_params, decoder_params, gated_mlp_params, norm_params
from vjax.models.qwen2_moe import mixture
from vjax.models.spec import Param, Source, Tree, merged, vector, weight
from vjax.quant import matmul

KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class DeltaConfig(HybridConfig):
    """Sizes of the Gated DeltaNet layers."""

    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0  # of one head
    value_dim: int = 0
    conv_size: int = 0
    values_in_turn: bool = False  # the output projection takes the first value head of every key head, then the second

    @property
    def repeats(self) -> int:
        """Value heads for each key head."""
        return self.value_heads // self.key_heads

    @property
    def conv_channels(self) -> int:
        """For each key head: its query, its key, its values."""
        return 2 * self.key_dim + self.repeats * self.value_dim


EXPERTS = {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": True}


def config(hf: dict[str, Any]) -> DeltaConfig:
    hf = {**EXPERTS, **hf}
    if hf["num_experts"] == 0:
        return delta_config(hf)
    return delta_config(hf, **shared_mixture(hf))


def shared_mixture(hf: dict[str, Any]) -> dict[str, Any]:
    """A Qwen mixture with an expert for all tokens behind a gate."""
    return {**mixture(hf), "shared_size": positive(hf, "shared_expert_intermediate_size", 512), "shared_gate": True}


def delta_config(hf: dict[str, Any], **changes: Any) -> DeltaConfig:
    rope = hf.get("rope_parameters") or {}
    rotary = rope.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 0.25
    defaults = {"head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": rotary}
    hf = {**defaults, **hf, "partial_rotary_factor": rotary}
    every, bias = positive(hf, "full_attention_interval", 4), bool(hf.get("attention_bias", False))
    kinds = layer_types(hf, KINDS, [KINDS[(i + 1) % every == 0] for i in range(positive(hf, "num_hidden_layers"))])
    base = config_from_hf(hf, qkv_bias=bias, o_bias=bias, qk_norm="head", norm_offset=1.0, **changes)
    spec = AttentionSpec(base.head_dim**-0.5, norm_eps=base.norm_eps, norm_offset=1.0, gated=True)
    base = base.with_changes(attention=(spec,) * base.num_layers)
    sizes = dict(
        key_heads=positive(hf, "linear_num_key_heads", 16),
        value_heads=positive(hf, "linear_num_value_heads", 32),
        key_dim=positive(hf, "linear_key_head_dim", 128),
        value_dim=positive(hf, "linear_value_head_dim", 128),
        conv_size=positive(hf, "linear_conv_kernel_dim", 4),
        values_in_turn=bool(hf.get("linear_values_in_turn", False)),
    )
    if sizes["value_heads"] % sizes["key_heads"]:
        raise ModelError("linear_num_value_heads is not a multiple of linear_num_key_heads.")
    if sizes["conv_size"] < 2:
        raise ModelError("linear_conv_kernel_dim must be at least 2.")
    made = hybrid(base, DeltaConfig, places(kinds, KINDS[1]), places(kinds, KINDS[0]), (), **sizes)
    heads, repeats = made.key_heads, made.repeats
    return made.with_changes(
        state_arrays=(
            ("window", (made.conv_size - 1, heads, made.conv_channels), (None, "kv_heads", None)),
            ("memory", (heads, repeats, made.key_dim, made.value_dim), ("kv_heads", None, None, None)),
        )
    )


def params(config: DeltaConfig) -> Tree:
    layers = tuple(layer_params(config, i, delta_inputs) for i in range(config.num_layers))
    return decoder_params(config, layers, config.prefix)


def layer_params(config: DeltaConfig, layer: int, inputs: Any) -> Tree:
    prefix, sparse = f"{config.prefix}layers.{layer}", config.num_experts and layer not in config.dense_layers
    mixer = (
        {"delta": delta_params(config, f"{prefix}.linear_attn", inputs)}
        if layer in config.recurrent_layers
        else {"attention": attention_params(config, f"{prefix}.self_attn", gated=True)}
    )
    return mixer | {
        "norm": norm_params(config, f"{prefix}.input_layernorm"),
        "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
        "mlp": moe_params(config, f"{prefix}.mlp") if sparse else gated_mlp_params(config, f"{prefix}.mlp"),
    }


def delta_inputs(config: DeltaConfig, prefix: str) -> dict[str, Param]:
    """What a layer makes of its input, by key head: query, key, values and their gates; then betas and decays."""
    heads, width = config.key_heads, config.hidden_size
    channels, scalars = config.conv_channels + config.repeats * config.value_dim, 2 * config.repeats
    axes = ("kv_heads", None, "embed")
    return {
        "qkvz": replace(
            weight(f"{prefix}.in_proj_qkvz.weight", (heads, channels, width), axes),
            or_else=split_qkvz(config, prefix),  # in GGUF files
        ),
        "ba": weight(f"{prefix}.in_proj_ba.weight", (heads, scalars, width), axes),
    }


def split_qkvz(config: DeltaConfig, prefix: str) -> Param:
    """The first of them from two tensors, one for the gates."""
    heads, width, gates = config.key_heads, config.hidden_size, config.repeats * config.value_dim
    qkv = by_head(config, f"{prefix}.in_proj_qkv.weight", (width,), (width,))
    z = Source(f"{prefix}.in_proj_z.weight", (heads * gates, width), (heads, gates, width))
    return merged((*qkv, z), ("kv_heads", None, "embed"), concat=1)


def delta_params(config: DeltaConfig, prefix: str, inputs: Any) -> Tree:
    heads, repeats, size = config.key_heads, config.repeats, config.conv_size
    return {
        **inputs(config, prefix),
        "conv": merged(
            by_head(config, f"{prefix}.conv1d.weight", (1, size), (size,)), ("kv_heads", None, None), 1, "vector"
        ),
        "dt_bias": vector(f"{prefix}.dt_bias", (heads, repeats), ("kv_heads", None)),
        "a_log": vector(f"{prefix}.A_log", (heads, repeats), ("kv_heads", None), fill=0.0),
        "out_norm": vector(f"{prefix}.norm.weight", (config.value_dim,)),
        "out": weight(
            f"{prefix}.out_proj.weight", (config.hidden_size, config.value_heads * config.value_dim), ("embed", "heads")
        ),
    }


def by_head(config: DeltaConfig, name: str, stored: tuple[int, ...], inner: tuple[int, ...]) -> tuple[Source, ...]:
    """A tensor with rows for all queries, then all keys, then all values, as parts `[H, channels, *inner]`."""
    heads = config.key_heads
    parts = (config.key_dim, config.key_dim, config.repeats * config.value_dim)
    whole, found, at = (heads * config.conv_channels, *stored), [], 0
    for channels in parts:
        found.append(Source(name, whole, (heads, channels, *inner), rows=(at, at + heads * channels)))
        at += heads * channels
    return tuple(found)


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: DeltaConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["norm"], config.norm_eps, ctx, config.norm_offset)
    if "delta" in w:
        mixed, cache = delta_net(w["delta"], normed, ctx, cache, config, config.recurrent_layers.index(layer))
    else:
        mixed, cache = self_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, mixed, w["mlp_norm"], config.norm_eps, ctx, config.norm_offset)
    return x, feed_forward(w["mlp"], normed, config.hidden_act, config.routing), cache


def delta_net(
    w: Tree, x: jax.Array, ctx: Context, cache: Cache | None, config: DeltaConfig, place: int
) -> tuple[jax.Array, Cache | None]:
    """A Gated DeltaNet layer on `x[T, d]`."""
    tokens, heads, repeats, key, value = x.shape[0], config.key_heads, config.repeats, config.key_dim, config.value_dim
    qkvz, ba = matmul(x, w["qkvz"]), matmul(x, w["ba"]).astype(jnp.float32)
    qkv, z = qkvz[..., : config.conv_channels], qkvz[..., config.conv_channels :]
    state = read_state(ctx, cache, place, config.state_arrays)
    mixed, window = short_conv(qkv, w["conv"], None, state["window"], ctx.step)
    mixed = activation(config.hidden_act)(mixed)  # [T, H, channels] float32
    q, k, v = mixed[..., :key], mixed[..., key : 2 * key], mixed[..., 2 * key :]
    inputs = (
        l2_norm(q) * key**-0.5,
        l2_norm(k),
        v.reshape(tokens, heads, repeats, value),
        -jnp.exp(w["a_log"].astype(jnp.float32)) * jax.nn.softplus(ba[..., repeats:] + w["dt_bias"]),
        jax.nn.sigmoid(ba[..., :repeats]),
    )
    out, memory = gated_delta_rule(inputs, state["memory"], ctx.step)
    out = gated_norm(out, w["out_norm"], z.reshape(out.shape), config.norm_eps).astype(x.dtype)
    cache = write_state(ctx, cache, place, {"window": window, "memory": memory})
    out = out.swapaxes(1, 2) if config.values_in_turn else out
    return matmul(out.reshape(tokens, -1), w["out"]), cache


def gguf_tensor(name: str, array: np.ndarray, config: DeltaConfig) -> np.ndarray:
    """llama.cpp stores norm weights with their 1 added, but for the gated norm, whose weights mean what they are."""
    plain = name.endswith("linear_attn.norm.weight") or not name.endswith("norm.weight")
    return decay_from_gguf(name, array, config) if plain else array - 1.0


FAMILY = Family(
    name="Qwen3-Next",
    architectures=("Qwen3NextForCausalLM",),
    gguf=("qwen3next",),
    config=config,
    params=params,
    block=block,
    gguf_tensor=gguf_tensor,
)
