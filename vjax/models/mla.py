"""What families with multi-head latent attention share: their config, parameters and block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec
from vjax.layers.context import Context
from vjax.layers.mla import latent_attention
from vjax.layers.moe import feed_forward
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.rope import rope_from_hf, yarn_mscale
from vjax.models.config import CacheSpec, ModelConfig, config_from_hf, positive
from vjax.models.moe_parts import moe_params
from vjax.models.parts import decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Param, Source, Tree, merged, vector, weight


@dataclass(frozen=True)
class MLAConfig(ModelConfig):
    """To the cache there is one key head, `kv_lora_rank + qk_rope_head_dim` wide."""

    q_lora_rank: int | None = None  # None: queries come straight from the stream
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    latent_bias: bool = False  # of the projections to the latents
    choice_bias: bool = False  # routers have one

    @property
    def cache_specs(self) -> dict[str, CacheSpec]:
        return {"full": CacheSpec(self.num_layers, 1, self.head_dim, values=False)}


C = TypeVar("C", bound=MLAConfig)


def mla_config(hf: dict[str, Any], kind: type[C], *, interleaved: bool, **changes: Any) -> C:
    """The config of a decoder whose layers all attend to latents. `interleaved`: its rope turns neighbours."""
    rope_dim, nope_dim = positive(hf, "qk_rope_head_dim"), positive(hf, "qk_nope_head_dim")
    rank, bias = positive(hf, "kv_lora_rank"), bool(hf.get("attention_bias", False))
    if rope_dim % 2:
        raise ModelError(f"config field 'qk_rope_head_dim' must be even, got {rope_dim}.")
    rope = replace(rope_from_hf(hf, rope_dim), interleaved=interleaved)
    scale = (nope_dim + rope_dim) ** -0.5 * _mscale(hf) ** 2
    layers = positive(hf, "num_hidden_layers")
    attention = tuple(AttentionSpec(scale, pool_layer=i) for i in range(layers))
    base = config_from_hf(
        {**hf, "num_key_value_heads": 1, "head_dim": rank + rope_dim}, ropes=(rope,), attention=attention, o_bias=bias
    )
    own = dict(
        q_lora_rank=None if hf.get("q_lora_rank") is None else positive(hf, "q_lora_rank"),
        kv_lora_rank=rank, qk_nope_head_dim=nope_dim, qk_rope_head_dim=rope_dim,
        v_head_dim=positive(hf, "v_head_dim"), latent_bias=bias,
    )  # fmt: skip
    known = {field.name: getattr(base, field.name) for field in fields(ModelConfig)}
    return kind(**{**known, **own, **changes})


def _mscale(hf: dict[str, Any]) -> float:
    """What YaRN with `mscale_all_dim` multiplies queries and keys by, in all channels and not only the rotated ones."""
    scaling = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    m = float(scaling.get("mscale_all_dim") or 0)
    return yarn_mscale(float(scaling.get("factor") or 1), m) if m and kind != "default" else 1.0


def mla_params(config: MLAConfig, prefix: str) -> dict[str, Any]:
    """The projections to both latents merged, and `kv_b_proj` split into those of keys and values."""
    heads, rank, nope, value = config.num_heads, config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    q_rank, width = config.q_lora_rank, config.hidden_size
    latents = {"kv_a_proj_with_mqa": config.head_dim}
    if q_rank:
        latents = {"q_a_proj": q_rank, **latents}

    def down(kind: str, *inner: int) -> tuple[Source, ...]:
        return tuple(Source(f"{prefix}.{n}.{kind}", (rows, *inner), (rows, *inner)) for n, rows in latents.items())

    def up(name: str, convert: Callable[[np.ndarray], np.ndarray], *shape: int) -> Param:
        stored, axes = (heads * (nope + value), rank), ("heads", None, None)
        both = Source(f"{prefix}.kv_b_proj.weight", stored, shape, convert=convert)
        # GGUF files hold the two apart. A conversion, if only of nothing, keeps them from staying packed: they multiply
        # head by head.
        alone = Source(f"{prefix}.{name}_proj.weight", shape, shape, convert=np.asarray)
        return Param(shape, axes, (both,), or_else=Param(shape, axes, (alone,)))

    q_shape = (heads, nope + config.qk_rope_head_dim, q_rank or width)
    params: dict[str, Any] = {
        "a": merged(down("weight", width), (None, "embed"), concat=0),
        "q": weight(f"{prefix}.{'q_b_proj' if q_rank else 'q_proj'}.weight", q_shape, ("heads", None, None)),
        "kv_norm": norm_params(config, f"{prefix}.kv_a_layernorm", rank),
        "k_b": up("k_b", partial(_keys, heads=heads, nope=nope), heads, rank, nope),
        "v_b": up("v_b", partial(_values, heads=heads, nope=nope), heads, value, rank),
        "o": weight(f"{prefix}.o_proj.weight", (width, heads * value), ("embed", "heads")),
    }
    if q_rank:
        params["q_norm"] = norm_params(config, f"{prefix}.q_a_layernorm", q_rank)
    if config.latent_bias:
        params["a_bias"] = merged(down("bias"), (None,), concat=0, kind="vector")
    if config.o_bias:
        params["o_bias"] = vector(f"{prefix}.o_proj.bias", (width,), fill=0.0)
    return params


def _keys(kv_b: np.ndarray, heads: int, nope: int) -> np.ndarray:
    """`[H * (N + V), R]` -> the keys' part, `[H, R, N]`."""
    return kv_b.reshape(heads, -1, kv_b.shape[-1])[:, :nope].swapaxes(1, 2)


def _values(kv_b: np.ndarray, heads: int, nope: int) -> np.ndarray:
    """`[H * (N + V), R]` -> the values' part, `[H, V, R]`."""
    return kv_b.reshape(heads, -1, kv_b.shape[-1])[:, nope:]


def params(config: MLAConfig) -> Tree:
    return decoder_params(config, tuple(layer_params(config, i) for i in range(config.num_layers)))


def layer_params(config: MLAConfig, i: int) -> Tree:
    prefix = f"model.layers.{i}"
    dense = config.routing is None or i in config.dense_layers
    return {
        "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
        "attention": mla_params(config, f"{prefix}.self_attn"),
        "mlp_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
        "mlp": (gated_mlp_params if dense else _mixture_params)(config, f"{prefix}.mlp"),
    }


def _mixture_params(config: MLAConfig, prefix: str) -> Tree:
    bias = "gate.e_score_correction_bias" if config.choice_bias else None
    return moe_params(config, prefix, shared="shared_experts", choice_bias=bias)


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: MLAConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["attention_norm"], config.norm_eps, ctx)
    attended, cache = latent_attention(w["attention"], normed, ctx, cache, config.attention[layer])
    x, normed = add_norm(x, _scaled(attended, config), w["mlp_norm"], config.norm_eps, ctx)
    return x, _scaled(feed_forward(w["mlp"], normed, config.hidden_act, config.routing), config), cache


def _scaled(update: jax.Array, config: MLAConfig) -> jax.Array:
    return update if config.residual_scale == 1.0 else update * config.residual_scale
