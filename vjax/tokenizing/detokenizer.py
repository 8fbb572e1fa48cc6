"""`IncrementalDetokenizer`: the text of a growing sequence of ids, piece by piece and never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from vjax.tokenizing.tokenizer import Tokenizer

_TAIL = 4  # ids of the prompt that can hold the start of a character: each has a byte at least, UTF-8 needs four


class IncrementalDetokenizer:
    """Turns ids into text as they come, in constant time an id.

    The pieces and `flush()` together are the text that `Tokenizer.decode` adds for these ids behind the prompt. One
    exception: in a run of `<0xNN>` tokens a malformed byte spoils only itself, where `decode` spoils the whole run.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        shown_special_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`shown_special_ids` are not skipped."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown_special_ids if skip_special_tokens else frozenset()
        # What is skipped does not get as far as the decoder.
        self._options = (skip_special_tokens and not shown_special_ids, spaces_between_special_tokens)
        tail = self._visible_tail(prompt_ids)
        self._by_bytes = tokenizer.pieces != "words"
        self._strip = tokenizer.strips_first_space and not tail
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window = tail
        self._shown = "" if self._by_bytes else self._window_text()
        if self._by_bytes:
            for id in tail:
                self._utf8.decode(tokenizer.token_bytes(id))

    def add(self, token_id: int) -> str:
        """The text that this id completes, often empty inside a character."""
        if token_id in self._skipped:
            return ""
        if not self._by_bytes:
            return self._add_to_window(token_id)
        return self._stripped(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """The rest at the end of generation: U+FFFD where a character was left unfinished."""
        if not self._by_bytes:
            return self._window_text()[len(self._shown) :]
        return self._stripped(self._utf8.decode(b"", final=True))

    def _visible_tail(self, ids: Sequence[int]) -> list[int]:
        tail: list[int] = []
        for id in reversed(ids):
            if id not in self._skipped:
                tail.append(id)
                if len(tail) == _TAIL:
                    break
        return tail[::-1]

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def _window_text(self) -> str:
        return self._tokenizer.decode(self._window, *self._options)

    def _add_to_window(self, token_id: int) -> str:
        """Word vocabularies decide on spaces by the neighbour, so the new text is what the window's text gains."""
        self._window.append(token_id)
        text = self._window_text()
        if text.endswith("\ufffd") and len(self._window) < 2 * _TAIL:
            return ""
        gained = text[len(self._shown) :]
        del self._window[:-_TAIL]
        self._shown = self._window_text()
        return gained
