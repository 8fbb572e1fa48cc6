"""Parameters of the layers that many families share, under Hugging Face's usual names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vjax.models.config import ModelConfig
from vjax.models.spec import Param, Source, Tree, merged, vector, weight


def attention_params(
    config: ModelConfig,
    prefix: str,
    *,
    fused: str | None = None,
    o: str = "o_proj",
    qk_norm: str = "norm",
    qkv_names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
    gated: bool = False,
) -> dict[str, Any]:
    """Queries, keys and values (`qkv_names`) merged by key/value head (on disk one tensor where `fused` names it), the
    output projection `o`, and the biases, sinks and norms (`q_norm`, `k_norm`) the config asks for. `gated`: the tensor
    of queries holds a gate after each head."""
    k, g, d, width = config.num_kv_heads, config.groups, config.head_dim, config.hidden_size
    groups = 2 * g if gated else g

    def qkv(kind: str, *inner: int) -> tuple[Source, ...]:
        sources, start = [], 0
        for n, count in zip(qkv_names, (groups, 1, 1), strict=True):
            rows, shape = k * count * d, (k, count, d, *inner)
            if fused:
                name, total = f"{prefix}.{fused}.{kind}", k * (groups + 2) * d
                sources.append(Source(name, (total, *inner), shape, rows=(start, start + rows)))
            else:
                sources.append(Source(f"{prefix}.{n}.{kind}", (rows, *inner), shape))
            start += rows
        return tuple(sources)

    params: dict[str, Any] = {
        "qkv": merged(qkv("weight", width), ("kv_heads", None, None, "embed"), concat=1),
        "o": weight(f"{prefix}.{o}.weight", (width, k * g * d), ("embed", "heads")),
    }
    if config.qkv_bias:
        params["qkv_bias"] = merged(qkv("bias"), ("kv_heads", None, None), concat=1, kind="vector")
    if config.o_bias:
        params["o_bias"] = vector(f"{prefix}.{o}.bias", (width,), fill=0.0)
    if config.sinks:
        named = vector(f"{prefix}.sinks.weight", (k, g), ("kv_heads", None), fill=0.0)  # in GGUF files
        params["sinks"] = replace(named, sources=(Source(f"{prefix}.sinks", (k * g,), (k, g)),), or_else=named)
    if config.qk_norm in ("head", "full"):
        full = config.qk_norm == "full"
        params["q_norm"] = norm_params(config, f"{prefix}.q_{qk_norm}", k * g * d if full else d)
        params["k_norm"] = norm_params(config, f"{prefix}.k_{qk_norm}", k * d if full else d)
    return params


def gated_mlp_params(
    config: ModelConfig, prefix: str, *, fused: str | None = None, down: str = "down_proj", inner: int | None = None,
    names: tuple[str, str] = ("gate_proj", "up_proj"),
) -> dict[str, Param]:  # fmt: skip
    """`gate_proj` and `up_proj`, or what `names` has for them, merged (on disk one tensor where `fused` names it),
    `down`, and their biases if the config asks for them; `inner` wide, by default as the config says."""
    width, inner = config.hidden_size, inner or config.intermediate_size

    def gate_up(kind: str, *shape: int) -> tuple[Source, ...]:
        if fused:
            return (Source(f"{prefix}.{fused}.{kind}", (2 * inner, *shape), (2, inner, *shape)),)
        return tuple(Source(f"{prefix}.{n}.{kind}", (inner, *shape), (1, inner, *shape)) for n in names)

    params = {
        "gate_up": merged(gate_up("weight", width), (None, "mlp", "embed"), concat=0),
        "down": weight(f"{prefix}.{down}.weight", (width, inner), ("embed", "mlp")),
    }
    if config.mlp_bias:
        params["gate_up_bias"] = merged(gate_up("bias"), (None, "mlp"), concat=0, kind="vector")
        params["down_bias"] = vector(f"{prefix}.{down}.bias", (width,), fill=0.0)
    return params


def mlp_params(config: ModelConfig, prefix: str, up: str = "fc1", down: str = "fc2") -> dict[str, Param]:
    """An MLP without a gate, and its biases if the config asks for them."""
    width, inner = config.hidden_size, config.intermediate_size
    params = {
        "up": weight(f"{prefix}.{up}.weight", (inner, width), ("mlp", "embed")),
        "down": weight(f"{prefix}.{down}.weight", (width, inner), ("embed", "mlp")),
    }
    if config.mlp_bias:
        params["up_bias"] = vector(f"{prefix}.{up}.bias", (inner,), ("mlp",), fill=0.0)
        params["down_bias"] = vector(f"{prefix}.{down}.bias", (width,), fill=0.0)
    return params


def norm_params(config: ModelConfig, name: str, width: int | None = None) -> Param | dict[str, Param]:
    """The weights of a norm, `name.weight` and perhaps `name.bias`; random ones leave their input's scale alone."""
    shape = (width or config.hidden_size,)
    if config.norm == "rms":
        return vector(f"{name}.weight", shape, fill=1.0 - config.norm_offset)
    params = {"weight": vector(f"{name}.weight", shape)}
    if config.norm_bias:
        params["bias"] = vector(f"{name}.bias", shape, fill=0.0)
    return params


def decoder_params(
    config: ModelConfig, layers: tuple[Tree, ...], prefix: str = "model.", *, embed: str = "embed_tokens",
    final_norm: str | None = "norm", head: str = "lm_head", positions: str = "embed_positions",
) -> Tree:  # fmt: skip
    """Embedding, layers, final norm, and the output head unless it is the embedding."""
    table = (config.vocab_size, config.embed_width or config.hidden_size)
    params = {
        "embed": weight(f"{prefix}{embed}.weight", table, ("vocab", "embed")),
        "layers": layers,
    }
    if final_norm:
        params["norm"] = norm_params(config, f"{prefix}{final_norm}")
    if config.position_offset is not None:
        rows = config.max_position + config.position_offset
        params["positions"] = weight(f"{prefix}{positions}.weight", (rows, config.hidden_size), (None, "embed"))
    if config.embed_width:
        narrow, wide = config.embed_width, config.hidden_size
        params["project_in"] = weight(f"{prefix}project_in.weight", (wide, narrow), ("embed", "embed"))
        params["project_out"] = weight(f"{prefix}project_out.weight", (narrow, wide), ("embed", "embed"))
    if not config.tie_embeddings:
        params["head"] = weight(f"{head}.weight", table, ("vocab", "embed"))
    if config.head_bias:
        params["head_bias"] = vector(f"{head}.bias", table[:1], ("vocab",), fill=0.0)
    return params


def head_params(
    config: ModelConfig, labels: int, *, out: str, bias: bool, dense: str = "", dense_bias: bool = True, norm: str = ""
) -> Tree:
    """A classifier: `out`, after a hidden layer `dense` and its `norm` where they are named."""
    width = config.hidden_size
    tree: Tree = {"out": weight(f"{out}.weight", (labels, width), (None, "embed"))}
    if bias:
        tree["out_bias"] = vector(f"{out}.bias", (labels,), fill=0.0)
    if dense:
        tree["dense"] = weight(f"{dense}.weight", (width, width), ("embed", "embed"))
    if dense and dense_bias:
        tree["dense_bias"] = vector(f"{dense}.bias", (width,), fill=0.0)
    if norm:
        tree["norm"] = norm_params(config, norm)
    return tree
