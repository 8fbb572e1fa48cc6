"""`Tokenizer`: text to ids and back, over the `tokenizers` library, with what serving needs to know of a vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tokenizers

from vjax.errors import RequestError
from vjax.tokenizing.chat_template import Message, render_chat

SPACE = "\u2581"
Pieces = Literal["bytes", "spaces", "words"]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


@dataclass(eq=False)
class Tokenizer:
    """A vocabulary with its special tokens and chat templates. Thread-safe: nothing changes after construction."""

    backend: tokenizers.Tokenizer = field(repr=False)
    eos_token_ids: tuple[int, ...] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, ...: seen by templates
    chat_templates: Mapping[str, str] = field(default_factory=dict, repr=False)  # by name; "default" is the usual one

    def __post_init__(self) -> None:
        self.backend.no_padding()
        self.backend.no_truncation()
        self.bos_token_id = self._id_of("bos_token")
        eos = self._id_of("eos_token")
        self.eos_token_ids = tuple(dict.fromkeys(id for id in (eos, *self.eos_token_ids) if id is not None))
        self.eos_token_id = self.eos_token_ids[0] if self.eos_token_ids else None
        added = self.backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.vocab_size: int = max(self.backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self.add_bos: bool = self.bos_token_id is not None and self.encode("")[:1] == [self.bos_token_id]
        self.pieces, self.byte_fallback, self.strips_first_space = _how_pieces_join(self.backend)
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def max_token_length(self) -> int:
        """Characters of the longest piece: n characters make no fewer than n / this tokens, where none is unknown."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text. Raises `RequestError` for text with lone surrogates, which is not Unicode."""
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError("The text is not valid Unicode: it holds lone surrogates.", "prompt") from None
        return ids

    def encode_within(
        self, text: str, pair: str | None = None, *, most: int | None = None, left: bool = False,
        add_special_tokens: bool = True, most_text: int | None = None, most_pair: int | None = None,
    ) -> tuple[list[int], int | None]:  # fmt: skip
        """The ids of a text, or of two as the model wants pairs, cut to `most` with the special tokens that belong
        there (of a pair the longer text is cut first), each text to its own limit before; `left` keeps the ends. Also
        where the second text's type begins, if types tell them apart."""
        plain = [self._plain(one, left, limit) for one, limit in ((text, most_text), (pair, most_pair))]
        first, second = plain
        assert first is not None
        if most is not None:
            extra = self.backend.num_special_tokens_to_add(second is not None) if add_special_tokens else 0
            room = max(most - extra, 1)
            keep, other = len(first.ids), len(second.ids) if second is not None else 0
            if keep + other > room:
                shorter = min(keep, other, room // 2)
                keep, other = (shorter, room - shorter) if keep <= other else (room - shorter, shorter)
            side = "left" if left else "right"
            first.truncate(keep, direction=side)
            if second is not None:
                second.truncate(other, direction=side)
        found = self.backend.post_process(first, second, add_special_tokens)
        types = found.type_ids
        return found.ids, types.index(1) if pair is not None and 1 in types else None

    def _plain(self, text: str | None, left: bool, most: int | None) -> tokenizers.Encoding | None:
        if text is None:
            return None
        try:
            found = self.backend.encode(text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            raise RequestError("The text is not valid Unicode: it holds lone surrogates.", "prompt") from None
        if most is not None:
            found.truncate(most, direction="left" if left else "right")
        return found

    def decode(
        self, ids: Iterable[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of ids; ids outside the vocabulary yield nothing, malformed bytes U+FFFD.

        `spaces_between_special_tokens` matters only to vocabularies of words (WordPiece), whose decoder puts a space
        between any two tokens.
        """
        known = [id for id in ids if 0 <= id < self.vocab_size]
        if spaces_between_special_tokens or skip_special_tokens or self.pieces != "words":
            return str(self.backend.decode(known, skip_special_tokens=skip_special_tokens))
        return self._decode_words(known)

    def token_text(self, id: int) -> str:
        """The piece as the vocabulary writes it (`Ġthe`, `▁the`, `<0x0A>`); empty for an id outside of it."""
        piece = self.backend.id_to_token(id) if 0 <= id < self.vocab_size else None
        return piece or ""

    def token_id(self, piece: str) -> int | None:
        id: int | None = self.backend.token_to_id(piece)
        return id

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 bytes a token stands for, which may be part of a character."""
        found = self._bytes.get(id)
        if found is None:
            found = self._bytes[id] = self._bytes_of(self.token_text(id))
        return found

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation. `chat_template` overrides the model's own.

        Raises `RequestError` when there is no template or it fails.
        """
        return render_chat(
            chat_template or self._template_for(tools),
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **{**self.special_tokens, **variables},
        )

    def apply_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The prompt ids of a conversation; `options` are those of `render_chat`. The template writes BOS itself."""
        return self.encode(self.render_chat(messages, **options), add_special_tokens=False)

    def save(self, path: str | Path) -> None:
        """Writes a `tokenizer.json`."""
        self.backend.save(str(path))

    def _template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        template = self.chat_templates.get("tool_use") if tools else None
        template = template or self.chat_template
        if template is None:
            raise RequestError("The model has no chat template; give one with --chat-template.", "chat_template")
        return template

    def _id_of(self, name: str) -> int | None:
        return self.token_id(self.special_tokens[name]) if name in self.special_tokens else None

    def _bytes_of(self, piece: str) -> bytes:
        if self.pieces == "bytes":
            values = [_BYTE_OF.get(char) for char in piece]
            # A piece with any other character is an added token, written as it reads.
            return piece.encode() if None in values else bytes(value for value in values if value is not None)
        if self.pieces == "spaces":
            if self.byte_fallback and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                return bytes([int(piece[3:5], 16)])
            return piece.replace(SPACE, " ").encode()
        return piece.removeprefix("##").encode()

    def _decode_words(self, ids: list[int]) -> str:
        """Decodes with no space between neighbouring added tokens."""
        text, run = "", list[int]()
        for id in ids:
            if run and id in self.added_ids and run[-1] in self.added_ids:
                text += str(self.backend.decode(run, skip_special_tokens=False))
                run = []
            run.append(id)
        return text + str(self.backend.decode(run, skip_special_tokens=False))


def _how_pieces_join(backend: tokenizers.Tokenizer) -> tuple[Pieces, bool, bool]:
    """How pieces become text, whether `<0xNN>` is a byte, and whether the text's first space is dropped."""
    state = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = state.get("decoders", [state])
    names = {step.get("type") for step in steps}
    if names == {"ByteLevel"}:
        return "bytes", False, False
    writes_spaces = any(
        step.get("type") == "Metaspace" or (step.get("pattern"), step.get("content")) == ({"String": SPACE}, " ")
        for step in steps
    )
    if not writes_spaces or names - {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return "words", False, False
    strips = any(
        step["type"] == "Strip" or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in steps
    )
    return "spaces", "ByteFallback" in names, strips
