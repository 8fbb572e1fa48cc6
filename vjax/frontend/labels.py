"""`classifier_from_token`: a reranker's answers, such as no and yes, as the engine wants them: token ids."""

from __future__ import annotations

from dataclasses import replace

from vjax.config import EngineConfig
from vjax.errors import ModelError
from vjax.frontend.files import FrontendFiles
from vjax.loading.hf_config import read_hf_config
from vjax.loading.source import find_source

KEY = "classifier_from_token"


def with_label_ids(config: EngineConfig, files: FrontendFiles | None = None) -> EngineConfig:
    """`config` with the ids of the tokens that its overrides or the model's config.json name.

    Raises `ModelError` for a text that is no token.
    """
    overrides = config.hf_overrides or {}
    tokens = overrides.get(KEY)
    if tokens is None:
        source = find_source(config.model, weights=False)
        is_hf = source.kind == "hf" and (source.path / "config.json").is_file()
        tokens = read_hf_config(source.path).get(KEY) if is_hf else None
    if not isinstance(tokens, (list, tuple)) or not any(isinstance(token, str) for token in tokens):
        return config
    tokenizer = (files or FrontendFiles.load(config)).tokenizer
    if tokenizer is None:
        raise ModelError(f"{KEY} names texts, and there is no tokenizer (skip_tokenizer_init): give token ids.")
    ids = [tokenizer.token_id(token) if isinstance(token, str) else token for token in tokens]
    if None in ids:
        raise ModelError(f"{KEY}: {tokens[ids.index(None)]!r} is not one token of this model's tokenizer.")
    return replace(config, hf_overrides={**overrides, KEY: ids})
