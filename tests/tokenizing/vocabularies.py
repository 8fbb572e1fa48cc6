"""Small vocabularies made on the spot: byte-level BPE, SentencePiece BPE with byte fallback, WordPiece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "Größe, Straße, naïve café; 日本語のテキスト 日本語 と 漢字",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 22), 333)",
    "It's what they're doing, isn't it? I'll go; we've been there.",
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, show_progress=False, special_tokens=special)
    )
    return tokenizer


def write_directory(path: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    """A Hugging Face directory; `files` are its JSON files by stem."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    for stem, content in files.items():
        (path / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def spm_pieces() -> list[tuple[str, float, int]]:
    """(text, score, type) of a vocabulary with every character of the corpus but the Japanese ones, and merges."""
    bytes_ = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = ["▁the", "▁The", "▁quick", "▁dog", "he", "▁t", "th", "▁T", "qu", "ick", "ic", "og", "▁d", "do", "▁q", "ck"]
    words += ["▁▁", "▁qu", "ß", "ö"]
    letters = sorted(set("▁" + "".join(CORPUS[:1] + CORPUS[2:]).replace(" ", "").replace("\n", "")))
    pieces = [*words, *(letter for letter in letters if letter not in words)]
    scored = [(text, -float(rank), 1) for rank, text in enumerate(pieces)]
    control = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    return [*control, *bytes_, *scored, ("<start_of_turn>", 0.0, 3), ("<end_of_turn>", 0.0, 3), ("<tool>", 0.0, 4)]


def write_spm_gguf(path: Path, **overrides: Any) -> Path:
    texts, scores, types = zip(*spm_pieces(), strict=True)
    metadata = {"tokens": list(texts), "scores": list(scores), "token_type": list(types)}
    metadata |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return write_gguf(path, "llama", metadata | overrides)


def write_bpe_gguf(path: Path, pre: str = "gpt-2", **overrides: Any) -> Path:
    state = json.loads(byte_level().to_str())
    vocabulary = dict(state["model"]["vocab"])
    vocabulary |= {token["content"]: token["id"] for token in state["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [3 if text in SPECIAL else 4 if text == "<tool_call>" else 1 for text in tokens]
    metadata = {
        "pre": pre,
        "tokens": [*tokens, "[PAD0]"],
        "token_type": [*types, 5],
        "merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    return write_gguf(path, "gpt2", metadata | overrides)


def write_gguf(path: Path, model: str, metadata: dict[str, Any]) -> Path:
    """A vocabulary-only GGUF file; a value of None leaves its key out, keys with a dot are written as they are."""
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", "llama"))
    writer.add_string("tokenizer.ggml.model", model)
    for name, value in metadata.items():
        key = name if "." in name else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
