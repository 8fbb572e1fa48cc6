"""The encoders as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

from gguf import GGUFWriter, PoolingType, RopeScalingType, TokenType, get_tensor_name_map

from tests.goldens import EncoderGolden
from tests.goldens.gguf_families import architecture, architecture_name
from tests.goldens.gguf_vocab import add_vocabulary
from tests.goldens.weights import Tensors, seeded_tensors

ROBERTAS = ("roberta", "xlm-roberta")


def encoder_gguf(golden: EncoderGolden, path: Path, pooling: PoolingType | None = None) -> Path:
    """Write the case; `pooling` is what the converter finds in Sentence Transformers' files."""
    config, family = golden.case.config, golden.case.family
    writer = GGUFWriter(path, architecture_name(golden.case))
    first = config["pad_token_id"] + 1 if family in ROBERTAS else 0
    writer.add_context_length(config["max_position_embeddings"] - first)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    (add_modernbert if family == "modernbert" else add_bert)(writer, config)
    for name, array in encoder_tensors(golden, first).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encoder_tensors(golden: EncoderGolden, first: int) -> Tensors:
    """By GGUF name, without poolers; of learned positions those from row `first` on."""
    names = get_tensor_name_map(architecture(golden.case), golden.case.config["num_hidden_layers"])
    found: Tensors = {}
    for full_name, array in seeded_tensors(golden.shapes, golden.seed).items():
        name = full_name.removeprefix("bert.").removeprefix("roberta.").removeprefix("model.")
        if name.startswith("pooler."):
            continue
        if name in ("classifier.weight", "classifier.bias"):
            name = name.replace("classifier", "classifier.out_proj")
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name, f"llama.cpp has no name for {name!r}"
        found[gguf_name] = array[first:] if name == "embeddings.position_embeddings.weight" else array
    return found


def add_bert(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """WordPiece, its beginnings of words marked instead of what continues them."""
    writer.add_layer_norm_eps(config.get("layer_norm_eps", 1e-12))
    writer.add_token_type_count(config["type_vocab_size"])
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(f"\u2581{letter}" for letter in ascii_lowercase), *ascii_lowercase]
    tokens += [f"\u2581[unused{i}]" for i in range(config["vocab_size"] - len(tokens))]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * len(special) + [TokenType.NORMAL] * (len(tokens) - len(special)))
    writer.add_unk_token_id(1)
    writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
    writer.add_sep_token_id(3)


def add_modernbert(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Published configs name the norms' epsilon twice, and files have it twice."""
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_sliding_window(config["local_attention"])
    writer.add_sliding_window_pattern(config["global_attn_every_n_layers"])
    writer.add_rope_freq_base(config["global_rope_theta"])
    writer.add_rope_freq_base_swa(config["local_rope_theta"])
    writer.add_rope_scaling_type(RopeScalingType.NONE)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_string("modern-bert.hidden_activation", config["hidden_activation"])
    add_vocabulary(writer, config, "modernbert")
