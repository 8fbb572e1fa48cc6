"""One streamed request over HTTP, and when each part of its answer came."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from vjax.benchmarks.workload import Ask

CHAT = "/chat/completions"


@dataclass(slots=True)
class Timing:
    """Seconds since the request was sent. `gaps`: between two pieces of text. `error`: why it does not count."""

    started: float = 0.0  # time.perf_counter()
    first: float | None = None
    total: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def per_token(self) -> float | None:
        """Mean seconds a token after the first."""
        if self.first is None or self.output_tokens < 2:
            return None
        return (self.total - self.first) / (self.output_tokens - 1)


def body_of(ask: Ask, model: str, chat: bool, extra: dict[str, Any]) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": ask.prompt}]} if chat else {"prompt": ask.prompt}
    return {
        "model": model, **prompt, "max_tokens": ask.output_tokens, "stream": True,
        "stream_options": {"include_usage": True}, **extra,
    }  # fmt: skip


async def stream(http: httpx.AsyncClient, endpoint: str, body: dict[str, Any], ask: Ask) -> Timing:
    """Raises nothing: what goes wrong is in `error`."""
    timing = Timing(started=time.perf_counter(), prompt_tokens=ask.prompt_tokens or 0)
    try:
        async with http.stream("POST", endpoint, json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                timing.error = f"status {response.status_code}: {text[:300]}"
                return timing
            await _read(response, timing, chat=endpoint.endswith(CHAT))
    except (httpx.HTTPError, ValueError) as error:
        timing.error = f"{type(error).__name__}: {error}"[:300]
    if timing.error is None and timing.first is None:
        timing.error = "the answer was empty."
    return timing


async def _read(response: httpx.Response, timing: Timing, chat: bool) -> None:
    pieces, last = 0, timing.started
    async for line in response.aiter_lines():
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        now = time.perf_counter()
        event = json.loads(line[5:])
        if "error" in event:
            timing.error = str(event["error"])[:300]
            return
        if usage := event.get("usage"):
            timing.prompt_tokens, timing.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        choice = (event.get("choices") or [{}])[0]
        delta = choice.get("delta", {}) if chat else choice
        if not event.get("choices") or ("role" in delta and not delta.get("content")):
            continue  # usage alone, or a chat's opening
        if timing.first is None:
            timing.first = now - timing.started
        else:
            timing.gaps.append(now - last)
        last, pieces = now, pieces + 1
        timing.total = now - timing.started
    timing.output_tokens = timing.output_tokens or pieces
