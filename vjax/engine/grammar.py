"""Grammars: what llguidance makes of a request's `structured_outputs`, and which tokens it allows next.

Compiling takes about a millisecond, seldom more, and happens in threads. llguidance counts its own work and gives up on
what is too large; sizes are bounded before. A compiled grammar is copied for each request that uses it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tokenizers

from vjax.engine.messages import Vocabulary
from vjax.engine.structural_tag import Rules, to_lark
from vjax.engine.thinking import with_thoughts
from vjax.errors import RequestError
from vjax.structured_outputs import StructuredOutputsParams

KEPT = 64  # compiled grammars
QUEUED = 256
THREADS = 2
# llguidance's own bounds but for two. A tenth of its grammar size, as what is refused for it has taken up to a second;
# and more alternatives at one place, for objects of hundreds of optional properties.
LIMITS: dict[str, Any] = {"max_grammar_size": 50_000, "max_items_in_row": 10_000, "verbose_errors": False}

# Between two parts of JSON. Without a bound, some models find no way out of it.
WHITESPACE = r"[ \n\r\t]{1,64}"


class Compiler:
    """Compiles grammars for one vocabulary. Thread-safe. Starts no thread and loads nothing before it is asked."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._lock, self._preparing = threading.Lock(), threading.Lock()
        self._known: OrderedDict[StructuredOutputsParams, Future[Any]] = OrderedDict()
        self._running = 0
        self._pool: ThreadPoolExecutor | None = None
        self._tokenizer: Any = None

    def submit(self, spec: StructuredOutputsParams) -> Future[Any]:
        """The compiled grammar, once it is there, or a `RequestError` that names the field."""
        with self._lock:
            future = self._known.get(spec)
            if future is not None:
                self._known.move_to_end(spec)
                return future
            if self._running >= QUEUED:
                raise RequestError("too many grammars are being compiled; try again later.", spec.field)
            self._pool = self._pool or ThreadPoolExecutor(THREADS, thread_name_prefix="vjax-grammar")
            self._running += 1
            future = self._known[spec] = self._pool.submit(self._compile, spec)
            while len(self._known) > KEPT and next(iter(self._known.values())).done():
                self._known.popitem(last=False)
            return future

    @property
    def tokenizer(self) -> Any:
        """llguidance's view of the vocabulary: half a second to make."""
        import llguidance

        with self._preparing:
            if self._tokenizer is None:
                pieces = _Pieces(self.vocabulary)
                wrapped = llguidance.TokenizerWrapper(pieces)
                self._tokenizer = llguidance.LLTokenizer(wrapped, eos_token=list(self.vocabulary.eos))
                pieces.greedy = self._tokenizer.greedy_tokenize
            return self._tokenizer

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: StructuredOutputsParams) -> Any:
        import llguidance

        try:
            tokenizer = self.tokenizer
            source = self._source_with_thoughts(spec)
            limits = llguidance.LLParserLimits(**LIMITS)
            matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)
        except (ValueError, TypeError, RecursionError) as error:
            raise _refusal(spec, error) from None
        finally:
            with self._lock:
                self._running -= 1
        if not matcher.is_error():
            matcher.compute_bitmask()  # some grammars are found to be too large only here
        if matcher.is_error():
            raise _refusal(spec, matcher.get_error())
        return matcher

    def _source_with_thoughts(self, spec: StructuredOutputsParams) -> str:
        """llguidance's own description of the grammar."""
        if spec.thinking is None:
            return self._source(spec)
        form = self._source(spec) if spec.has_form else None
        return with_thoughts(spec.thinking, form, Rules(self._special, {}), self.vocabulary.tokens)

    @property
    def _special(self) -> dict[str, int]:
        tokens = self.vocabulary.tokens
        return {tokens[id].decode(errors="replace"): id for id in self.vocabulary.special}

    def _source(self, spec: StructuredOutputsParams) -> str:
        import llguidance

        options: Any = {"whitespace_flexible": not spec.disable_any_whitespace}
        if not spec.disable_any_whitespace:
            options["whitespace_pattern"] = spec.whitespace_pattern or WHITESPACE
        of_schema = llguidance.LLMatcher.grammar_from_json_schema
        if spec.json is not None:
            schema = json.loads(str(spec.json))
            if spec.disable_additional_properties:
                schema = _closed(schema)
            return str(of_schema(json.dumps(schema), overrides=options))
        if spec.json_object:
            return str(of_schema('{"type": "object"}', overrides=options))
        if spec.regex is not None:
            return str(llguidance.LLMatcher.grammar_from_regex(_unanchored(spec.regex)))
        if spec.choice is not None:
            return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in spec.choice)
        if spec.grammar is not None:
            return str(llguidance.grammar_from("grammar", spec.grammar))
        return to_lark(str(spec.structural_tag), self._special, options)


def compiler_of(vocabulary: Vocabulary) -> Compiler:
    """One for each vocabulary, so that a front end and an engine in one process share it."""
    found: Compiler = vocabulary.__dict__.setdefault("compiler", Compiler(vocabulary))
    return found


class _Pieces:
    """What llguidance asks of a tokenizer: the tokens' bytes, and how text that a grammar forces is cut into tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id, self.bos_token_id = vocabulary.eos[0], None
        self.special_token_ids = vocabulary.special
        self.greedy: Any = None
        self._backend = tokenizers.Tokenizer.from_str(vocabulary.tokenizer)

    def __call__(self, data: bytes) -> list[int]:
        """The model's own way to write the text, where that is this text exactly (SentencePiece may add a space)."""
        text = data.decode(errors="replace")
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if all(id < len(self.tokens) for id in ids) and b"".join(self.tokens[id] for id in ids) == data:
            return ids
        return [] if self.greedy is None else list(self.greedy(text))


class Grammar:
    """One request's way through its grammar. It waits for the grammar and for `others`, such as graphs."""

    def __init__(self, compiled: Future[Any], others: Sequence[Future[Any]] = (), *, ignore_eos: bool = False) -> None:
        self._compiled, self._others, self.ignore_eos = compiled, others, ignore_eos
        self.matcher: Any = None

    @property
    def awaited(self) -> list[Future[Any]]:
        return [one for one in (self._compiled, *self._others) if not one.done()]

    def start(self) -> bool:
        """Whether the request may run now. Raises what kept its grammar from being compiled."""
        if self.matcher is None:
            if self._compiled.done():
                self._compiled.result()  # a refusal waits for nothing else
            if self.awaited:
                return False
            for one in self._others:
                if not one.cancelled():  # by somebody who needed it at once, and compiled it himself
                    one.result()
            self.matcher = self._compiled.result().deep_copy()
        return True

    def accept(self, token: int) -> bool:
        """Take in a token that the request got. True if nothing may follow it."""
        self.matcher.consume_token(token)
        return bool(self.matcher.is_stopped())

    @property
    def error(self) -> str | None:
        """Why it stopped where it may not end."""
        why = str(self.matcher.get_error())
        if "NoExtension" in why or not (why or self.matcher.is_accepting()):
            return "no token of the vocabulary continues the grammar."
        return f"the grammar cannot go on: {_one_line(why)}" if why else None


class Masks:
    """Fills bit masks of allowed tokens, int32 `[rows, V / 32]`, with threads of llguidance's own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._executor = llguidance.LLExecutor()
        bits = np.zeros(-(-len(vocabulary.tokens) // 32), np.uint32)
        for token in vocabulary.eos:
            bits[token // 32] |= np.uint32(1 << token % 32)
        self._eos = bits.view(np.int32)

    def fill(self, grammars: Sequence[Grammar], out: np.ndarray) -> None:
        """`out` has at least as many rows; those behind allow everything."""
        from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

        out[len(grammars) :] = -1
        if len(grammars) == 1:
            fill_next_token_bitmask(grammars[0].matcher, out, 0)
        else:
            fill_next_token_bitmask_par(self._executor, [(one.matcher, i) for i, one in enumerate(grammars)], out)
        for row, grammar in zip(out, grammars, strict=False):
            if grammar.ignore_eos and (without := row & ~self._eos).any():
                row[:] = without


def _refusal(spec: StructuredOutputsParams, why: object) -> RequestError:
    return RequestError(f"{spec.field} cannot be used: {_one_line(str(why)).rstrip('.')}.", spec.field)


def _one_line(text: str, most: int = 300) -> str:
    return " ".join(text.split("<state>")[0].split())[:most]


def _unanchored(pattern: str) -> str:
    """The whole text has to match in any case."""
    pattern = pattern.removeprefix("^")
    body = pattern.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2
    return pattern if escaped else body


def _closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` wherever an object's properties are listed without it."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = ("const", "enum", "default", "examples")
    closed = {key: value if key in kept else _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed
