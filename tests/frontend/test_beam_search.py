"""Beam search against an exhaustive search over a small vocabulary."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tests.frontend.fakes import EOS, FakeEngine, byte_tokenizer
from vjax import LLM, BeamSearchParams
from vjax.config import EngineConfig
from vjax.errors import RequestError
from vjax.frontend.beam_search import Beams
from vjax.frontend.files import FrontendFiles
from vjax.outputs import Logprob, LogprobDict

END = 3


def distribution(tokens: tuple[int, ...]) -> list[float]:
    """Logprobs of four tokens, any but always the same after `tokens`."""
    weights = [random.Random(repr((tokens, token))).random() + 0.05 for token in range(4)]
    return [math.log(weight / sum(weights)) for weight in weights]


def search(params: BeamSearchParams) -> Beams:
    beams = Beams([0, 1], params, [END])
    while beams.live:
        rows: list[LogprobDict] = []
        for beam in beams.live:
            ranked = sorted(enumerate(distribution(tuple(beam.tokens))), key=lambda pair: -pair[1])
            rows.append({token: Logprob(value) for token, value in ranked[: 2 * params.beam_width]})
        beams.advance(rows)
    return beams


def exhaustive(steps: int, penalty: float, ignore_eos: bool) -> list[tuple[float, list[int]]]:
    found = []
    for length in range(1, steps + 1):
        for output in itertools.product(range(4), repeat=length):
            ends = END in output and not ignore_eos
            if (ends and output.index(END) != length - 1) or (not ends and length != steps):
                continue
            total = sum(distribution((0, 1, *output[:at]))[token] for at, token in enumerate(output))
            scored = 2 + length - (output[-1] == END)
            found.append((total / scored**penalty, [0, 1, *output]))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [1.0, 0.0, -1.0, 2.0])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_wide_search_is_exact(penalty: float, ignore_eos: bool) -> None:
    params = BeamSearchParams(beam_width=256, max_tokens=4, length_penalty=penalty, ignore_eos=ignore_eos)
    wanted = exhaustive(4, penalty, ignore_eos)[:256]
    beams = search(params)
    found = beams.best()
    assert [one.tokens for one in found[:20]] == [tokens for _, tokens in wanted[:20]]
    assert all((one.finish_reason == "stop") == (one.tokens[-1] == END and not ignore_eos) for one in found)


@pytest.mark.parametrize("penalty", [1.0, 0.0, -1.0, 2.0])
def test_stopping_early_changes_nothing(penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=12, length_penalty=penalty)
    early = search(params)
    monkeypatch.setattr(Beams, "_settled", lambda self: not self.live)
    late = search(params)
    assert [one.tokens for one in early.best()] == [one.tokens for one in late.best()]


def test_offline() -> None:
    llm = LLM.from_engine(FakeEngine(EngineConfig()), FrontendFiles(byte_tokenizer()))
    first, second = llm.beam_search(["abc", [97]], BeamSearchParams(beam_width=2, max_tokens=2))
    # The fake gives -0.25 to the letter after the one it says, and -0.5 to that.
    assert [(one.text, one.cum_logprob) for one in first.sequences] == [("cc", -0.5), ("bc", -0.75)] or [
        one.cum_logprob for one in first.sequences
    ] == [-0.5, -0.75]
    assert first.sequences[0].finish_reason == "length"
    assert len(first.sequences[0].logprobs) == 2
    assert second.sequences[0].tokens[:1] == [97]
    (long,) = llm.beam_search("x" * 62, BeamSearchParams(beam_width=1, max_tokens=9))
    assert len(long.sequences[0].tokens) == 64  # the context
    (ended,) = llm.beam_search([EOS - 2], BeamSearchParams(beam_width=1, max_tokens=9))
    assert ended.sequences[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("values", "param"),
    [({"beam_width": 0}, "beam_width"), ({"beam_width": 3}, "beam_width"), ({"max_tokens": 0}, "max_tokens"),
     ({"length_penalty": math.nan}, "length_penalty")],
)  # fmt: skip
def test_bad_values(values: dict[str, float], param: str) -> None:
    llm = LLM.from_engine(FakeEngine(EngineConfig()), FrontendFiles(byte_tokenizer()))
    with pytest.raises(RequestError) as caught:
        llm.beam_search("abc", BeamSearchParams(**{"beam_width": 2, "max_tokens": 3, **values}))  # type: ignore[arg-type]
    assert caught.value.param == param
