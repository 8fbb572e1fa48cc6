"""The vocabularies of the GGUF files: byte-level BPE, or SentencePiece-like where there is room for all bytes."""

from __future__ import annotations

import itertools
from typing import Any

from gguf import GGUFWriter, TokenType

from tests.goldens.gguf_families import GEMMAS
from tests.goldens.gguf_hybrids import HYBRID_PRE_TOKENIZERS

SPM_SIZE = 260  # from here on a vocabulary has room for all bytes, and is SentencePiece-like
PRE_TOKENIZERS = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}
PRE_TOKENIZERS |= dict.fromkeys(GEMMAS, "default")
PRE_TOKENIZERS |= {"phi": "phi-2", "phi3": "gpt-4o", "starcoder2": "starcoder", "stablelm": "stablelm2"}
PRE_TOKENIZERS |= {"cohere": "command-r", "cohere2": "command-r", "lfm2": "lfm2", "lfm2_moe": "lfm2"}
PRE_TOKENIZERS |= {"deepseek_v2": "deepseek-llm", "deepseek_v3": "deepseek-v3", "glm4_moe_lite": "glm4"}
PRE_TOKENIZERS |= {"internlm2": "default", "mixtral": "default", "qwen2_moe": "qwen2", "qwen3_moe": "qwen2"}
PRE_TOKENIZERS |= {"gpt_oss": "gpt-4o", "glm4_moe": "glm4", "minimax_m2": "minimax-m2", "ernie4_5_moe": "default"}
PRE_TOKENIZERS |= {"granitemoe": "refact", "granitemoeshared": "refact", "olmoe": "olmo"}
PRE_TOKENIZERS |= {"granite": "refact", "arcee": "llama-bpe", "smollm3": "smaug-bpe", "minicpm": "default"}
PRE_TOKENIZERS |= {"seed_oss": "seed-coder", "ernie4_5": "default", "glm4": "glm4"}
PRE_TOKENIZERS |= {"olmo2": "dbrx", "olmo3": "dbrx", "exaone4": "exaone4", "hunyuan_v1_dense": "hunyuan-dense"}
PRE_TOKENIZERS |= {"gpt2": "gpt-2", "minicpm3": "default", "glm": "chatglm-bpe", "internlm3": "default"}
PRE_TOKENIZERS |= {"glm_moe_dsa": "glm4", "gemma4_text": "default", "modernbert": "modern-bert"}
PRE_TOKENIZERS |= HYBRID_PRE_TOKENIZERS
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"


def add_vocabulary(writer: GGUFWriter, config: dict[str, Any], family: str) -> None:
    size = config["vocab_size"]
    sentencepiece = size >= SPM_SIZE
    tokens, types = spm_tokens(size) if sentencepiece else bpe_tokens(size)
    writer.add_tokenizer_model("llama" if sentencepiece else "gpt2")
    writer.add_tokenizer_pre("default" if sentencepiece else PRE_TOKENIZERS[family])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if sentencepiece:
        writer.add_token_scores([-float(i) for i in range(size)])
        writer.add_add_space_prefix(family not in GEMMAS)
    else:
        writer.add_token_merges([f"{token[0]} {token[1]}" for token in tokens[len(SPECIAL) :] if len(token) == 2])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(sentencepiece)
    writer.add_chat_template(CHAT_TEMPLATE)


SPECIAL = ["<unk>", "<s>", "</s>"]
SPECIAL_TYPES = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
FREQUENT = "etaoinshrdlu"


def bpe_tokens(size: int) -> tuple[list[str], list[TokenType]]:
    """Byte-level BPE: printable ASCII, space and newline as GPT-2 writes bytes, then pairs of frequent letters."""
    tokens = [*SPECIAL, "\u010a", "\u0120", *map(chr, range(33, 127))]
    tokens += itertools.islice(map("".join, itertools.product(FREQUENT, repeat=2)), size - len(tokens))
    assert len(tokens) == size, f"a vocabulary of {size} is out of reach"
    return tokens, [*SPECIAL_TYPES, *[TokenType.NORMAL] * (size - len(SPECIAL))]


def spm_tokens(size: int) -> tuple[list[str], list[TokenType]]:
    """SentencePiece-like: every byte, the space, then frequent letters alone and after a space."""
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces = [*FREQUENT, *("\u2581" + letter for letter in FREQUENT)]
    tokens += pieces[: size - len(tokens)]
    assert len(tokens) == size, f"a vocabulary of {size} is out of reach"
    types = [*SPECIAL_TYPES, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * (size - len(SPECIAL) - 256)]
    return tokens, types
