"""What an answer tells beside its text: how long it took, and what computed it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from vjax.outputs import CompletionOutput, RequestMetrics, RequestOutput
from vjax.version import __version__

if TYPE_CHECKING:
    from vjax.serving.service import Service


def timings(times: RequestMetrics, tokens: int) -> dict[str, float | None]:
    """Milliseconds, and tokens a second from the first token to the last; None for what did not happen."""
    first, end = times.first_token_time, times.finished_time
    decode = None if first is None or end is None else end - first
    gap = None if decode is None or tokens < 2 else decode / (tokens - 1)
    return {
        "time_to_first_token_ms": _ms(times.arrival_time, first),
        "generation_time_ms": None if decode is None else round(decode * 1e3, 3),
        "queue_time_ms": _ms(times.arrival_time, times.scheduled_time),
        "mean_itl_ms": None if gap is None else round(gap * 1e3, 3),
        "tokens_per_second": None if not gap else round(1 / gap, 3),
    }


def fingerprint(service: Service) -> str:
    """What a seed's tokens depend on: version, model, dtype, options. `hash` shows none of it."""
    limits, config = service.llm.limits, service.llm.config
    parts = [__version__, limits.architecture, limits.dtype, f"tp{config.tensor_parallel_size}"]
    options = msgspec.json.encode([*parts, service.names[0], config], enc_hook=str)
    digest = hashlib.sha256(options).hexdigest()[:12]
    if service.options.fingerprint_mode == "hash":
        return f"fp_{digest}"
    return "-".join(["vjax", *(part for part in parts if part), digest])


def keep_best(output: RequestOutput, n: int) -> None:
    """Keep the `n` continuations whose tokens are the likeliest on average, the best first."""

    def mean(one: CompletionOutput) -> float:
        return (one.cumulative_logprob or 0.0) / max(len(one.token_ids), 1)

    output.outputs = sorted(output.outputs, key=mean, reverse=True)[:n]
    for index, one in enumerate(output.outputs):
        one.index = index


def _ms(start: float, end: float | None) -> float | None:
    return None if end is None else round(max(end - start, 0.0) * 1e3, 3)
