"""The engine's logprob rows as the dictionaries that callers get, with each token's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vjax.engine.messages import TokenLogprobs
from vjax.outputs import Logprob, LogprobDict

if TYPE_CHECKING:
    from vjax.tokenizing.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
CONTEXT = 4  # tokens to look back for the start of a character


def decode_row(
    row: TokenLogprobs, top: int, tokenizer: Tokenizer | None, before: list[int], *, ranked: bool = True
) -> LogprobDict:
    """The token at this position first, then the `top` likeliest (-1: all that the engine sent), or those that the
    request chose, which are not `ranked`.

    `before` are the tokens to its left: at most the last four are read.
    """
    count = len(row.top_ids) if top == -1 else top
    entries = {row.token_id: Logprob(row.logprob, row.rank, token_text(tokenizer, row.token_id, before))}
    for rank, (token, logprob) in enumerate(zip(row.top_ids[:count], row.top_logprobs, strict=False), 1):
        if token not in entries:
            entries[token] = Logprob(logprob, rank if ranked else None, token_text(tokenizer, token, before))
    return entries


def token_text(tokenizer: Tokenizer | None, token: int, before: list[int]) -> str | None:
    """A token's own text. A token that ends a character begun before it shows the character; one that leaves a
    character unfinished shows nothing."""
    if tokenizer is None:
        return None
    text = tokenizer.token_bytes(token).decode(errors="replace")
    if REPLACEMENT not in text:
        return text
    head = unfinished(b"".join(tokenizer.token_bytes(one) for one in before[-CONTEXT:]))
    text = (head + tokenizer.token_bytes(token)).decode(errors="replace")
    return "" if text.endswith(REPLACEMENT) else text


def unfinished(data: bytes) -> bytes:
    """The first bytes of a UTF-8 character at the end of `data`, of which more must follow."""
    for size in range(1, min(3, len(data)) + 1):
        lead = data[-size]
        if lead & 0xC0 == 0x80:
            continue
        needs = 2 if lead & 0xE0 == 0xC0 else 3 if lead & 0xF0 == 0xE0 else 4 if lead & 0xF8 == 0xF0 else 0
        return data[-size:] if needs > size else b""
    return b""
