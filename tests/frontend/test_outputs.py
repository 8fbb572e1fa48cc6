from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.fakes import EOS, LIMITS, byte_tokenizer
from vjax.engine.messages import EngineOutput, TokenLogprobs
from vjax.errors import RequestError
from vjax.frontend.inputs import InputProcessor
from vjax.frontend.outputs import OutputProcessor, merge_outputs
from vjax.outputs import RequestOutput
from vjax.sampling_params import SamplingParams

TOKENIZER = byte_tokenizer()


def start(prompt: Any = "p", tokenizer: Any = TOKENIZER, request_id: str = "r", **params: Any) -> OutputProcessor:
    processor = OutputProcessor(tokenizer)
    options = SamplingParams(**{"max_tokens": 50, **params})
    processor.add(InputProcessor(tokenizer, LIMITS).process(request_id, prompt, options))
    return processor


def feed(
    processor: OutputProcessor, data: bytes | Iterable[int], finish: str | None = "length", **last: Any
) -> tuple[list[RequestOutput], list[str]]:
    """One token a step, the last one with a finish reason; as an engine does, until told to abort."""
    outputs, aborts, ids = [], [], list(data)
    for at, token in enumerate(ids):
        end = at == len(ids) - 1
        news = processor.process(
            [EngineOutput("r", [token], finish_reason=finish if end else None, **(last if end else {}))]
        )
        outputs += news.outputs
        aborts += news.aborts
    return outputs, aborts


def joined(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
def test_output_kinds(kind: Any) -> None:
    outputs, _ = feed(start(output_kind=kind), "aé日🙂".encode())
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    texts = [output.outputs[0].text for output in outputs]
    ids = [output.outputs[0].token_ids for output in outputs]
    if kind == "cumulative":
        assert texts[:3] == ["a", "a", "aé"]
        assert texts[-1] == "aé日🙂"
        assert [len(one) for one in ids] == list(range(1, 11))
    elif kind == "delta":
        assert texts == ["a", "", "é", "", "", "日", "", "", "", "🙂"]
        assert all(len(one) == 1 for one in ids)
    else:
        assert (texts, len(ids[0])) == (["aé日🙂"], 10)
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_half_a_character_at_the_end() -> None:
    outputs, _ = feed(start(output_kind="delta"), "a日".encode()[:-1])
    assert joined(outputs) == "a\ufffd"


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
@pytest.mark.parametrize(
    ("stop", "include", "expected", "reason"),
    [
        (["lo w"], False, "hel", "lo w"),
        (["lo w"], True, "hello w", "lo w"),
        (["o", "ll"], False, "he", "ll"),
        (["ell", "hell"], False, "h", "ell"),  # both appear with the same token: the list decides
        (["hell", "ell"], False, "", "hell"),
        (["h"], False, "", "h"),
        (["h"], True, "h", "h"),
        (["xyz", "worldx"], False, "hello world", None),
    ],
)
def test_stop_strings(kind: Any, stop: list[str], include: bool, expected: str, reason: str | None) -> None:
    processor = start(stop=stop, include_stop_str_in_output=include, output_kind=kind)
    outputs, aborts = feed(processor, b"hello world")
    text = joined(outputs) if kind == "delta" else outputs[-1].outputs[0].text
    last = outputs[-1].outputs[0]
    assert (text, last.stop_reason, last.finish_reason) == (expected, reason, "stop" if reason else "length")
    assert aborts == (["r"] if reason else [])
    assert len(processor) == 0


def test_streaming_holds_back_what_may_become_a_stop_string() -> None:
    outputs, _ = feed(start(stop=["abcd"], output_kind="delta"), b"xyabcz")
    assert [output.outputs[0].text for output in outputs] == ["", "", "", "x", "y", "abcz"]
    outputs, _ = feed(start(stop=["abcd"], output_kind="cumulative"), b"xyabcz")
    assert [output.outputs[0].text for output in outputs] == ["", "", "", "x", "xy", "xyabcz"]


def test_text_under_min_tokens_is_not_searched() -> None:
    outputs, _ = feed(start(stop=["a"], min_tokens=3, output_kind="final_only"), b"abcbab")
    assert outputs[0].outputs[0].text == "abcb"
    straddling, _ = feed(start(stop=["bcd"], min_tokens=3, output_kind="final_only"), b"abcde")
    assert straddling[0].outputs[0].text == "a"


@given(
    st.text("ab", min_size=1, max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 4),
)
def test_stop_strings_by_the_rule(text: str, stop: list[str], include: bool, min_tokens: int) -> None:
    """Against the plain reading: after each token search all the text, for matches that end in it."""
    expected = text
    for length in range(min_tokens + 1, len(text) + 1):
        found = next((one for one in stop if text[:length].endswith(one)), None)
        if found is not None:
            expected = text[:length] if include else text[: length - len(found)]
            break
    options = dict(stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens)
    outputs, _ = feed(start(**options, output_kind="delta"), text.encode())
    whole, _ = feed(start(**options, output_kind="final_only"), text.encode())
    assert joined(outputs) == whole[-1].outputs[0].text == expected


def test_tokens_behind_a_stop_string_are_dropped() -> None:
    processor = start(stop=["b"], logprobs=0, output_kind="final_only")
    rows = [TokenLogprobs(token, -1.0, 1, [], []) for token in b"abc"]
    news = processor.process([EngineOutput("r", list(b"abc"), new_logprobs=rows)])
    [output] = news.outputs[0].outputs
    assert (output.text, output.token_ids, output.cumulative_logprob, news.aborts) == ("a", [97, 98], -2.0, ["r"])
    assert len(output.logprobs or []) == 2


@pytest.mark.parametrize(("include", "expected"), [(False, "ab"), (True, "abc")])
def test_a_stop_tokens_text(include: bool, expected: str) -> None:
    outputs, _ = feed(start(include_stop_str_in_output=include), b"abc", "stop", stop_reason=99)
    last = outputs[-1].outputs[0]
    assert (last.text, last.token_ids, last.stop_reason) == (expected, [97, 98, 99], 99)


def test_end_of_text() -> None:
    outputs, _ = feed(start(), [97, EOS], "stop")
    last = outputs[-1].outputs[0]
    assert (last.text, last.token_ids, last.finish_reason, last.stop_reason) == ("a", [97, EOS], "stop", None)
    outputs, _ = feed(start(skip_special_tokens=False, ignore_eos=True), [97, EOS, 98])
    assert outputs[-1].outputs[0].text == "a<eos>b"


def test_logprobs() -> None:
    processor = start(logprobs=2, output_kind="final_only")
    euro = "€".encode()
    rows = [
        TokenLogprobs(euro[0], -0.5, 7, [97, 98, 99], [-0.1, -0.2, -0.3]),
        TokenLogprobs(euro[1], -0.25, 2, [97, euro[1], 99], [-0.1, -0.25, -0.3]),
        TokenLogprobs(euro[2], -0.25, 1, [euro[2], 97], [-0.25, -0.3]),
    ]
    for at, row in enumerate(rows):
        news = processor.process(
            [EngineOutput("r", [row.token_id], new_logprobs=[row], finish_reason="length" if at == 2 else None)]
        )
    [output] = news.outputs[0].outputs
    assert output.cumulative_logprob == -1.0
    assert output.logprobs is not None
    first, second, third = output.logprobs
    assert [(token, one.rank, one.decoded_token) for token, one in first.items()] == [
        (euro[0], 7, ""), (97, 1, "a"), (98, 2, "b"),
    ]  # fmt: skip
    assert list(second) == [euro[1], 97]
    assert second[euro[1]].rank == 2
    assert [one.decoded_token for one in third.values()] == ["€", "a"]


def test_prompt_logprobs_arrive_over_several_outputs_and_are_told_once() -> None:
    processor = start("abc", prompt_logprobs=0, output_kind="delta")
    rows = [TokenLogprobs(token, -1.0, 3, [1], [-0.5]) for token in b"bc"]
    assert processor.process([EngineOutput("r", [], prompt_logprobs=rows[:1])]).outputs == []
    [first] = processor.process([EngineOutput("r", [100], prompt_logprobs=rows[1:])]).outputs
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert [list(one) for one in first.prompt_logprobs[1:] if one is not None] == [[98], [99]]
    [second] = processor.process([EngineOutput("r", [100])]).outputs
    assert second.prompt_logprobs is None


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
def test_n_continuations_in_one_output(kind: Any) -> None:
    processor = start(n=2, output_kind=kind)
    steps = [
        [EngineOutput("r_1", [98]), EngineOutput("r_0", [97])],
        [EngineOutput("r_1", [99], finish_reason="length")],
        [EngineOutput("r_0", [100], finish_reason="stop", stop_reason=100)],
    ]
    outputs = [output for step in steps for output in processor.process(step).outputs]
    assert [output.finished for output in outputs] == ([True] if kind == "final_only" else [False, False, True])
    indices = [[one.index for one in output.outputs] for output in outputs]
    assert indices == {
        "cumulative": [[0, 1], [0, 1], [0, 1]], "delta": [[0, 1], [1], [0]], "final_only": [[0, 1]],
    }[kind]  # fmt: skip
    if kind != "delta":
        assert [one.text for one in outputs[-1].outputs] == ["a", "bc"]
        assert [one.finish_reason for one in outputs[-1].outputs] == ["stop", "length"]


def test_one_childs_failure_ends_its_request_only() -> None:
    processor = start(n=2)
    other = InputProcessor(TOKENIZER, LIMITS).process("other", "p", SamplingParams())
    processor.add(other)
    news = processor.process(
        [
            EngineOutput("r_0", [97]),
            EngineOutput("r_1", [], finish_reason="error", error="no luck"),
            EngineOutput("other", [97]),
        ]
    )
    assert news.errors == {"r": "no luck"}
    assert news.aborts == ["r_0"]
    ends = {output.request_id: [one.finish_reason for one in output.outputs] for output in news.outputs}
    assert ends == {"r": ["error", "error"], "other": [None]}
    assert len(processor) == 1


def test_abort_gives_what_there_is_and_later_news_is_dropped() -> None:
    processor = start(stop=["xyz"], output_kind="delta")
    feed(processor, b"abx", finish=None)
    engine_ids, last = processor.abort("r")
    assert engine_ids == ["r"]
    assert last is not None
    assert (last.finished, last.outputs[0].text, last.outputs[0].finish_reason) == (True, "bx", "abort")
    assert processor.process([EngineOutput("r", [97])]).outputs == []
    assert processor.abort("r") == ([], None)


def test_an_id_in_use_is_refused() -> None:
    processor = start(request_id="r_1")
    with pytest.raises(RequestError, match="in use"):
        processor.add(InputProcessor(TOKENIZER, LIMITS).process("r", "p", SamplingParams(n=2)))
    assert len(processor) == 1


def test_without_detokenising() -> None:
    for processor in (start(detokenize=False, logprobs=0), start([1], tokenizer=None, logprobs=0)):
        row = TokenLogprobs(97, -1.0, 1, [], [])
        [output] = processor.process([EngineOutput("r", [97], new_logprobs=[row])]).outputs
        assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [97])
        assert output.outputs[0].logprobs is not None
        assert output.outputs[0].logprobs[0][97].decoded_token is None


def test_metrics() -> None:
    processor = start()
    processor.process([EngineOutput("r", [1], scheduled_time=5.0, num_cached_tokens=4)])
    [output] = processor.process(
        [EngineOutput("r", [1], scheduled_time=9.0, num_preemptions=1, finish_reason="length")]
    ).outputs
    metrics = output.metrics
    assert (metrics.scheduled_time, metrics.num_preemptions, output.num_cached_tokens) == (5.0, 1, 4)
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time


def test_merged_deltas_equal_the_whole() -> None:
    deltas, _ = feed(start(output_kind="delta", stop=["zzz"]), "héllo".encode())
    merged = deltas[0]
    for output in deltas[1:]:
        merged = merge_outputs(merged, output, delta=True)
    [whole], _ = feed(start(output_kind="final_only", stop=["zzz"]), "héllo".encode())
    assert merged.finished
    assert merged.outputs == whole.outputs
