from __future__ import annotations

import random

import pytest

from vjax.engine.repetition import repeats
from vjax.sampling_params import RepetitionDetection


def plainly(tokens: list[int], wanted: RepetitionDetection) -> bool:
    sizes = range(max(wanted.min_pattern_size, 1), wanted.max_pattern_size + 1)
    return any(
        len(tokens) >= size * wanted.min_count
        and tokens[-size * wanted.min_count :] == tokens[-size:] * wanted.min_count
        for size in sizes
    )


def test_as_plainly_written() -> None:
    draw, found = random.Random(0), 0
    for _ in range(2000):
        tokens = [draw.randrange(2) for _ in range(draw.randrange(14))]
        most = draw.randrange(5)
        wanted = RepetitionDetection(
            max_pattern_size=most, min_pattern_size=draw.randint(0, most), min_count=draw.randint(2, 4)
        )
        assert repeats(tokens, wanted) == plainly(tokens, wanted), (tokens, wanted)
        found += repeats(tokens, wanted)
    assert found > 100


@pytest.mark.parametrize(("tokens", "ends"), [([5, 1, 2, 1, 2, 1, 2], True), ([1, 2, 1, 2, 1], False), ([], False)])
def test_a_pattern(tokens: list[int], ends: bool) -> None:
    assert repeats(tokens, RepetitionDetection(max_pattern_size=3, min_pattern_size=2, min_count=3)) is ends
