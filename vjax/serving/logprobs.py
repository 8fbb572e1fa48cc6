"""Logprobs in the shapes of the chat and the completions API."""

from __future__ import annotations

from typing import Any

from vjax.outputs import Logprob, LogprobDict

LOWEST = -9999.0  # JSON has no -inf


def chat_logprobs(entries: list[LogprobDict], top: int, as_ids: bool) -> dict[str, Any]:
    """`{"content": [...]}`: each token with its `top` most likely alternatives."""

    def shown(token: int, entry: Logprob) -> dict[str, Any]:
        text = token_text(token, entry, as_ids)
        return {"token": text, "logprob": max(entry.logprob, LOWEST), "bytes": list(text.encode("utf-8", "replace"))}

    content = []
    for entry in entries:
        (token, chosen), *_ = entry.items()
        best = [(t, e) for t, e in entry.items() if e.rank is not None and e.rank <= top]
        best.sort(key=lambda pair: pair[1].rank or 0)
        content.append({**shown(token, chosen), "top_logprobs": [shown(t, e) for t, e in best[:top]]})
    return {"content": content}


def completion_logprobs(
    tokens: list[int], entries: list[LogprobDict | None], top: int, offset: int, as_ids: bool
) -> dict[str, Any]:
    """The completions API's four parallel lists; `offset`: characters of text before the first token."""
    texts: list[str] = []
    chosen: list[float | None] = []
    best: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token, entry in zip(tokens, entries, strict=True):
        offsets.append(offset)
        if entry is None:  # the first prompt token
            texts.append(f"token_id:{token}" if as_ids else "")
            chosen.append(None)
            best.append(None)
            continue
        text = token_text(token, entry[token], as_ids)
        texts.append(text)
        chosen.append(max(entry[token].logprob, LOWEST))
        ranked = [(t, e) for t, e in entry.items() if t == token or (e.rank is not None and e.rank <= top)]
        best.append({token_text(t, e, as_ids): max(e.logprob, LOWEST) for t, e in ranked})
        offset += len(text)
    return {"tokens": texts, "token_logprobs": chosen, "top_logprobs": best, "text_offset": offsets}


def prompt_logprobs(entries: list[LogprobDict | None] | None) -> list[dict[str, Any] | None] | None:
    """vLLM's extension: for each prompt token, a map from token id to its logprob, rank and text."""
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            str(t): {"logprob": max(e.logprob, LOWEST), "rank": e.rank, "decoded_token": e.decoded_token}
            for t, e in entry.items()
        }
        for entry in entries
    ]


def token_text(token: int, entry: Logprob, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else entry.decoded_token or ""
