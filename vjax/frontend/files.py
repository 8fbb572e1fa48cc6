"""What a front end reads beside the weights: the tokenizer, and the model's own sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vjax.config import EngineConfig
from vjax.errors import CheckpointError, RequestError
from vjax.loading.hf_config import read_json_object
from vjax.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer

SAMPLING_KEYS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class FrontendFiles:
    """A tokenizer, or None, and the contents of `generation_config.json`, empty if there is none."""

    tokenizer: Tokenizer | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    lower_case: bool = False  # texts to encode lose their case, as sentence_bert_config.json may say

    @classmethod
    def load(cls, config: EngineConfig) -> FrontendFiles:
        """Raises `CheckpointError` naming the file."""
        from vjax.loading.source import find_source
        from vjax.tokenizing.load import load_tokenizer

        path = find_source(config.model, weights=False).path
        tokenizer = None
        if not config.skip_tokenizer_init:
            tokenizer = load_tokenizer(find_source(config.tokenizer, weights=False).path if config.tokenizer else path)
        generation = path / "generation_config.json"
        sentence = path / "sentence_bert_config.json"
        lower = sentence.is_file() and read_json_object(sentence).get("do_lower_case") is True
        files = cls(tokenizer, read_json_object(generation) if generation.is_file() else {}, lower)
        # Complain now, not at the first request.
        files.default_sampling_params()
        _ = files.eos_token_ids
        return files

    @property
    def eos_token_ids(self) -> list[int]:
        ids = self.generation_config.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if any(type(token) is not int for token in ids):
            raise CheckpointError(f"generation_config.json: eos_token_id must hold token ids, found {ids!r}.")
        return ids

    def default_sampling_params(self) -> SamplingParams:
        """A fresh object each time; callers may change it. Raises `CheckpointError` for a value out of range."""
        values = {key: self.generation_config.get(key) for key in SAMPLING_KEYS}
        values["max_tokens"] = self.generation_config.get("max_new_tokens")
        try:
            return SamplingParams(**{key: value for key, value in values.items() if value is not None})
        except RequestError as error:
            raise CheckpointError(f"generation_config.json: {error}") from None
