"""Structured outputs before they reach an engine: is the grammar one that can be served?

Compiled here once and in an engine elsewhere once more: about a millisecond, for which a bad schema is refused before
an answer begins.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vjax.engine.grammar import Compiler, compiler_of
from vjax.engine.messages import Vocabulary
from vjax.errors import RequestError
from vjax.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer

SECONDS = 1.0  # that a grammar may take to compile, the wait for others included


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, eos: list[int]) -> Vocabulary:
    """Of a model's `vocab_size` tokens, of which the tokenizer may know fewer or more. Half a second for 150k."""
    size = min(tokenizer.vocab_size, vocab_size)
    tokens = [tokenizer.token_bytes(id) for id in range(size)] + [b""] * (vocab_size - size)
    eos = [id for id in eos if id < vocab_size]
    special = sorted(id for id in {*tokenizer.special_ids, *eos} if id < vocab_size)
    return Vocabulary(tokens, special, eos, tokenizer.backend.to_str())


class Grammars:
    """Compiles the grammars of requests. Thread-safe. Does nothing until a request has one."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos: list[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, eos
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._prepared = False

    @property
    def vocabulary(self) -> Vocabulary:
        """For `Engine.teach`. Raises `RequestError` where there can be none."""
        with self._lock:
            if self._vocabulary is None:
                if self._tokenizer is None or not self._eos:
                    missing = "a tokenizer" if self._tokenizer is None else "an end-of-text token"
                    raise RequestError(
                        f"structured outputs need {missing}; this engine runs without one.", "structured_outputs"
                    )
                if find_spec("llguidance") is None:
                    raise RequestError(
                        "structured outputs need llguidance, which is not installed; "
                        "run: pip install 'vjax[structured]'.",
                        "structured_outputs",
                    )
                self._vocabulary = vocabulary_of(self._tokenizer, self._vocab_size, self._eos)
            return self._vocabulary

    def check(self, spec: StructuredOutputsParams) -> None:
        """Raises `RequestError` naming the field for a grammar that cannot be compiled in time."""
        future = self._prepare().submit(spec)
        try:
            future.result(SECONDS)
        except TimeoutError:
            raise _too_slow(spec) from None

    async def check_async(self, spec: StructuredOutputsParams) -> None:
        """The same, without holding up the event loop or a thread."""
        compiler = self._prepare() if self._prepared else await asyncio.to_thread(self._prepare)
        future: Future[Any] = compiler.submit(spec)
        try:
            # A later request may wait for the same.
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), SECONDS)
        except TimeoutError:
            raise _too_slow(spec) from None

    def _prepare(self) -> Compiler:
        """The compiler, with what it makes of the vocabulary only once."""
        compiler = compiler_of(self.vocabulary)
        _ = compiler.tokenizer
        self._prepared = True
        return compiler


def _too_slow(spec: StructuredOutputsParams) -> RequestError:
    return RequestError(f"{spec.field} takes more than {SECONDS:g} s to compile; make it smaller.", spec.field)
