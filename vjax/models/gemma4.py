"""Gemma 4, text (Google DeepMind, 2026). Beyond Gemma 3: heads of full layers are wider than those of windowed ones;
the last layers attend to keys and values of earlier ones; every layer may get an embedding of its own for each token; a
mixture of experts beside the MLP. Of a checkpoint that also sees and hears the text model is loaded."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec, attend
from vjax.layers.context import Context
from vjax.layers.mlp import activation, mlp
from vjax.layers.moe import experts
from vjax.layers.norms import add_norm, norm, unit_norm
from vjax.layers.paging import Cache
from vjax.layers.rope import rope_from_hf, rotate
from vjax.layers.routing import Routing, route
from vjax.models.config import CacheSpec, ModelConfig, config_from_hf, layer_count, of_text, positive
from vjax.models.family import Family
from vjax.models.hybrid import layer_types
from vjax.models.moe_parts import experts_params
from vjax.models.parts import decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Param, Source, Tree, merged, vector, weight
from vjax.quant import matmul, rows

LOCAL, FULL = KINDS = ("sliding_attention", "full_attention")
# Published configs leave out what equals the reference's defaults.
DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 512,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 0,
    "tie_word_embeddings": True,
}
ROPES = {
    LOCAL: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
UNUSED = r"model\.(vision_tower|audio_tower|embed_vision|embed_audio)\..*"
UNUSED += r"|model\.(language_model\.)?layers\.\d+\.self_attn\.(k_proj|v_proj|k_norm)\.weight"  # of sharing layers


@dataclass(frozen=True)
class Gemma4Config(ModelConfig):
    """`num_kv_heads` and `head_dim` are those of windowed layers."""

    full_kv_heads: int = 0
    full_head_dim: int = 0
    full_values: bool = True  # full layers project values; else they are the keys before norm and rope
    wide_mlp: bool = False  # twice as wide in layers that share
    layer_width: int = 0  # of each layer's own embedding; 0: there are none
    layer_vocab: int = 0

    def heads(self, layer: int) -> tuple[int, int]:
        """Key/value heads and their channels."""
        full = self.attention[layer].pool == "full"
        return (self.full_kv_heads, self.full_head_dim) if full else (self.num_kv_heads, self.head_dim)

    @property
    def cache_specs(self) -> dict[str, CacheSpec]:
        def layers(pool: str) -> int:
            return sum(spec.pool == pool and not spec.stored for spec in self.attention)

        local = CacheSpec(layers("local"), self.num_kv_heads, self.head_dim)
        return {"full": CacheSpec(layers("full"), self.full_kv_heads, self.full_head_dim), "local": local}


def config(hf: dict[str, Any]) -> Gemma4Config:
    return of_text(hf, _text)


def _text(hf: dict[str, Any]) -> Gemma4Config:
    hf = {**DEFAULTS, **hf}
    if hf.get("use_bidirectional_attention") == "all" or hf.get("attention_bias"):
        raise ModelError("config fields 'use_bidirectional_attention': 'all' and 'attention_bias' are not supported.")
    layers = layer_count(hf)
    kinds = layer_types(hf, KINDS, [KINDS[(i + 1) % 6 == 0] for i in range(layers)])
    kinds[-1] = FULL
    alike = bool(hf.get("attention_k_eq_v"))
    full_heads, full_dim = _full_heads(hf, kinds, alike)
    if positive(hf, "head_dim") % 2 or full_dim % 2:
        raise ModelError("config fields 'head_dim' and 'global_head_dim' must be even.")
    ropes = hf.get("rope_parameters") or ROPES
    if not isinstance(ropes, dict) or not all(isinstance(ropes.get(kind), dict) for kind in set(kinds)):
        raise ModelError("config field 'rope_parameters' must hold the rope of each kind of layer.")
    local = rope_from_hf(hf, hf["head_dim"], parameters=ropes.get(LOCAL, ROPES[LOCAL]))
    full = rope_from_hf(hf, full_dim, parameters=ropes[FULL])
    base = config_from_hf(
        hf,
        ropes=(full, local),
        attention=_attention(hf, kinds),
        hidden_act=hf["hidden_activation"],
        embed_scale=float(positive(hf, "hidden_size")) ** 0.5,
        final_softcap=hf.get("final_logit_softcapping"),
        **_mixture(hf),
    )
    if base.num_heads % full_heads:
        raise ModelError(
            f"num_attention_heads={base.num_heads} is not a multiple of {full_heads} heads of full layers."
        )
    width = positive(hf, "hidden_size_per_layer_input") if hf["hidden_size_per_layer_input"] else 0
    return Gemma4Config(
        **{field.name: getattr(base, field.name) for field in fields(base)},
        full_kv_heads=full_heads,
        full_head_dim=full_dim,
        full_values=not alike,
        wide_mlp=bool(hf.get("use_double_wide_mlp")),
        layer_width=width,
        layer_vocab=positive(hf, "vocab_size_per_layer_input", 262144),
    )


def _full_heads(hf: dict[str, Any], kinds: list[str], alike: bool) -> tuple[int, int]:
    """Key/value heads and channels of full layers: published configs have fields for them, transformers 5 writes them
    for each layer."""
    dim, heads = positive(hf, "global_head_dim", 512), positive(hf, "num_key_value_heads")
    if alike:
        heads = positive(hf, "num_global_key_value_heads", heads)
    each = hf.get("per_layer_config")
    if each is None:
        return heads, dim
    found = set()
    for i, kind in enumerate(kinds):
        own = each.get(str(i)) or {} if isinstance(each, dict) else None
        if not isinstance(own, dict) or (own and kind == LOCAL):
            raise ModelError("config field 'per_layer_config' must hold an object for full layers alone.")
        if kind == FULL:
            found.add((positive(own, "num_key_value_heads", hf["num_key_value_heads"]), positive(own, "head_dim", dim)))
    if len(found) > 1:
        raise ModelError("config field 'per_layer_config' must say the same of all full layers.")
    return found.pop()


def _attention(hf: dict[str, Any], kinds: list[str]) -> tuple[AttentionSpec, ...]:
    """The last `num_kv_shared_layers` take the keys and values of the last layer of their kind before them."""
    shared, window = hf["num_kv_shared_layers"] or 0, positive(hf, "sliding_window")
    if not isinstance(shared, int) or not 0 <= shared < len(kinds) or set(kinds) - set(kinds[: len(kinds) - shared]):
        raise ModelError(
            f"config field 'num_kv_shared_layers' is {shared!r}: no layer of their kind comes before them."
        )
    own, specs = kinds[: len(kinds) - shared], []
    for i, kind in enumerate(kinds):
        stored, full = i >= len(own), kind == FULL
        place, pool = own[:i].count(kind) - stored, "full" if full else "local"
        seen = None if full else window
        specs.append(AttentionSpec(1.0, int(not full), seen, pool=pool, pool_layer=place, stored=stored))
    return tuple(specs)


def _mixture(hf: dict[str, Any]) -> dict[str, Any]:
    if not hf.get("enable_moe_block"):
        return {}
    count, routing = positive(hf, "num_experts"), Routing(positive(hf, "top_k_experts"), renormalise=True)
    routing.check(count)
    return dict(routing=routing, num_experts=count, expert_size=positive(hf, "moe_intermediate_size"))


def params(config: Gemma4Config) -> Tree:
    layers = [_layer_params(config, i, f"{config.prefix}layers.{i}") for i in range(config.num_layers)]
    if config.layer_width:
        size, prefix = config.num_layers * config.layer_width, config.prefix
        layers[0]["of_layers"] = {  # its stream is still the embedding
            "embed": weight(f"{prefix}embed_tokens_per_layer.weight", (config.layer_vocab, size), ("vocab", "embed")),
            "project": weight(
                f"{prefix}per_layer_model_projection.weight",
                (config.num_layers, config.layer_width, config.hidden_size),
                (None, None, "embed"),
                (size, config.hidden_size),
            ),
            "norm": norm_params(config, f"{prefix}per_layer_projection_norm", config.layer_width),
        }
    return decoder_params(config, tuple(layers), config.prefix)


def _layer_params(config: Gemma4Config, i: int, prefix: str) -> Tree:
    width, narrow = config.hidden_size, config.layer_width
    inner = config.intermediate_size * (2 if config.wide_mlp and config.attention[i].stored else 1)
    made: Tree = {
        "attention_norm": norm_params(config, f"{prefix}.input_layernorm"),
        "attention": _attention_params(config, i, f"{prefix}.self_attn"),
        "attention_out_norm": norm_params(config, f"{prefix}.post_attention_layernorm"),
        "mlp_norm": norm_params(config, f"{prefix}.pre_feedforward_layernorm"),
        "mlp": gated_mlp_params(config, f"{prefix}.mlp", inner=inner),
        "mlp_out_norm": norm_params(config, f"{prefix}.post_feedforward_layernorm"),
        "scale": vector(f"{prefix}.layer_scalar", (1,)),
    }
    if config.routing:
        made["experts"] = {
            "router": weight(f"{prefix}.router.proj.weight", (config.num_experts, width), (None, "embed")),
            "router_norm": vector(f"{prefix}.router.scale", (width,)),
            "scales": vector(f"{prefix}.router.per_expert_scale", (config.num_experts,)),
            "in_norm": norm_params(config, f"{prefix}.pre_feedforward_layernorm_2"),
            "out_norm": norm_params(config, f"{prefix}.post_feedforward_layernorm_2"),
            "mlp_out_norm": norm_params(config, f"{prefix}.post_feedforward_layernorm_1"),
            **_experts_params(config, f"{prefix}.experts"),
        }
    if narrow:
        made["own"] = {
            "gate": weight(f"{prefix}.per_layer_input_gate.weight", (narrow, width), (None, "embed")),
            "out": weight(f"{prefix}.per_layer_projection.weight", (width, narrow), ("embed", None)),
            "norm": norm_params(config, f"{prefix}.post_per_layer_input_norm"),
        }
    return made


def _experts_params(config: Gemma4Config, prefix: str) -> dict[str, Param]:
    """GGUF files have them fused as well, under names with a kind."""

    def with_kind(param: Param) -> Param:
        (source,) = param.sources
        # A conversion, if only of nothing, keeps them from staying packed.
        named = replace(source, name=f"{source.name}.weight", convert=np.asarray)
        return replace(param, or_else=replace(param, sources=(named,)))

    made = experts_params(config, prefix, ("gate_proj", "up_proj", "down_proj"))
    return {name: replace(param, or_else=with_kind(param.or_else)) for name, param in made.items() if param.or_else}


def _attention_params(config: Gemma4Config, i: int, prefix: str) -> Tree:
    """`qkv[K, G + 2, D, d]` without values or without both where the layer makes none."""
    (heads, dim), spec, width = config.heads(i), config.attention[i], config.hidden_size
    counts = {"q_proj": config.num_heads // heads}
    if not spec.stored:
        counts |= {"k_proj": 1} if spec.pool == "full" and not config.full_values else {"k_proj": 1, "v_proj": 1}
    sources = tuple(
        Source(f"{prefix}.{name}.weight", (heads * count * dim, width), (heads, count, dim, width))
        for name, count in counts.items()
    )
    made = {
        "qkv": merged(sources, ("kv_heads", None, None, "embed"), concat=1),
        "o": weight(f"{prefix}.o_proj.weight", (width, config.num_heads * dim), ("embed", "heads")),
        "q_norm": norm_params(config, f"{prefix}.q_norm", dim),
    }
    return made if spec.stored else {**made, "k_norm": norm_params(config, f"{prefix}.k_norm", dim)}


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: Gemma4Config, layer: int,
) -> tuple[jax.Array, None, Cache | None]:  # fmt: skip
    eps = config.norm_eps
    if "of_layers" in w:
        ctx.shared["of_layers"] = _of_layers(w["of_layers"], x, ctx, config)
    x, normed = add_norm(x, update, w["attention_norm"], eps, ctx)
    attended, cache = attention(w["attention"], normed, ctx, cache, config, layer)
    x, normed = add_norm(x, norm(attended, w["attention_out_norm"], eps), w["mlp_norm"], eps, ctx)
    out = mlp(w["mlp"], normed, config.hidden_act)
    if "experts" in w:
        out = norm(out, w["experts"]["mlp_out_norm"], eps) + _experts(w["experts"], x, config)
    x = x + norm(out, w["mlp_out_norm"], eps)
    if "own" in w:
        gates = activation(config.hidden_act)(matmul(x, w["own"]["gate"]))
        own = matmul(gates * ctx.shared["of_layers"][:, layer], w["own"]["out"])
        x = x + norm(own, w["own"]["norm"], eps)
    return x * w["scale"].astype(x.dtype), None, cache


def _of_layers(w: Tree, x: jax.Array, ctx: Context, config: Gemma4Config) -> jax.Array:
    """Each layer's own embedding `[T, L, P]` of the tokens, mixed with a projection of the embedding `x[T, d]`."""
    assert ctx.tokens is not None
    width = config.layer_width
    found = rows(w["embed"], ctx.tokens).astype(x.dtype).reshape(len(x), -1, width)
    found = found * jnp.asarray(width**0.5, x.dtype)
    projected = norm(matmul(x, w["project"]) * config.hidden_size**-0.5, w["norm"], config.norm_eps)
    return (projected + found) * 2**-0.5


def attention(
    w: Tree, x: jax.Array, ctx: Context, cache: Cache | None, config: Gemma4Config, layer: int
) -> tuple[jax.Array, Cache | None]:
    """On `x[T, d]`; leaves its keys and values in the context for the layers that share them."""
    spec, eps = config.attention[layer], config.norm_eps
    qkv, groups = matmul(x, w["qkv"]), config.num_heads // config.heads(layer)[0]
    q = rotate(norm(qkv[:, :, :groups], w["q_norm"], eps), ctx.ropes[spec.rope or 0])
    if not spec.stored:
        k = rotate(norm(qkv[:, :, groups], w["k_norm"], eps), ctx.ropes[spec.rope or 0])
        ctx.shared[f"{spec.pool} k"], ctx.shared[f"{spec.pool} v"] = k, unit_norm(qkv[:, :, -1], eps)
    k, v = ctx.shared[f"{spec.pool} k"], ctx.shared[f"{spec.pool} v"]
    out, cache = attend(q, k, v, ctx, cache, spec)
    return matmul(out.reshape(x.shape[0], -1), w["o"]), cache


def _experts(w: Tree, x: jax.Array, config: Gemma4Config) -> jax.Array:
    """Routed by the stream `x[T, d]` before the norm of the MLP, with norms and a scale for each expert."""
    assert config.routing is not None
    seen = norm(x, w["router_norm"], config.norm_eps) * config.hidden_size**-0.5
    ids, weights = route(matmul(seen, w["router"]), config.routing)
    out = experts(w, norm(x, w["in_norm"], config.norm_eps), ids, weights * w["scales"][ids], config.hidden_act)
    return norm(out, w["out_norm"], config.norm_eps)


FAMILY = Family(
    name="Gemma 4 (text)",
    architectures=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    gguf=("gemma4",),
    config=config,
    params=params,
    block=block,
    unused=UNUSED,
)
