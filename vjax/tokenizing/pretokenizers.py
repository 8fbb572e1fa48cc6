"""The pre-tokenizers that a GGUF file names in `tokenizer.ggml.pre`: how text is split before byte-level BPE."""

# ruff: noqa: RUF001 - the regexes are about such characters

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from vjax.errors import CheckpointError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CAPS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWS = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BLANKS

_ASCII_SYMBOL_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_MARKED_WORDS = rf"{_ASCII_SYMBOL_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"


def _cased(contraction: str, digits: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{_CAPS}*{_LOWS}+{contraction}|{start}{_CAPS}+{_LOWS}*{contraction}"
    return f"{words}|{digits}|{_CASED_TAIL}"


def _modern(digits: str, contraction: str = _CONTRACTION) -> str:
    return f"{contraction}|{_WORD}|{digits}|{_SYMBOLS}|{_BLANKS}"


@dataclass(frozen=True)
class Split:
    """One family of pre-tokenizers: the regexes cut the text one after the other, each match a piece of its own."""

    regexes: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False  # a piece that is in the vocabulary is taken whole
    add_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in self.regexes]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT2_SPLIT = Split((_GPT2,))
_DIGITS_GPT2 = Split((r"\p{N}", _GPT2))
_LLAMA3 = (_modern(r"\p{N}{1,3}"),)
_QWEN2 = (_modern(r"\p{N}"),)
_GPT4O = (_cased(_CONTRACTION + "?", r"\p{N}{1,3}"),)
_DEEPSEEK3 = Split((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", f"{_MARKED_WORDS}|{_BLANKS}"))
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The cased letters that DeepSeek's first tokenizers list; Unicode properties would take in more.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ"
    "-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

_SPLITS: dict[Split, tuple[str, ...]] = {
    _GPT2_SPLIT: (
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "jina-v1-en",
        "jina-v2-es",
        "jina-v2-de",
        "jina-v2-code",
        "roberta-bpe",
        "gigachat",
        "a.x-4.0",
        "mellum",
        "exaone4",
        "jais",
        "trillion",
        "granite-docling",
    ),
    Split((_GPT2,), nfc=True): ("mpt", "olmo", "modern-bert"),
    _DIGITS_GPT2: ("starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
    Split((r"\p{N}", _GPT2), nfc=True): ("command-r",),
    Split(_LLAMA3, ignore_merges=True, add_bos=True): (
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ),
    Split(_LLAMA3, ignore_merges=True): ("glm4", "glm5"),
    Split(_LLAMA3): ("chatglm-bpe", "dbrx", "smaug-bpe"),
    Split((r"\p{N}{1,3}", _modern(r"\p{N}+")), ignore_merges=True): ("minicpm5",),
    Split(_QWEN2, nfc=True): ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
    Split(_QWEN2): ("stablelm2", "hunyuan", "solar-open", "grok-2"),
    Split(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
        ),
        nfc=True,  # as the model's tokenizer.json has it; llama.cpp leaves combining marks apart
    ): ("qwen35",),
    Split((f"{_WORD}|\\p{{N}}|{_SYMBOLS}|{_BLANKS}",)): ("ufakzeka",),
    Split((r"[^\n]+|[\n]+", *_QWEN2)): ("laguna",),
    Split(
        (
            "[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-\ud7ff]+",
            r"\p{N}+",
        )
    ): ("deepseek-llm",),
    Split(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")): ("deepseek-coder",),
    _DEEPSEEK3: ("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"),
    Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): ("falcon",),
    Split(_GPT4O): ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    Split(_GPT4O, ignore_merges=True): ("granite-embed-multi-97m",),
    Split((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O)): ("tiny_aya", "cohere2moe"),
    Split((_cased("", r"\p{N}"),), ignore_merges=True, add_bos=True): ("tekken",),
    Split((_BLOOM,)): ("poro-chat", "bloom", "gpt3-finnish"),
    Split((_BLOOM, r"\p{N}")): ("viking",),
    Split((_BAILING,)): ("bailingmoe", "bailingmoe2", "llada-moe"),
    Split((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",)): ("seed-coder",),
    Split((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): ("superbpe",),
    # Files from before the key existed name nothing or "default".
    Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): ("default", ""),
}

_BY_NAME = {name: split for split, names in _SPLITS.items() for name in names}


def split_named(name: str) -> Split:
    """The pre-tokenizer of that GGUF name. Raises `CheckpointError` for a name that is not known."""
    if name not in _BY_NAME:
        known = ", ".join(sorted(filter(None, _BY_NAME)))
        raise CheckpointError(f"tokenizer.ggml.pre: the pre-tokenizer {name!r} is not supported. Supported: {known}.")
    return _BY_NAME[name]
