"""Builds a tokenizer from the `tokenizer.ggml.*` metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from vjax.errors import CheckpointError
from vjax.loading.gguf_header import read_header
from vjax.tokenizing.pretokenizers import split_named

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
SPACE = "\u2581"
# Control tokens that end a turn whether or not the file says so: many files name only one of theirs.
TURN_ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "[EOT]",
)
PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")  # Phi-3's other control tokens swallow the space behind them
MAX_PIECE = 1024  # characters of a SentencePiece piece, each place of which may be a merge

Metadata = Mapping[str, Any]


def read_metadata(path: Path) -> dict[str, Any]:
    """The key-value pairs of a GGUF file. Raises `CheckpointError` when it is not one."""
    return read_header(path).metadata


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """A `tokenizers.Tokenizer` with the file's ids, added tokens, and BOS/EOS rule.

    Raises `CheckpointError` naming the key when the vocabulary is missing, inconsistent or of an unknown kind.
    """
    kind = _text(metadata, "model")
    if kind not in _BUILDERS:
        raise CheckpointError(f"tokenizer.ggml.model: {kind!r} is not supported. Supported: {', '.join(_BUILDERS)}.")
    tokens, types = _tokens(metadata), _types(metadata)
    try:
        tokenizer = _BUILDERS[kind](metadata, tokens, types)
    except CheckpointError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for an inconsistent vocabulary
        raise CheckpointError(f"tokenizer.ggml: the vocabulary is inconsistent ({error}).") from None
    phi3 = kind == "llama" and metadata.get("general.architecture") == "phi3"
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False, rstrip=phi3 and text not in PHI3_PLAIN)
            for text, type_ in zip(tokens, types, strict=False)
            if type_ in (CONTROL, UNKNOWN)
        ]
    )
    own = [text for text, type_ in zip(tokens, types, strict=False) if type_ == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in own])
    if tokenizer.get_vocab_size() != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens: pieces are repeated, so ids would not be unique.")
    _frame(tokenizer, metadata, kind)
    return tokenizer


def adds_bos(metadata: Metadata) -> bool:
    """Whether prompts begin with BOS: what the file says, else its kind's custom."""
    kind = _text(metadata, "model")
    if kind == "gemma4":  # early files say false and are wrong
        return True
    default = kind in ("llama", "bert")
    if kind == "gpt2":
        default = split_named(_text(metadata, "pre")).add_bos
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def eos_ids(metadata: Metadata) -> tuple[int, ...]:
    """Every id that ends generation: EOS first, then end of turn and end of message."""
    tokens, types = _tokens(metadata), _types(metadata)
    named = [_special(metadata, name) for name in ("eos", "eot", "eom")]
    ends = set(TURN_ENDS)
    if {"<|return|>", "<|call|>"} <= set(tokens):
        ends.discard("<|end|>")  # in harmony vocabularies it ends a message, not the turn
    found = [id for id, text in enumerate(tokens) if text in ends and types[id] == CONTROL]
    return tuple(dict.fromkeys(id for id in [*named, *found] if id is not None))


def special_token(metadata: Metadata, name: str) -> str | None:
    """The text of the `bos`, `eos`, `unknown`, `padding`, ... token."""
    id = _special(metadata, name)
    return None if id is None else _tokens(metadata)[id]


def chat_templates(metadata: Metadata) -> dict[str, str]:
    key = "tokenizer.chat_template"
    found = {name: text for name, text in metadata.items() if name.startswith(key) and isinstance(text, str)}
    return {"default" if name == key else name.removeprefix(f"{key}."): text for name, text in found.items()}


def _text(metadata: Metadata, name: str) -> str:
    value = metadata.get(f"tokenizer.ggml.{name}", "")
    if not isinstance(value, str):
        raise CheckpointError(f"tokenizer.ggml.{name} must be a string.")
    return value


def _tokens(metadata: Metadata) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError("tokenizer.ggml.tokens is missing: the GGUF file holds no vocabulary.")
    return [text or f"[EMPTY_{id}]" for id, text in enumerate(tokens)]


def _types(metadata: Metadata) -> list[int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) < len(tokens):
        raise CheckpointError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens.")
    return list(types)


def _scores(metadata: Metadata, tokens: list[str]) -> list[float]:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(tokens):
        raise CheckpointError("tokenizer.ggml.scores is missing or shorter than the vocabulary.")
    return list(scores)


def _special(metadata: Metadata, name: str) -> int | None:
    id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return id if isinstance(id, int) and 0 <= id < len(metadata["tokenizer.ggml.tokens"]) else None


def _merges(metadata: Metadata, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list):
        raise CheckpointError("tokenizer.ggml.merges is missing: a BPE vocabulary needs its merges.")
    merges = []
    for line in lines:
        cut = line.find(" ", 1)  # a piece may itself begin with a space
        left, right = line[:cut], line[cut + 1 :]
        if cut > 0 and left in vocabulary and right in vocabulary and left + right in vocabulary:
            merges.append((left, right))
    return merges


def _byte_level_bpe(metadata: Metadata, tokens: list[str], types: list[int]) -> Tokenizer:
    split = split_named(_text(metadata, "pre"))
    vocabulary = {text: id for id, text in enumerate(tokens)}
    merges = _merges(metadata, vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.ignore_merges))
    normalizer = split.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _score_merges(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece merges the adjacent pair whose union scores highest: the same as BPE with these merges."""
    pieces = {text: id for id, text in enumerate(tokens) if types[id] in (NORMAL, USER_DEFINED)}
    found = []
    for text, id in pieces.items():
        if types[id] != NORMAL:
            continue
        if len(text) > MAX_PIECE:
            raise CheckpointError(f"tokenizer.ggml.tokens: piece {id} is longer than {MAX_PIECE} characters.")
        for cut in range(1, len(text)):
            left, right = pieces.get(text[:cut]), pieces.get(text[cut:])
            if left is not None and right is not None:
                found.append((-scores[id], id, left, right))
    found.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in found]


def _space_pieces(model: models.Model, prefix: bool) -> Tokenizer:
    """A tokenizer whose pieces write the space as U+2581 and unknown characters as bytes."""
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _sentencepiece_bpe(metadata: Metadata, tokens: list[str], types: list[int]) -> Tokenizer:
    vocabulary = {text: id for id, text in enumerate(tokens)}
    merges = _score_merges(tokens, types, _scores(metadata, tokens))
    unknown = special_token(metadata, "unknown") or tokens[0]
    model = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    return _space_pieces(model, bool(metadata.get("tokenizer.ggml.add_space_prefix", True)))


def _gemma4_bpe(metadata: Metadata, tokens: list[str], types: list[int]) -> Tokenizer:
    vocabulary = {text: id for id, text in enumerate(tokens)}
    merges = _merges(metadata, vocabulary)
    unknown = special_token(metadata, "unknown") or tokens[0]
    model = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = _space_pieces(model, bool(metadata.get("tokenizer.ggml.add_space_prefix", False)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    return tokenizer


def _wordpiece(metadata: Metadata, tokens: list[str], types: list[int]) -> Tokenizer:
    # The converter writes word starts as U+2581 and drops the "##" of continuations: write them as BERT does.
    for id, text in enumerate(tokens):
        if types[id] == NORMAL:
            tokens[id] = text[1:] if text.startswith(SPACE) else f"##{text}"
    unknown = special_token(metadata, "unknown") or "[UNK]"
    lowercase = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
    accents = metadata.get("tokenizer.ggml.normalizer.strip_accents", lowercase)
    tokenizer = Tokenizer(models.WordPiece({text: id for id, text in enumerate(tokens)}, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=bool(accents))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _unigram(metadata: Metadata, tokens: list[str], types: list[int]) -> Tokenizer:
    pieces = list(zip(tokens, _scores(metadata, tokens), strict=False))
    tokenizer = Tokenizer(models.Unigram(pieces, _special(metadata, "unknown") or 0, byte_fallback=BYTE in types))
    steps: list[normalizers.Normalizer] = []
    if charsmap := metadata.get("tokenizer.ggml.precompiled_charsmap"):
        steps.append(normalizers.Precompiled(bytes(value & 0xFF for value in charsmap)))
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces", False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if metadata.get("tokenizer.ggml.add_space_prefix", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    spaces = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if BYTE in types else spaces
    return tokenizer


_BUILDERS: dict[str, Callable[[Metadata, list[str], list[int]], Tokenizer]] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece_bpe,
    "gemma4": _gemma4_bpe,
    "bert": _wordpiece,
    "t5": _unigram,
}


def _frame(tokenizer: Tokenizer, metadata: Metadata, kind: str) -> None:
    """Sets the post-processor that adds BOS and EOS (or CLS and SEP)."""
    first = _first_id(metadata, ("cls", "bos")) if kind == "bert" else _special(metadata, "bos")
    last = _first_id(metadata, ("seperator", "separator", "eos")) if kind == "bert" else _special(metadata, "eos")
    adds_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", kind in ("bert", "t5")))
    set_frame(tokenizer, first if adds_bos(metadata) else None, last if adds_eos else None)


def _first_id(metadata: Metadata, names: tuple[str, ...]) -> int | None:
    return next((id for name in names if (id := _special(metadata, name)) is not None), None)


def set_frame(tokenizer: Tokenizer, first: int | None, last: int | None) -> None:
    """Makes `encode` with special tokens put these ids around the text."""
    special = [(name, id) for name, id in (("first", first), ("last", last)) if id is not None]
    parts = ["first" if first is not None else "", "$A", "last" if last is not None else ""]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(filter(None, parts)), special_tokens=special
    )
