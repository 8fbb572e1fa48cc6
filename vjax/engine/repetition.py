"""Whether a request goes round in circles."""

from __future__ import annotations

from collections.abc import Sequence

from vjax.sampling_params import RepetitionDetection


def repeats(tokens: Sequence[int], wanted: RepetitionDetection) -> bool:
    """Whether `tokens` end in one pattern, `min_count` times in a row or more. Most sizes are ruled out by the first
    comparison."""
    for size in range(max(wanted.min_pattern_size, 1), wanted.max_pattern_size + 1):
        span = size * wanted.min_count
        if span > len(tokens):
            return False
        end = len(tokens) - 1
        if all(tokens[end - at] == tokens[end - at - size] for at in range(span - size)):
            return True
    return False
