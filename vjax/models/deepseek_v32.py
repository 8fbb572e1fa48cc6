"""DeepSeek-V3.2 (DeepSeek-AI, 2025) and GLM-5 (Z.ai, 2026): DeepSeek-V3 whose layers attend to the tokens that an
indexer chooses. In GLM-5 some layers take over the choice of the layer before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from vjax.errors import ModelError
from vjax.layers.context import Context
from vjax.layers.moe import feed_forward
from vjax.layers.norms import add_norm
from vjax.layers.paging import Cache
from vjax.layers.sparse import IndexerSpec, sparse_latent_attention
from vjax.models import deepseek_v3
from vjax.models.config import CacheSpec, positive
from vjax.models.family import Family
from vjax.models.mla import MLAConfig, layer_params
from vjax.models.parts import decoder_params
from vjax.models.spec import Tree, vector, weight

GLM = "GlmMoeDsaForCausalLM"
# Published configs leave out what equals the reference's defaults.
DEFAULTS = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "max_position_embeddings": 163840}
GLM_DEFAULTS = {
    "index_n_heads": 32,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True)
class SparseConfig(MLAConfig):
    index_heads: int = 0
    index_dim: int = 0
    indexers: tuple[IndexerSpec, ...] = ()  # one per layer

    @property
    def cache_specs(self) -> dict[str, CacheSpec]:
        own = sum(indexer.pool_layer is not None for indexer in self.indexers)
        return {**super().cache_specs, "index": CacheSpec(own, 1, self.index_dim, values=False)}


def config(hf: dict[str, Any]) -> SparseConfig:
    glm = GLM in (hf.get("architectures") or [])
    hf = {**DEFAULTS, **(GLM_DEFAULTS if glm else {}), **hf}
    width, heads, topk = (positive(hf, name) for name in ("index_head_dim", "index_n_heads", "index_topk"))
    if width < positive(hf, "qk_rope_head_dim", 64):
        raise ModelError(f"config field 'index_head_dim' is {width}, less than qk_rope_head_dim.")
    base = deepseek_v3.latent_config({**hf, "rope_interleave": True}, SparseConfig)
    if base.q_lora_rank is None:
        raise ModelError("config field 'q_lora_rank' is missing: the indexer reads the queries' latent.")
    kinds, indexers = indexer_types(hf, base.num_layers) if glm else ["full"] * base.num_layers, []
    for i, kind in enumerate(kinds):
        indexers.append(IndexerSpec(topk, 1, kinds[:i].count("full") if kind == "full" else None))
    # The indexer's rope turns the same channels by the same angles, but DeepSeek's pairs them by halves.
    ropes = (*base.ropes, replace(base.ropes[0], interleaved=glm))
    return base.with_changes(ropes=ropes, index_heads=heads, index_dim=width, indexers=tuple(indexers))


def indexer_types(hf: dict[str, Any], layers: int) -> list[str]:
    """For each layer "full" (it chooses) or "shared" (it takes the choice before it)."""
    pattern = hf.get("indexer_types") or hf.get("index_topk_pattern")
    if pattern is None:
        every, offset = max(int(hf.get("index_topk_freq") or 1), 1), int(hf.get("index_skip_topk_offset", 2))
        pattern = ["full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(layers)]
    kinds = [{"F": "full", "S": "shared"}.get(kind, kind) for kind in pattern]
    if len(kinds) != layers or set(kinds) - {"full", "shared"} or kinds[0] != "full":
        raise ModelError("config field 'indexer_types' must hold 'full' or 'shared' for each layer, 'full' first.")
    return kinds


def params(config: SparseConfig) -> Tree:
    def layer(i: int) -> Tree:
        made = layer_params(config, i)
        if config.indexers[i].pool_layer is not None:
            made["attention"]["indexer"] = _indexer_params(config, f"model.layers.{i}.self_attn.indexer")
        return made

    return decoder_params(config, tuple(layer(i) for i in range(config.num_layers)))


def _indexer_params(config: SparseConfig, prefix: str) -> Tree:
    """Whole on every device: a choice that devices disagree about would be no choice."""
    heads, width, d, rank = config.index_heads, config.index_dim, config.hidden_size, config.q_lora_rank or 0
    name = f"{prefix}.k_norm"
    norm = {"weight": vector(f"{name}.weight", (width,)), "bias": vector(f"{name}.bias", (width,), fill=0.0)}
    return {
        "q": weight(f"{prefix}.wq_b.weight", (heads, width, rank), (None, None, None)),
        "k": weight(f"{prefix}.wk.weight", (width, d), (None, "embed")),
        "k_norm": norm,
        "weights": weight(f"{prefix}.weights_proj.weight", (heads, d), (None, "embed")),
    }


def block(
    w: Tree, x: jax.Array, update: jax.Array | None, ctx: Context, cache: Cache | None,
    config: SparseConfig, layer: int,
) -> tuple[jax.Array, jax.Array, Cache | None]:  # fmt: skip
    x, normed = add_norm(x, update, w["attention_norm"], config.norm_eps, ctx)
    attended, cache = sparse_latent_attention(
        w["attention"], normed, ctx, cache, config.attention[layer], config.indexers[layer]
    )
    x, normed = add_norm(x, attended, w["mlp_norm"], config.norm_eps, ctx)
    return x, feed_forward(w["mlp"], normed, config.hidden_act, config.routing), cache


FAMILY = Family(
    name="DeepSeek-V3.2",
    architectures=("DeepseekV32ForCausalLM", GLM),
    gguf=("glm-dsa",),
    config=config,
    params=params,
    block=block,
    unused=r"model\.layers\.(61|78)\..*",  # predict further tokens
)
