"""DeepSeek-V4 (DeepSeek-AI, 2026): attention to a window and to compressed entries, one key and value for all heads;
several residual streams; the first mixtures route by token id."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec
from vjax.layers.compressed import CompressSpec, compressed_attention
from vjax.layers.context import Context
from vjax.layers.hyper import HyperSpec, collapse, enter, leave
from vjax.layers.mlp import ClampedSwiGLU
from vjax.layers.moe import moe
from vjax.layers.norms import norm
from vjax.layers.paging import Cache
from vjax.layers.recurrent import Arrays
from vjax.layers.rope import Rope, rope_from_hf
from vjax.layers.routing import Routing
from vjax.models.config import CacheSpec, ModelConfig, StateSpec, config_from_hf, layer_count, number, positive
from vjax.models.family import Family
from vjax.models.hybrid import layer_types
from vjax.models.moe_parts import moe_params
from vjax.models.parts import decoder_params, gated_mlp_params, norm_params
from vjax.models.spec import Param, Source, Tree, merged, vector, weight

WINDOW, SPARSE, HEAVY = KINDS = (
    "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
)  # fmt: skip
RATIOS = {0: WINDOW, 4: SPARSE, 128: HEAVY}  # in published configs
SCORES = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid", "softmax": "softmax"}
# Published configs leave out what equals the reference's defaults.
DEFAULTS = {
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "scoring_func": "sqrtsoftplus",
    "max_position_embeddings": 1048576,
}
STREAMS = "streams"  # what a layer leaves in the context


@dataclass(frozen=True)
class DeepseekV4Config(ModelConfig):
    q_rank: int = 0
    out_groups: int = 0
    out_rank: int = 0
    index_heads: int = 0
    index_dim: int = 0
    compress: tuple[CompressSpec | None, ...] = ()  # one per layer
    hyper: HyperSpec = HyperSpec(1, 1, 0.0, 0.0)
    hashed: frozenset[int] = frozenset()  # layers whose experts follow from the token

    @property
    def cache_specs(self) -> dict[str, CacheSpec]:
        pools = {"full": CacheSpec(self.num_layers, 1, self.head_dim, values=False)}
        found = [spec for spec in self.compress if spec is not None]
        for spec in found:
            layers = sum(other.pool == spec.pool for other in found)
            pools[spec.pool] = CacheSpec(layers, 1, self.head_dim, values=False, stride=spec.rate)
            if spec.topk is not None:
                pools[f"index_{spec.pool}"] = replace(pools[spec.pool], head_dim=self.index_dim)
        return pools

    @property
    def state_spec(self) -> StateSpec | None:
        found = [spec for spec in self.compress if spec is not None]
        return StateSpec(len(found), found[0].state) if found else None


def config(hf: dict[str, Any]) -> DeepseekV4Config:
    hf = {**DEFAULTS, **hf}
    if hf.get("hidden_act", "silu") != "silu" or hf["scoring_func"] not in SCORES or hf["n_shared_experts"] != 1:
        raise ModelError("config fields 'hidden_act', 'scoring_func' and 'n_shared_experts' fit no DeepSeek-V4.")
    if hf.get("attention_bias") or hf.get("mlp_bias") or positive(hf, "num_key_value_heads", 1) != 1:
        raise ModelError("config fields 'attention_bias', 'mlp_bias' and 'num_key_value_heads' fit no DeepSeek-V4.")
    kinds, (main, compressed) = _kinds(hf), _ropes(hf)
    routing = Routing(
        positive(hf, "num_experts_per_tok"),
        SCORES[hf["scoring_func"]],  # type: ignore[arg-type]
        renormalise=True,
        scaling=number(hf, "routed_scaling_factor", 1.5),
    )
    routing.check(positive(hf, "n_routed_experts"))
    eps, dim = number(hf, "rms_norm_eps", 1e-6), positive(hf, "head_dim")
    attention = tuple(
        AttentionSpec(dim**-0.5, int(kind != WINDOW), positive(hf, "sliding_window"), norm_eps=eps, pool_layer=i)
        for i, kind in enumerate(kinds)
    )
    inner, groups = positive(hf, "moe_intermediate_size"), positive(hf, "o_groups")
    base = config_from_hf(
        {**hf, "num_key_value_heads": 1, "intermediate_size": inner},
        ropes=(main, compressed),
        attention=attention,
        hidden_act=ClampedSwiGLU(number(hf, "swiglu_limit", 10.0)),
        routing=routing,
        num_experts=hf["n_routed_experts"],
        expert_size=inner,
        norm_eps=eps,
    )
    if base.num_heads % groups:
        raise ModelError(f"num_attention_heads={base.num_heads} is not a multiple of o_groups={groups}.")
    known = {field.name: getattr(base, field.name) for field in fields(ModelConfig)}
    return DeepseekV4Config(
        **known,
        q_rank=positive(hf, "q_lora_rank"),
        out_groups=groups,
        out_rank=positive(hf, "o_lora_rank"),
        index_heads=positive(hf, "index_n_heads"),
        index_dim=positive(hf, "index_head_dim"),
        compress=_compress(hf, kinds, compressed),
        hyper=HyperSpec(positive(hf, "hc_mult"), positive(hf, "hc_sinkhorn_iters"), number(hf, "hc_eps", 1e-6), eps),
        hashed=_hashed(hf, len(kinds)),
    )


def _kinds(hf: dict[str, Any]) -> list[str]:
    """The kind of each layer; ratios that are listed beyond the last layer are those of layers for speculation."""
    layers, ratios = layer_count(hf), hf.get("compress_ratios")
    if ratios is not None and not hf.get("layer_types"):
        if (
            not isinstance(ratios, list)
            or len(ratios) < layers
            or not all(ratio in RATIOS for ratio in ratios[:layers])
        ):
            raise ModelError(f"config field 'compress_ratios' must hold 0, 4 or 128 for each of {layers} layers.")
        return [RATIOS[ratio] for ratio in ratios[:layers]]
    return layer_types(hf, KINDS, [SPARSE if i > 2 and i % 2 else HEAVY for i in range(layers)])


def _hashed(hf: dict[str, Any], layers: int) -> frozenset[int]:
    kinds, count = hf.get("mlp_layer_types"), hf.get("num_hash_layers")
    if kinds is None:
        count = 3 if count is None else count
        if not isinstance(count, int) or count < 0:
            raise ModelError(f"config field 'num_hash_layers' must be an integer from 0 on, got {count!r}.")
        return frozenset(range(min(count, layers)))
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in ("hash_moe", "moe") for kind in kinds):
        raise ModelError(f"config field 'mlp_layer_types' must hold 'hash_moe' or 'moe' for each of {layers} layers.")
    return frozenset(i for i, kind in enumerate(kinds) if kind == "hash_moe")


def _ropes(hf: dict[str, Any]) -> tuple[Rope, Rope]:
    """Of layers with a window alone, and of those that compress: YaRN is for these, and does not sharpen attention."""
    dim, part = positive(hf, "head_dim"), number(hf, "partial_rotary_factor", 0.125)
    rotated = positive(hf, "qk_rope_head_dim", max(int(dim * min(part, 1.0)), 1))
    if rotated % 2 or rotated > min(dim, positive(hf, "index_head_dim")):
        raise ModelError(f"config field 'qk_rope_head_dim' is {rotated}: odd, or more than a head has.")
    nested = hf.get("rope_parameters")
    if isinstance(nested, dict) and isinstance(nested.get("main"), dict) and isinstance(nested.get("compress"), dict):
        ropes = [rope_from_hf(hf, rotated, parameters=nested[name]) for name in ("main", "compress")]
    else:
        scaling = hf.get("rope_scaling")
        if scaling is None or isinstance(scaling, dict):
            hf = {**hf, "rope_scaling": {"attention_factor": 1.0, **(scaling or {})}}
        main = rope_from_hf({}, rotated, theta=number(hf, "rope_theta", 10000.0))
        ropes = [main, rope_from_hf(hf, rotated, theta=number(hf, "compress_rope_theta", 160000.0))]
    main, compressed = (replace(rope, interleaved=True) for rope in ropes)
    return main, compressed


def _compress(hf: dict[str, Any], kinds: list[str], rope: Rope) -> tuple[CompressSpec | None, ...]:
    dim, index = positive(hf, "head_dim"), positive(hf, "index_head_dim")
    found = hf.get("compress_rates") or {}
    if not isinstance(found, dict):
        raise ModelError(f"config field 'compress_rates' must hold an object, got {found!r}.")
    rates = {SPARSE: hf.get("compress_rate_csa") or 4, HEAVY: hf.get("compress_rate_hca") or 128} | found
    # Layers of both kinds have room for the larger state, which is small beside the cache.
    sizes = {"open": 2 * dim, "closed": dim, "index_open": 2 * index, "index_closed": index}
    state: Arrays = tuple((name, (3, size), (None, None)) for name, size in sizes.items())
    specs: list[CompressSpec | None] = []
    for i, kind in enumerate(kinds):
        if kind == WINDOW:
            specs.append(None)
            continue
        topk, pool = (positive(hf, "index_topk"), "sparse") if kind == SPARSE else (None, "heavy")
        place = sum(spec is not None for spec in specs)
        specs.append(CompressSpec(positive(rates, kind), rope, topk, pool, kinds[:i].count(kind), place, state))
    return tuple(specs)


def params(config: DeepseekV4Config) -> Tree:
    layers = [_layer_params(config, i, f"layers.{i}") for i in range(config.num_layers)]
    layers[-1]["collapse"] = _mixing_params(config, "hc_head", config.hyper.streams, 1)
    return decoder_params(config, tuple(layers), "", embed="embed", head="head")


def _layer_params(config: DeepseekV4Config, i: int, prefix: str) -> Tree:
    n, ffn = config.hyper.streams, f"{prefix}.ffn"
    bias, inner = None if i in config.hashed else "gate.bias", config.expert_size
    experts = moe_params(config, ffn, names=("w1", "w3", "w2"), choice_bias=bias)
    experts["shared"] = gated_mlp_params(config, f"{ffn}.shared_experts", inner=inner, names=("w1", "w3"), down="w2")
    if i in config.hashed:
        assert config.routing is not None
        shape, name = (config.vocab_size, config.routing.top_k), f"{ffn}.gate.tid2eid"
        experts["choices"] = Param(shape, (None, None), (Source(name, shape, shape),), kind="ids", fill=0)
    return {
        "attention_mixing": _mixing_params(config, f"{prefix}.hc_attn", (n + 2) * n, 3),
        "attention_norm": norm_params(config, f"{prefix}.attn_norm"),
        "attention": _attention_params(config, i, f"{prefix}.attn"),
        "mlp_mixing": _mixing_params(config, f"{prefix}.hc_ffn", (n + 2) * n, 3),
        "mlp_norm": norm_params(config, f"{prefix}.ffn_norm"),
        "mlp": experts,
    }


def _plain(name: str, shape: tuple[int, ...]) -> Param:
    return Param(shape, (None,) * len(shape), (Source(name, shape, shape),), kind="vector")


def _mixing_params(config: DeepseekV4Config, name: str, size: int, scales: int) -> Tree:
    return {
        "fn": _plain(f"{name}_fn", (size, config.hyper.streams * config.hidden_size)),
        "base": vector(f"{name}_base", (size,), fill=0.0),
        "scale": vector(f"{name}_scale", (scales,)),
    }


def _attention_params(config: DeepseekV4Config, i: int, prefix: str) -> Tree:
    heads, dim, width, spec = config.num_heads, config.head_dim, config.hidden_size, config.compress[i]
    rank, groups, out = config.q_rank, config.out_groups, config.out_rank
    made: Tree = {
        "q_a": weight(f"{prefix}.wq_a.weight", (rank, width), (None, "embed")),
        "q_norm": norm_params(config, f"{prefix}.q_norm", rank),
        "q_b": weight(f"{prefix}.wq_b.weight", (heads, dim, rank), ("heads", None, None)),
        "kv": weight(f"{prefix}.wkv.weight", (dim, width), (None, "embed")),
        "kv_norm": norm_params(config, f"{prefix}.kv_norm", dim),
        "sinks": vector(f"{prefix}.attn_sink", (heads,), ("heads",), fill=0.0),
        "o_a": weight(f"{prefix}.wo_a.weight", (groups, out, heads // groups * dim), ("heads", None, None)),
        "o_b": weight(f"{prefix}.wo_b.weight", (width, groups * out), ("embed", "heads")),
    }
    if spec is not None:
        made["compressor"] = _compressor_params(config, f"{prefix}.compressor", spec, dim)
    if spec is not None and spec.topk is not None:
        inner, name = (config.index_heads, config.index_dim), f"{prefix}.indexer"
        made["indexer"] = {
            "q": weight(f"{name}.wq_b.weight", (*inner, rank), (None, None, None)),
            "weights": weight(f"{name}.weights_proj.weight", (inner[0], width), (None, "embed")),
            **_compressor_params(config, f"{name}.compressor", spec, inner[1]),
        }
    return made


def _compressor_params(config: DeepseekV4Config, prefix: str, spec: CompressSpec, dim: int) -> Tree:
    channels, width = dim if spec.topk is None else 2 * dim, config.hidden_size
    both = tuple(Source(f"{prefix}.{n}.weight", (channels, width), (1, channels, width)) for n in ("wkv", "wgate"))
    return {
        "kv_gate": merged(both, (None, None, "embed"), concat=0),
        "bias": _plain(f"{prefix}.ape", (spec.rate, channels)),
        "norm": norm_params(config, f"{prefix}.norm", dim),
    }


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: DeepseekV4Config, layer: int,
) -> tuple[jax.Array, None, Cache | None]:  # fmt: skip
    """The streams stand in the context; what a layer returns is their mean, for those who watch, and after the last
    what the model reads from them."""
    assert config.routing is not None
    if layer == 0:
        ctx.shared[STREAMS] = jnp.repeat(x[:, None], config.hyper.streams, axis=1)
    streams, eps = ctx.shared[STREAMS], config.norm_eps
    read, mixing = enter(w["attention_mixing"], streams, config.hyper)
    attended, cache = compressed_attention(
        w["attention"], norm(read, w["attention_norm"], eps), ctx, cache, config.attention[layer],
        config.compress[layer],
    )  # fmt: skip
    streams = leave(attended, streams, mixing)
    read, mixing = enter(w["mlp_mixing"], streams, config.hyper)
    out = moe(w["mlp"], norm(read, w["mlp_norm"], eps), config.hidden_act, config.routing, ctx.tokens)
    streams = ctx.shared[STREAMS] = leave(out, streams, mixing)
    if "collapse" in w:
        return collapse(w["collapse"], streams, config.hyper), None, cache
    return jnp.mean(streams, axis=1), None, cache


FAMILY = Family(
    name="DeepSeek-V4",
    architectures=("DeepseekV4ForCausalLM",),
    config=config,
    params=params,
    block=block,
    optional_prefix="",
    unused=r"mtp\..*",  # predict further tokens
)
