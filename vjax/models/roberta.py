"""RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020): BERT whose positions begin behind the padding id's
row, with another classifier."""

from __future__ import annotations

from typing import Any

from vjax.errors import ModelError
from vjax.models import bert, llama
from vjax.models.config import ModelConfig
from vjax.models.family import Family
from vjax.models.parts import head_params
from vjax.models.spec import Tree


def config(hf: dict[str, Any]) -> ModelConfig:
    padding = hf.get("pad_token_id", 1)
    if type(padding) is not int or padding < 0:
        raise ModelError(f"config field 'pad_token_id' must be a token id, got {padding!r}.")
    return bert.config(hf, position_offset=padding + 1)


def params(config: ModelConfig) -> Tree:
    return bert.params(config, "roberta.")


def classifier(config: ModelConfig, labels: int) -> Tree:
    return head_params(config, labels, dense="classifier.dense", out="classifier.out_proj", bias=True)


FAMILY = Family(
    name="RoBERTa",
    architectures=(
        "RobertaModel",
        "RobertaForSequenceClassification",
        "XLMRobertaModel",
        "XLMRobertaForSequenceClassification",
    ),
    config=config,
    params=params,
    block=llama.post_norm_block,
    optional_prefix="roberta.",
    unused=r"(roberta\.)?(pooler\..*|embeddings\.position_ids)|lm_head\..*",
    classifier=classifier,
)
