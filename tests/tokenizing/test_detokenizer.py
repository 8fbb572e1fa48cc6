from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizing.vocabularies import byte_level, wordpiece, write_spm_gguf
from vjax.tokenizing import IncrementalDetokenizer, Tokenizer, load_tokenizer

BYTES = Tokenizer(byte_level())
WORDS = Tokenizer(wordpiece())
# Plain Unicode with words of the corpus mixed in, so that merged and byte tokens meet.
TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.sampled_from(
            ["The quick", " dog", "  ", "👩‍👩‍👧", "日本語", "ß", "<tool_call>", "<|im_end|>", "</s>", "\ufffd"]
        ),
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_spm_gguf(tmp_path_factory.mktemp("spm") / "vocab.gguf"))


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int], skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*(detokenizer.add(id) for id in ids), detokenizer.flush()]


def check(tokenizer: Tokenizer, text: str, cut: int, skip: bool) -> None:
    """The pieces are what decode adds behind the prompt, and a whole text has no broken character in any piece."""
    ids = tokenizer.encode(text)
    cut = min(cut, len(ids))
    pieces = streamed(tokenizer, ids[cut:], ids[:cut], skip)
    if cut == 0:
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    shown = [b"" if skip and id in tokenizer.special_ids else tokenizer.token_bytes(id) for id in ids]
    prompt = b"".join(shown[:cut])
    expected = b"".join(shown).decode()[len(prompt.decode(errors="ignore")) :]
    if tokenizer.strips_first_space and not prompt:
        expected = expected.removeprefix(" ")
    assert "".join(pieces) == expected
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None, max_examples=150)
@given(TEXTS, st.integers(0, 12), st.booleans())
def test_byte_level_text(text: str, cut: int, skip: bool) -> None:
    check(BYTES, text, cut, skip)


@settings(deadline=None, max_examples=150)
@given(TEXTS, st.integers(0, 12), st.booleans())
def test_sentencepiece_text(spm: Tokenizer, text: str, cut: int, skip: bool) -> None:
    check(spm, text, cut, skip)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, BYTES.vocab_size + 3), max_size=30), st.booleans())
def test_byte_level_any_ids(ids: list[int], skip: bool) -> None:
    assert "".join(streamed(BYTES, ids, [], skip)) == BYTES.decode(ids, skip_special_tokens=skip)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 300), max_size=30), st.booleans())
def test_sentencepiece_any_ids(spm: Tokenizer, ids: list[int], skip: bool) -> None:
    whole = spm.decode(ids, skip_special_tokens=skip)
    text = "".join(streamed(spm, ids, [], skip))
    assert text == whole or "\ufffd" in whole  # decode gives up a whole run of bytes for one that is malformed


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, WORDS.vocab_size - 1), max_size=30), st.booleans())
def test_words_any_ids(ids: list[int], skip: bool) -> None:
    assert "".join(streamed(WORDS, ids, [], skip)) == WORDS.decode(ids, skip_special_tokens=skip)


def test_a_character_comes_whole() -> None:
    ids = BYTES.encode("👍")
    assert len(ids) == 4
    assert streamed(BYTES, ids, [], True) == ["", "", "", "👍", ""]
    assert streamed(BYTES, ids[:2], [], True) == ["", "", "\ufffd"]
    assert streamed(BYTES, ids[3:], ids[:3], True) == ["👍", ""]  # the prompt holds the first bytes


def test_first_space_depends_on_the_prompt(spm: Tokenizer) -> None:
    ids = spm.encode("the dog", add_special_tokens=False)
    assert "".join(streamed(spm, ids, [], True)) == "the dog"
    assert "".join(streamed(spm, ids, [1], True)) == "the dog"  # BOS is skipped, so this is the start
    assert "".join(streamed(spm, ids, ids, True)) == " the dog"


def test_a_malformed_byte_spoils_only_itself(spm: Tokenizer) -> None:
    first, *rest = (spm.token_id(f"<0x{byte:02X}>") for byte in [*"é".encode(), 0xFF, *"ü".encode()])
    assert first is not None
    assert "".join(streamed(spm, [first, *filter(None, rest)], [], True)) == "é\ufffdü"


def test_time_does_not_grow(tmp_path: Path) -> None:
    """Ten thousand ids cost no more each than a hundred: the state stays small."""
    detokenizer = IncrementalDetokenizer(WORDS)
    ids = WORDS.encode("the dog") * 500
    for id in ids:
        detokenizer.add(id)
    assert len(detokenizer._window) <= 4
