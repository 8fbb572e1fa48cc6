"""Logprobs in the shapes of the chat and the completions API."""

from __future__ import annotations

from typing import Any

from vjax.outputs import Logprob, LogprobDict
from vjax.tokenizing.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no -inf


def chat_logprobs(rows: list[LogprobDict], top: int, tokenizer: Tokenizer, as_ids: bool) -> dict[str, Any]:
    """`{"content": [...]}`: each token, then the `top` likeliest at its place (-1: all that there are)."""

    def shown(token: int, entry: Logprob) -> dict[str, Any]:
        text = token_text(token, entry, as_ids)
        return {"token": text, "logprob": number(entry), "bytes": list(tokenizer.token_bytes(token))}

    content = []
    for row in rows:
        (token, entry), *_ = row.items()
        ranked = sorted(row.items(), key=lambda item: -item[1].logprob)
        best = ranked if top == -1 else ranked[:top]
        content.append({**shown(token, entry), "top_logprobs": [shown(*item) for item in best]})
    return {"content": content}


def completion_logprobs(
    tokens: list[int], rows: list[LogprobDict | None], offset: int, tokenizer: Tokenizer | None, as_ids: bool
) -> dict[str, Any]:
    """Four parallel lists. `offset`: characters of text before the first token."""
    columns: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for token, row in zip(tokens, rows, strict=True):
        if row is not None:
            text = token_text(token, row[token], as_ids)
        else:  # the first of a prompt has no logprob
            as_id = as_ids or tokenizer is None
            text = f"token_id:{token}" if as_id or tokenizer is None else tokenizer.decode([token], False)
        columns["text_offset"].append(offset)
        columns["tokens"].append(text)
        columns["token_logprobs"].append(None if row is None else number(row[token]))
        columns["top_logprobs"].append(
            None if row is None else {token_text(id, entry, as_ids): number(entry) for id, entry in row.items()}
        )
        offset += len(text)
    return columns


def prompt_logprobs(rows: list[LogprobDict | None] | None) -> list[dict[str, Any] | None] | None:
    """vLLM's extension: for each prompt token a mapping from token ids; none for the first."""
    if rows is None:
        return None
    return [None if row is None else {str(id): _full(entry) for id, entry in row.items()} for row in rows]


def token_text(token: int, entry: Logprob, as_id: bool) -> str:
    return f"token_id:{token}" if as_id or entry.decoded_token is None else entry.decoded_token


def number(entry: Logprob) -> float:
    return max(entry.logprob, LOWEST)


def _full(entry: Logprob) -> dict[str, Any]:
    return {"logprob": number(entry), "rank": entry.rank, "decoded_token": entry.decoded_token}
