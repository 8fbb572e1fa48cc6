"""`load_tokenizer`: reads a tokenizer from a Hugging Face directory or a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from vjax.errors import CheckpointError
from vjax.tokenizing import gguf_vocab
from vjax.tokenizing.tokenizer import Tokenizer

MAX_FILE_BYTES = 256 << 20
# The classes of transformers that rebuild the BOS/EOS rule from their configuration, whatever tokenizer.json says.
_FRAMED_BY_CONFIG = ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer", "CohereTokenizer")
_GGUF_NAMES = {
    "bos": "bos",
    "eos": "eos",
    "unknown": "unk",
    "padding": "pad",
    "cls": "cls",
    "seperator": "sep",
    "mask": "mask",
}


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory (`tokenizer.json` and its neighbours) or of a `.gguf` file.

    Raises `CheckpointError` naming the file when it is missing, broken or of an unknown kind.
    """
    path = Path(path)
    if path.is_dir():
        return _from_directory(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file or directory.")
    if path.suffix != ".gguf":
        raise CheckpointError(f"{path}: a tokenizer is read from a directory with tokenizer.json or from a .gguf file.")
    return _from_gguf(path)


def _from_gguf(path: Path) -> Tokenizer:
    metadata = gguf_vocab.read_metadata(path)
    try:
        backend = gguf_vocab.build_tokenizer(metadata)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    texts = {f"{name}_token": gguf_vocab.special_token(metadata, key) for key, name in _GGUF_NAMES.items()}
    return Tokenizer(
        backend,
        gguf_vocab.eos_ids(metadata),
        {name: text for name, text in texts.items() if text is not None},
        gguf_vocab.chat_templates(metadata),
    )


def _from_directory(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(
            f"{path}: tokenizer.json is missing. Where there is a slow tokenizer only, write one with "
            "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    _check_size(file)
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{file}: not a tokenizer ({error}).") from None
    config = {**_json(path / "special_tokens_map.json"), **_json(path / "tokenizer_config.json")}
    texts = _special_texts(config)
    _add_tokens(backend, config, texts)
    _apply_frame(backend, config, texts)
    return Tokenizer(backend, _eos_ids(path), texts, _chat_templates(path, config))


def _json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file."""
    if not file.is_file():
        return {}
    _check_size(file)
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON ({error}).") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: an object was expected.")
    return value


def _check_size(file: Path) -> None:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise CheckpointError(f"{file}: larger than {MAX_FILE_BYTES >> 20} MiB.")


def _text_of(token: Any) -> str | None:
    """A token is written as its text or as an object with `content`."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _special_texts(config: dict[str, Any]) -> dict[str, str]:
    extra = config.get("extra_special_tokens")
    named = {**(extra if isinstance(extra, dict) else {}), **config}
    texts = {name: _text_of(token) for name, token in named.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _add_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any], texts: dict[str, str]) -> None:
    """Adds the tokens that only the configuration lists, and marks as special the ones it calls so."""
    listed = config.get("added_tokens_decoder")
    for id, token in sorted((listed if isinstance(listed, dict) else {}).items(), key=lambda item: int(item[0])):
        text = _text_of(token)
        if text and (backend.token_to_id(text) is None and backend.get_vocab_size() == int(id)):
            flags = {name: bool(token.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
            backend.add_tokens([AddedToken(text, special=bool(token.get("special", False)), **flags)])
    more = config.get("additional_special_tokens") or []
    special = [*texts.values(), *filter(None, map(_text_of, more if isinstance(more, list) else []))]
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in dict.fromkeys(special) if text not in known and backend.token_to_id(text) is not None]
    if missing:
        backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _apply_frame(backend: tokenizers.Tokenizer, config: dict[str, Any], texts: dict[str, str]) -> None:
    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if name not in _FRAMED_BY_CONFIG or "add_bos_token" not in config:
        return
    first = backend.token_to_id(texts["bos_token"]) if config["add_bos_token"] and "bos_token" in texts else None
    last = backend.token_to_id(texts["eos_token"]) if config.get("add_eos_token") and "eos_token" in texts else None
    gguf_vocab.set_frame(backend, first, last)


def _eos_ids(path: Path) -> tuple[int, ...]:
    """The ids that end generation: generation_config.json decides, config.json where it is silent."""
    config = _json(path / "config.json")
    places = (_json(path / "generation_config.json"), config, config.get("text_config") or {})
    for place in places:
        ids = place.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [ids]
        if found := tuple(id for id in ids if isinstance(id, int) and id >= 0):
            return found
    return ()


def _chat_templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates by name. A file beats the configuration, as in transformers."""
    written = config.get("chat_template") or _json(path / "chat_template.json").get("chat_template")
    if isinstance(written, list):
        templates = {str(item.get("name")): str(item.get("template")) for item in written if isinstance(item, dict)}
    else:
        templates = {"default": written} if isinstance(written, str) else {}
    for file in [path / "chat_template.jinja", *sorted((path / "additional_chat_templates").glob("*.jinja"))]:
        if file.is_file():
            _check_size(file)
            name = "default" if file.name == "chat_template.jinja" else file.stem
            templates[name] = file.read_text(encoding="utf-8")
    return templates
