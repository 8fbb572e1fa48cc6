from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizing.vocabularies import CHATML, byte_level, spm_pieces, write_bpe_gguf, write_gguf, write_spm_gguf
from vjax.errors import CheckpointError
from vjax.tokenizing import IncrementalDetokenizer, Tokenizer, load_tokenizer
from vjax.tokenizing.pretokenizers import split_named

MODELS = Path.home() / ".cache" / "vjax" / "models"


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_spm_gguf(tmp_path_factory.mktemp("spm") / "vocab.gguf"))


def cuts(name: str, text: str) -> list[str]:
    """The pieces a named pre-tokenizer cuts a text of ASCII characters into."""
    found = split_named(name).pre_tokenizer().pre_tokenize_str(text)
    return [piece.replace("Ġ", " ").replace("Ċ", "\n").replace("č", "\r") for piece, _ in found]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "It's 1234  ok\n\n", ["It", "'s", " 1234", " ", " ok", "\n\n"]),
        ("gpt-2", "IT'S", ["IT", "'", "S"]),
        ("smollm", "a 1234", ["a", " ", "1", "2", "3", "4"]),
        ("command-r", "x12", ["x", "1", "2"]),
        ("llama-bpe", "IT'S 1234567 (yes)\n\nx", ["IT", "'S", " ", "123", "456", "7", " (", "yes", ")\n\n", "x"]),
        ("qwen2", "ab 12", ["ab", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld don't 1234", ["Hello", "World", " don't", " ", "123", "4"]),
        ("tekken", "HelloWorld don't 12", ["Hello", "World", " don", "'t", " ", "1", "2"]),
        ("deepseek-v3", "_abc 1234 x\n", ["_abc", " ", "123", "4", " x", "\n"]),
        ("deepseek-llm", "a 1234\nb", ["a", " ", "1234", "\n", "b"]),
        ("deepseek-coder", "a 12", ["a", " ", "1", "2"]),
        ("falcon", "a 12345!", ["a", " ", "123", "45", "!"]),
        ("bailingmoe", "ab\n\nc", ["ab", "\n\n", "c"]),
        ("seed-coder", "a!\nb", ["a", "!", "\n", "b"]),
        ("ufakzeka", "Ali's", ["Ali", "'s"]),
        ("laguna", "a \nb", ["a", " ", "\n", "b"]),
        ("viking", "ab 12", ["ab", " ", "1", "2"]),
        ("superbpe", "1234567", ["1", "234", "567"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("default", "a 12345", ["a", " ", "123", "45"]),
    ],
)
def test_pre_tokenizers(name: str, text: str, expected: list[str]) -> None:
    assert cuts(name, text) == expected


def test_unknown_pre_tokenizer_is_named(tmp_path: Path) -> None:
    path = write_bpe_gguf(tmp_path / "vocab.gguf", pre="tomorrow")
    with pytest.raises(CheckpointError, match=r"vocab.gguf: tokenizer.ggml.pre: the pre-tokenizer 'tomorrow'"):
        load_tokenizer(path)


def test_byte_level(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_bpe_gguf(tmp_path / "vocab.gguf", eot_token_id=2))
    original = Tokenizer(byte_level())
    for text in ("It's the quick dog", "Größe 日本語\n", "<|im_start|>user<tool_call>\n 12"):
        assert tokenizer.encode(text) == original.encode(text)
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.vocab_size == original.vocab_size + 1
    assert tokenizer.token_text(401) == "[PAD0]"
    assert tokenizer.encode("[PAD0]") != [401]  # type 5: unused
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.eos_token_ids == (0, 2)
    assert not tokenizer.add_bos


@pytest.mark.parametrize(("pre", "key", "expected"), [("gpt-2", True, True), ("llama-bpe", None, True)])
def test_bos_rule(tmp_path: Path, pre: str, key: bool | None, expected: bool) -> None:
    tokenizer = load_tokenizer(write_bpe_gguf(tmp_path / "vocab.gguf", pre, add_bos_token=key, add_eos_token=True))
    assert tokenizer.add_bos is expected
    assert tokenizer.encode("dog")[0] == 1
    assert tokenizer.encode("dog")[-1] == 0


def test_turn_ends_that_the_file_does_not_name(tmp_path: Path) -> None:
    assert load_tokenizer(write_bpe_gguf(tmp_path / "vocab.gguf")).eos_token_ids == (0, 2)  # <|im_end|> is control


def test_sentencepiece(spm: Tokenizer) -> None:
    tokenizer = spm
    ids = tokenizer.encode("the quick dog")
    assert [tokenizer.token_text(id) for id in ids] == ["<s>", "▁the", "▁quick", "▁dog"]
    assert tokenizer.add_bos
    assert tokenizer.bos_token_id == 1
    assert tokenizer.decode(ids) == "the quick dog"
    assert [tokenizer.token_text(id) for id in tokenizer.encode("é", False)] == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.token_bytes(ids[1]) == b" the"
    assert tokenizer.token_bytes(3 + 0x0A) == b"\n"
    assert tokenizer.eos_token_ids == (2, 321)  # <end_of_turn>
    assert (
        tokenizer.decode(tokenizer.encode("<tool>the<end_of_turn>")) == "<tool> the"
    )  # text after a token begins anew


def merged_by_score(text: str) -> list[str]:
    """SentencePiece as its paper tells it: join the neighbours whose union scores best, the leftmost of equals."""
    scores = {piece: score for piece, score, kind in spm_pieces() if kind == 1}
    symbols = list(text)
    while True:
        joined = [(scores.get(left + right, -math.inf), -at) for at, (left, right) in enumerate(pairwise(symbols))]
        if not joined or max(joined)[0] == -math.inf:
            break
        at = -max(joined)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [
        part
        for symbol in symbols
        for part in ([symbol] if symbol in scores else map("<0x{:02X}>".format, symbol.encode()))
    ]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([*"theTquickdog ", "the", " dog", "quick", "é", "漢", "\n"]), min_size=1, max_size=20))
def test_merges_follow_the_scores(spm: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    pieces = [spm.token_text(id) for id in spm.encode(text, add_special_tokens=False)]
    assert pieces == merged_by_score(("▁" + text).replace(" ", "▁"))


def test_sentencepiece_without_space_prefix(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_spm_gguf(tmp_path / "vocab.gguf", add_space_prefix=False, add_bos_token=False))
    ids = tokenizer.encode("the dog")
    assert [tokenizer.token_text(id) for id in ids] == ["t", "he", "▁dog"]  # the best-scored pair first
    assert tokenizer.decode(ids) == "the dog"
    assert tokenizer.decode(tokenizer.encode(" x")) == " x"


def test_gemma4_merges_raw_text(tmp_path: Path) -> None:
    letters = ["<pad>", "<eos>", "<bos>", "<unk>", "\n", "\n\n", "▁", "a", "b", "▁a", "▁ab", *byte_pieces()]
    types = [3, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, *[6] * 256]
    ids = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "add_bos_token": False}
    metadata = {"tokens": letters, "token_type": types, "merges": ["\n \n", "▁ a", "▁a b"], **ids}
    tokenizer = load_tokenizer(write_gguf(tmp_path / "vocab.gguf", "gemma4", metadata))
    ids_ = tokenizer.encode("b ab\n\né")
    pieces = [tokenizer.token_text(id) for id in ids_]
    assert pieces == ["<bos>", "b", "▁ab", "\n\n", "<0xC3>", "<0xA9>"]  # BOS though the file says otherwise
    assert tokenizer.decode(ids_) == "b ab\n\né"


def byte_pieces() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def test_bert_words(tmp_path: Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁the", "▁dog", "s", "▁do"]
    ids = {"cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    metadata = {"tokens": tokens, "token_type": [3, 3, 3, 3, 1, 1, 1, 1], **ids}
    tokenizer = load_tokenizer(write_gguf(tmp_path / "vocab.gguf", "bert", metadata))
    assert tokenizer.encode("The dogs zz") == [2, 4, 5, 6, 1, 3]
    assert tokenizer.decode([2, 4, 5, 6, 3]) == "the dogs"


def test_unigram(tmp_path: Path) -> None:
    tokens = ["<pad>", "</s>", "<unk>", "▁the", "▁", "t", "h", "e", "▁dog"]
    scores = [0.0, 0.0, 0.0, -2.0, -3.0, -4.0, -4.0, -4.0, -2.5]
    metadata = {"tokens": tokens, "scores": scores, "token_type": [3, 3, 2, 1, 1, 1, 1, 1, 1]}
    metadata |= {"eos_token_id": 1, "unknown_token_id": 2}
    tokenizer = load_tokenizer(write_gguf(tmp_path / "vocab.gguf", "t5", metadata))
    assert tokenizer.encode("the dog") == [3, 8, 1]
    assert tokenizer.decode([3, 8, 1]) == "the dog"


def test_chat_templates(tmp_path: Path) -> None:
    named = {"tokenizer.chat_template": CHATML, "tokenizer.chat_template.tool_use": "tools"}
    tokenizer = load_tokenizer(write_bpe_gguf(tmp_path / "vocab.gguf", **named))
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]).startswith("<|im_start|>user\nx<|im_end|>")
    assert tokenizer.render_chat([], tools=[{}]) == "tools"


def test_phi3_tokens_swallow_spaces(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_spm_gguf(tmp_path / "vocab.gguf", **{"general.architecture": "phi3"}))
    plain = tokenizer.encode("<end_of_turn>the<s>\nx", add_special_tokens=False)
    assert tokenizer.encode("<end_of_turn>\n the<s>\nx", add_special_tokens=False) == plain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens is missing"),
        ({"merges": None}, "merges is missing"),
        ({"token_type": [1, 1]}, "token_type has 2 entries"),
        ({"pre": 3}, "pre must be a string"),
        ({"tokens": ["a", "a"], "token_type": [1, 1], "merges": ["x y"]}, "repeated"),
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv' is not supported"),
    ],
)
def test_broken_vocabularies(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "vocab.gguf"
    if "tokenizer.ggml.model" in change:
        write_gguf(path, "rwkv", {"tokens": ["a"]})
    else:
        write_bpe_gguf(path, **change)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(path)


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(b"no GGUF at all")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        load_tokenizer(path)
    with pytest.raises(CheckpointError, match="a tokenizer is read from"):
        load_tokenizer(path.rename(tmp_path / "vocab.bin"))


# llama.cpp leaves combining marks apart where the model's own tokenizer.json composes them.
UNCOMPOSED = {"qwen35": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "bert-bge",
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gemma-4",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "phi-3",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ],
)
def test_llama_cpp_vectors(name: str) -> None:
    """The vocabularies of llama.cpp's `models/`, with the ids it expects for each text."""
    path = MODELS / "vocab" / f"ggml-vocab-{name}.gguf"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    tokenizer = load_tokenizer(path)
    separator = "\n__ggml_vocab_test__\n"
    with open(f"{path}.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split(separator)
    expected = [[int(id) for id in line.split()] for line in Path(f"{path}.out").read_text().split("\n")]
    wrong = [text for text, ids in zip(texts, expected, strict=False) if tokenizer.encode(text, False) != ids]
    assert len(texts) > 40
    assert len(wrong) == UNCOMPOSED.get(name, 0), wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2.gguf", "qwen2.5-coder-0.5b.gguf"])
def test_real_models(name: str) -> None:
    path = MODELS / name
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    tokenizer = load_tokenizer(path)
    text = "Grüße, 👩‍👩‍👧 and 日本語\n\n\tdef f(x): return x ** 2  # 12345"
    ids = tokenizer.encode(text)
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(map(detokenizer.add, ids)) + detokenizer.flush() == text == tokenizer.decode(ids)
    end = tokenizer.token_id("<|im_end|>")
    assert end in tokenizer.eos_token_ids
    assert not tokenizer.add_bos
    assert tokenizer.apply_chat([{"role": "user", "content": "Hi"}]).count(end) == 2  # a default system prompt too
