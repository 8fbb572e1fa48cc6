"""The text of one continuation: detokenised, searched for stop strings, and held back where one may yet appear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vjax.sampling_params import SamplingParams
from vjax.tokenizing.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer


class GrowingText:
    """Work per token depends on the new text and the longest stop string, never on the text so far."""

    __slots__ = ("_count", "_detokenizer", "_hold", "_include", "_min_tokens", "_ready", "_recent", "_stops")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: list[int],
        params: SamplingParams,
        shown_special_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            prompt_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            shown_special_ids=shown_special_ids,
        )
        self._stops = params.stop_strings
        self._include = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._hold = max((len(stop) for stop in self._stops), default=1) - 1
        self._count = 0
        self._ready: list[str] = []  # to be taken
        self._recent = ""  # where a stop string may have begun; in `_ready` too if stop strings are included

    def add(self, token_id: int) -> str | None:
        """Append a token's text. Returns the stop string that it completed, if any; the text then ends there."""
        self._count += 1
        return self._append(self._detokenizer.add(token_id))

    def finish(self) -> str | None:
        """Release everything, half a character too. May complete a stop string as `add` does."""
        found = self._append(self._detokenizer.flush())
        if found is None:
            self._release()
        return found

    def take(self) -> str:
        """The text that became certain since the last call."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _append(self, new: str) -> str | None:
        if not new:
            return None
        if not self._stops:
            self._ready.append(new)
            return None
        text = self._recent + new
        found = self._search(text, len(new)) if self._count > self._min_tokens else None
        if found is not None:
            stop, start = found
            if self._include:
                self._ready.append(text[len(self._recent) : start + len(stop)])
            else:
                self._ready.append(text[:start])
            self._recent = ""
            return stop
        self._recent = text[-self._hold :] if self._hold else ""
        self._ready.append(new if self._include else text[: len(text) - len(self._recent)])
        return None

    def _search(self, text: str, new: int) -> tuple[str, int] | None:
        """The first of the list that ends in the last `new` characters, and where it begins."""
        for stop in self._stops:
            start = text.find(stop, max(0, len(text) - new - len(stop) + 1))
            if start != -1:
                return stop, start
        return None

    def _release(self) -> None:
        if not self._include:
            self._ready.append(self._recent)
        self._recent = ""
