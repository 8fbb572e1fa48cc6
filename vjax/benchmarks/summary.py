"""Means and percentiles, and the report that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vjax.benchmarks.client import Timing
from vjax.errors import ModelError

NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}


def distribution(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """`mean`, `std`, `min`, `max` and `p50`, ...; zeros for nothing."""
    import numpy as np

    data = np.asarray(values if len(values) else [0.0], np.float64)
    found = {"mean": data.mean(), "std": data.std(), "min": data.min(), "max": data.max()}
    found |= {f"p{p:g}": np.percentile(data, p) for p in percentiles}
    return {name: float(value) for name, value in found.items()}


def parse_percentiles(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= p <= 100 for p in found):
        raise ModelError(f"--metric-percentiles must look like 50,90,99, got {text!r}.")
    return found


def parse_goodput(words: Sequence[str]) -> dict[str, float]:
    """Milliseconds by metric, of words such as `ttft:500`."""
    goals: dict[str, float] = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            if name not in ("ttft", "tpot", "e2el"):
                raise ValueError
            goals[name] = float(limit)
        except ValueError:
            raise ModelError(
                f"--goodput takes ttft, tpot or e2el with milliseconds, as ttft:500; got {word!r}."
            ) from None
    return goals


def milliseconds(timings: Sequence[Timing]) -> dict[str, list[float]]:
    """Each metric's values over the requests that succeeded."""
    return {
        "ttft": [1e3 * t.first for t in timings if t.first is not None],
        "tpot": [1e3 * t.per_token for t in timings if t.per_token is not None],
        "itl": [1e3 * gap for t in timings for gap in t.gaps],
        "e2el": [1e3 * t.total for t in timings],
    }


def meets(timing: Timing, goals: dict[str, float]) -> bool:
    values = {"ttft": timing.first, "tpot": timing.per_token or 0.0, "e2el": timing.total}
    return all(1e3 * (values[name] or 0.0) <= limit for name, limit in goals.items())


def report(
    timings: Sequence[Timing], seconds: float, percentiles: Sequence[float], goals: dict[str, float]
) -> dict[str, Any]:
    """What the requests amount to, as JSON. Times are milliseconds, rates are per second."""
    good = [t for t in timings if t.error is None]
    prompt, output = sum(t.prompt_tokens for t in good), sum(t.output_tokens for t in good)
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(timings) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / seconds,
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        "max_concurrent_requests": peak(good),
        "errors": sorted({t.error for t in timings if t.error is not None})[:10],
    }
    if goals:
        found["request_goodput"] = sum(meets(t, goals) for t in good) / seconds
        found["goodput_goals_ms"] = goals
    for name, values in milliseconds(good).items():
        found[f"{name}_ms"] = distribution(values, percentiles)
    return found


def peak(timings: Sequence[Timing]) -> int:
    """Most requests open at the same moment."""
    moments = sorted([(t.started, 1) for t in timings] + [(t.started + t.total, -1) for t in timings])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def lines(found: dict[str, Any], shown: Sequence[str]) -> list[str]:
    """The report for people."""
    rows = [
        f"requests      {found['completed']} in {found['duration']:.2f} s, {found['failed']} failed, "
        f"{found['request_throughput']:.2f}/s, at most {found['max_concurrent_requests']} at once",
        f"tokens        {found['total_input_tokens']} in, {found['total_output_tokens']} out; "
        f"{found['output_throughput']:.1f} out/s, {found['total_token_throughput']:.1f} together/s",
    ]
    if "request_goodput" in found:
        rows.append(f"goodput       {found['request_goodput']:.2f}/s meet {found['goodput_goals_ms']} ms")
    for name in shown:
        values = found[f"{name}_ms"]
        parts = [f"{key} {value:.2f}" for key, value in values.items() if key == "mean" or key.startswith("p")]
        rows.append(f"{name.upper():13} {', '.join(parts)} ms ({NAMES[name]})")
    return rows + [f"error         {error}" for error in found["errors"]]
