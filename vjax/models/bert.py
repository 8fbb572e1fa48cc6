"""BERT (Devlin et al., 2019): attention to both sides, norms after each half of a block, learned positions and token
types. Its pooler is part of its classifier; embedding models do without."""

from __future__ import annotations

from typing import Any

from vjax.errors import ModelError
from vjax.layers.attention import AttentionSpec
from vjax.models import llama
from vjax.models.config import ModelConfig, config_from_hf, head_width, layer_count, number, positive
from vjax.models.family import Family
from vjax.models.parts import attention_params, decoder_params, head_params, mlp_params, norm_params
from vjax.models.spec import Tree, weight

DEFAULTS = {"hidden_act": "gelu", "max_position_embeddings": 512, "tie_word_embeddings": True}


def config(hf: dict[str, Any], *, position_offset: int = 0) -> ModelConfig:
    """`position_offset`: RoBERTa's, whose table holds that many rows more than a text may have tokens."""
    hf = {**DEFAULTS, **hf, "tie_word_embeddings": True}
    scale = head_width(hf) ** -0.5
    config = config_from_hf(
        hf,
        ropes=(),
        attention=(AttentionSpec(scale, rope=None, causal=False),) * layer_count(hf),
        norm="layer",
        norm_eps=number(hf, "layer_norm_eps", 1e-12),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        position_offset=position_offset,
        pooling="cls",
        token_types=positive(hf, "type_vocab_size", 2),
    )
    if config.max_position <= position_offset:
        raise ModelError(f"config field 'max_position_embeddings' must be more than {position_offset}.")
    return config.with_changes(max_position=config.max_position - position_offset)


def params(config: ModelConfig, prefix: str = "bert.") -> Tree:
    def layer(i: int) -> Tree:
        name = f"{prefix}encoder.layer.{i}"
        names = ("self.query", "self.key", "self.value")
        return {
            "attention": attention_params(config, f"{name}.attention", qkv_names=names, o="output.dense"),
            "attention_norm": norm_params(config, f"{name}.attention.output.LayerNorm"),
            "mlp": mlp_params(config, name, "intermediate.dense", "output.dense"),
            "mlp_norm": norm_params(config, f"{name}.output.LayerNorm"),
        }

    tree = decoder_params(
        config, tuple(layer(i) for i in range(config.num_layers)), f"{prefix}embeddings.",
        embed="word_embeddings", positions="position_embeddings", final_norm=None,
    )  # fmt: skip
    table, types = f"{prefix}embeddings.token_type_embeddings.weight", (config.token_types, config.hidden_size)
    norms = norm_params(config, f"{prefix}embeddings.LayerNorm")
    return {**tree, "token_types": weight(table, types, (None, "embed")), "embed_norm": norms}


def classifier(config: ModelConfig, labels: int) -> Tree:
    return head_params(config, labels, dense="bert.pooler.dense", out="classifier", bias=True)


FAMILY = Family(
    name="BERT",
    architectures=("BertModel", "BertForSequenceClassification"),
    gguf=("bert",),  # RoBERTa too
    config=config,
    params=params,
    block=llama.post_norm_block,
    optional_prefix="bert.",
    unused=r"(bert\.)?(pooler\..*|embeddings\.position_ids)|cls\..*",
    classifier=classifier,
)
