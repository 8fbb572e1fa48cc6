from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tokenizing.vocabularies import CHATML, byte_level, wordpiece, write_directory
from vjax.errors import CheckpointError, RequestError
from vjax.tokenizing import Tokenizer, load_tokenizer

CONFIG = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>"}, "chat_template": CHATML}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("hf")
    generation = {"eos_token_id": [2, 0]}
    return load_tokenizer(
        write_directory(path, byte_level(), tokenizer_config=CONFIG, generation_config=generation, config={})
    )


def test_attributes(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 401
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_id == 2
    assert tokenizer.eos_token_ids == (2, 0)
    assert not tokenizer.add_bos
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.chat_template == CHATML
    assert tokenizer.max_token_length == max(len(tokenizer.token_text(id)) for id in range(401))


def test_round_trip_and_special_tokens(tokenizer: Tokenizer) -> None:
    text = "Größe 日本語 👩‍👩‍👧\n\t <tool_call>x"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text  # <tool_call> is added, not special
    assert tokenizer.decode([1, *ids, 2]) == text
    assert tokenizer.decode([1, *ids, 2], skip_special_tokens=False) == f"<|im_start|>{text}<|im_end|>"
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_pieces(tokenizer: Tokenizer) -> None:
    space = tokenizer.token_id("Ġ")
    assert space is not None
    assert tokenizer.token_text(space) == "Ġ"
    assert tokenizer.token_bytes(space) == b" "
    assert tokenizer.token_id("no such piece") is None
    assert tokenizer.token_bytes(2) == b"<|im_end|>"


@pytest.mark.parametrize("id", [-1, 401, 10**9])
def test_ids_outside_the_vocabulary_are_empty(tokenizer: Tokenizer, id: int) -> None:
    assert tokenizer.token_text(id) == ""
    assert tokenizer.token_bytes(id) == b""
    assert tokenizer.decode([id]) == ""


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogates"):
        tokenizer.encode("a\ud800b")


def test_padding_and_truncation_are_reset(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_padding(length=64)
    backend.enable_truncation(4)
    tokenizer = load_tokenizer(write_directory(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("The quick brown fox jumps")) == "The quick brown fox jumps"


def test_eos_of_config_when_generation_config_is_silent(tmp_path: Path) -> None:
    path = write_directory(tmp_path, byte_level(), config={"text_config": {"eos_token_id": 0}})
    assert load_tokenizer(path).eos_token_ids == (0,)


def test_llama_class_adds_bos_as_configured(tmp_path: Path) -> None:
    config = {**CONFIG, "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True}
    tokenizer = load_tokenizer(write_directory(tmp_path, byte_level(), tokenizer_config=config))
    assert tokenizer.add_bos
    assert tokenizer.encode("dog")[0] == 1
    assert 1 not in tokenizer.encode("dog", add_special_tokens=False)


def test_tokens_that_only_the_configuration_lists(tmp_path: Path) -> None:
    listed = {"401": {"content": "<think>", "special": False}, "402": {"content": "<|eot|>", "special": True}}
    config = {"added_tokens_decoder": listed, "eos_token": "<|eot|>"}
    tokenizer = load_tokenizer(write_directory(tmp_path, byte_level(), tokenizer_config=config))
    assert tokenizer.eos_token_id == 402
    assert tokenizer.encode("<think><|eot|>") == [401, 402]
    assert tokenizer.decode([401, 402]) == "<think>"


def test_template_files_and_names(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    path = write_directory(tmp_path, byte_level(), tokenizer_config={"chat_template": named})
    tokenizer = load_tokenizer(path)
    assert tokenizer.render_chat([]) == "D"
    assert tokenizer.render_chat([], tools=[{"type": "function"}]) == "T"
    assert tokenizer.render_chat([], chat_template="own") == "own"
    (path / "chat_template.jinja").write_text("F")
    assert load_tokenizer(path).render_chat([]) == "F"


def test_chat_ids_hold_no_second_bos(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "The dog"}]
    ids = tokenizer.apply_chat(messages)
    assert ids[0] == 1
    assert ids.count(2) == 1
    text = "<|im_start|>user\nThe dog<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_no_template(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        load_tokenizer(write_directory(tmp_path, byte_level())).render_chat([])


def test_words_without_spaces_between_special_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_directory(tmp_path, wordpiece()))
    ids = [2, 3, *tokenizer.encode("the dog")]
    assert tokenizer.decode(ids, skip_special_tokens=False) == "[CLS] [SEP] the dog"
    closed = tokenizer.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert closed == "[CLS][SEP] the dog"


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"tokenizer.json is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
    write_directory(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: not valid JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match="an object was expected"):
        load_tokenizer(tmp_path)


def test_imports_no_jax() -> None:
    code = "import sys, vjax.tokenizing; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
