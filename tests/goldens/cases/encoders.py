"""Models that encode: BERT, RoBERTa, ModernBERT, and decoders without their language head."""

from __future__ import annotations

from typing import Any

from tests.goldens.cases.case import Case, Config, decoder


def encoder(architecture: str, model_type: str, **fields: Any) -> Config:
    """As published: no key/value heads, norms of its own."""
    ours: Config = {"num_key_value_heads": None, "rms_norm_eps": None, "tie_word_embeddings": None, "hidden_act": None}
    ours |= {"hidden_size": 36, "num_attention_heads": 3, "pad_token_id": 0}
    return decoder(architecture, model_type, **{**ours, **fields})


def labels(count: int) -> Config:
    return {
        "id2label": {str(i): f"LABEL_{i}" for i in range(count)},
        "label2id": {f"LABEL_{i}": i for i in range(count)},
    }


def modernbert(architecture: str, **fields: Any) -> Config:
    ours: Config = {"hidden_activation": "gelu", "norm_eps": 1e-5, "global_rope_theta": 1e3, "local_rope_theta": 50.0}
    ours |= {"local_attention": 8, "global_attn_every_n_layers": 3, "num_hidden_layers": 4, "cls_token_id": 1}
    return encoder(architecture, "modernbert", **{**ours, "sep_token_id": 2, **fields})


ENCODERS = (
    Case(
        "bert",
        encoder("BertModel", "bert", hidden_act="gelu", layer_norm_eps=1e-12, type_vocab_size=2),
        switches=({"hidden_act": "relu"}, {"is_decoder": True}),
    ),
    Case(
        "bert-classifier",
        encoder("BertForSequenceClassification", "bert", num_hidden_layers=3, **labels(3)),
        gguf=False,  # llama.cpp leaves out the pooler
    ),
    Case(
        "roberta",
        encoder("RobertaModel", "roberta", pad_token_id=1, max_position_embeddings=40, type_vocab_size=1),
        switches=({"pad_token_id": 0},),
        gguf=False,  # as the next one
    ),
    Case(
        "xlm-roberta-classifier",  # as bge-reranker: one label
        encoder("XLMRobertaForSequenceClassification", "xlm-roberta", pad_token_id=1, type_vocab_size=1, **labels(1)),
    ),
    Case(
        "modernbert",
        modernbert("ModernBertModel"),
        switches=(
            {"local_attention": 10},
            {"global_rope_theta": 50.0},
            {"local_rope_theta": 1e3},
            {"global_attn_every_n_layers": 2},
        ),
    ),
    Case(
        "modernbert-classifier",
        modernbert("ModernBertForSequenceClassification", classifier_pooling="mean", norm_bias=True, **labels(4)),
        switches=({"classifier_pooling": "cls"}, {"classifier_activation": "relu"}, {"norm_bias": False}),
        gguf=False,  # llama.cpp has no biases here
    ),
    Case(
        "qwen3-embedder",
        decoder("Qwen3Model", "qwen3", head_dim=14, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True),
        gguf=False,
    ),
    Case(
        "llama-classifier",
        decoder("LlamaForSequenceClassification", "llama", pad_token_id=0, **labels(5)),
        gguf=False,
    ),
)
