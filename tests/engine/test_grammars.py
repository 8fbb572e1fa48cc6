"""Rows with a grammar beside rows without, on one tiny model whose tokens stand for characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.driver import Driver
from tests.engine.test_engine import CASE, OPTIONS
from tests.frontend.fakes import byte_tokenizer
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.engine.grammar import Grammar
from vjax.engine.messages import EngineOutput, EngineRequest, Vocabulary
from vjax.engine.scheduler import Scheduler
from vjax.errors import RequestError
from vjax.sampling_params import SamplingParams
from vjax.structured_outputs import StructuredOutputsParams

EOS, OTHER_EOS = 1, 2
CHARS, FIRST = 'abcdefghijklmnopqrstuvwxyz0123456789{}":,-! ', 10
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def vocabulary(size: int) -> Vocabulary:
    """Most tokens are characters, some are nothing."""
    tokens = [b""] * size
    for at, char in enumerate(CHARS):
        tokens[FIRST + at] = char.encode()
    tokens[3], tokens[4], tokens[5] = b'{"', b'": ', b"<call>"
    tokens[EOS], tokens[OTHER_EOS] = b"<eos>", b"<stop>"
    return Vocabulary(tokens, [EOS, OTHER_EOS, 5], [EOS, OTHER_EOS], byte_tokenizer().backend.to_str())


def token(char: str) -> int:
    return FIRST + CHARS.index(char)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder: Path = checkpoint(CASE, tmp_path_factory.mktemp("grammars"))
    driver = Driver(EngineConfig(model=str(folder), **OPTIONS), few_graphs=True)
    driver.engine.teach(vocabulary(driver.engine.limits.vocab_size))
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return [int(token) for token in load_case(CASE).tokens[0, :13]]


def constrained(driver: Driver, prompt: list[int], spec: dict[str, Any], **options: Any) -> str:
    """The id of a new request."""
    params = SamplingParams(**{"temperature": 0, "max_tokens": 40, **options}, structured_outputs=spec)
    return driver.add(prompt, params, eos_token_ids=[EOS, OTHER_EOS])


def text_of(driver: Driver, outputs: list[EngineOutput]) -> str:
    tokens = vocabulary(driver.engine.limits.vocab_size).tokens
    ids = [id for output in outputs for id in output.new_token_ids]
    return b"".join(b"" if id in (EOS, OTHER_EOS) else tokens[id] for id in ids).decode()


def one(driver: Driver, prompt: list[int], spec: dict[str, Any], **options: Any) -> tuple[str, str | None]:
    request_id = constrained(driver, prompt, spec, **options)
    outputs = driver.run()[request_id]
    return text_of(driver, outputs), outputs[-1].finish_reason


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 3, "repetition_penalty": 1.3, "top_p": 0.9}])
def test_every_kind(driver: Driver, prompt: list[int], options: dict[str, Any]) -> None:
    compact = {"disable_any_whitespace": True}
    text, reason = one(driver, prompt, {"json": SCHEMA, **compact}, **options)
    assert reason == "stop"
    found = json.loads(text)
    assert set(found) == {"a", "b"}
    assert 0 <= found["a"] <= 99
    assert found["b"] in ("x", "yy")
    assert re.fullmatch(r"[a-c]{2}-\d", one(driver, prompt, {"regex": r"^[a-c]{2}-\d$"}, **options)[0])
    assert one(driver, prompt, {"choice": ["yes", "no", "yes, but"]}, **options)[0] in ("yes", "no", "yes, but")
    for grammar in ('start: "q" /[0-9]/ "r"\n', 'root ::= "q" [0-9] "r"\n'):
        assert re.fullmatch(r"q\dr", one(driver, prompt, {"grammar": grammar}, **options)[0])
    part = {"type": "tag", "begin": "<call>f", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "!"}
    text, _ = one(driver, prompt, {"structural_tag": {"format": part}, **compact}, **options)
    assert text.startswith("<call>f")
    assert text.endswith("!")
    json.loads(text[7:-1])
    text, _ = one(driver, prompt, {"json_object": True, **compact}, **options)
    assert text.startswith("{")  # 40 tokens may be too few to end it


def test_neighbours_keep_their_tokens(driver: Driver, prompt: list[int]) -> None:
    plain = SamplingParams(temperature=1.0, seed=5, max_tokens=20, ignore_eos=True, logprobs=2)
    alone = driver.tokens([prompt], plain)
    requests = [driver.add(prompt, plain)]
    forms = [constrained(driver, prompt[:at], {"regex": "[ab]{12}"}, temperature=1.0, seed=at) for at in (5, 9)]
    found = driver.run()
    assert [[id for output in found[i] for id in output.new_token_ids] for i in requests] == alone
    together = [text_of(driver, found[i]) for i in forms]
    assert all(re.fullmatch("[ab]{12}", text) for text in together)
    again = [one(driver, prompt[:at], {"regex": "[ab]{12}"}, temperature=1.0, seed=at)[0] for at in (5, 9)]
    assert together == again
    # One token a step, as without a grammar: no row waits until the host has read its last token.
    before = driver.engine.stats().steps
    one(driver, prompt, {"regex": "[ab]{12}"})
    assert driver.engine.stats().steps - before <= 14


def test_the_end_comes_where_the_grammar_allows_it(driver: Driver, prompt: list[int]) -> None:
    bias = {"logit_bias": {EOS: 100}}
    assert one(driver, prompt, {"regex": "a{3}b*"}, **bias) == ("aaa", "stop")
    assert one(driver, prompt, {"regex": "a{3}b*"}, logit_bias={OTHER_EOS: 100}) == ("aaa", "stop")
    assert one(driver, prompt, {"regex": "a{3}b*"}, **bias, min_tokens=5) == ("aaabb", "stop")
    assert one(driver, prompt, {"regex": "a{3}b*"}, **bias, ignore_eos=True, max_tokens=6) == ("aaabbb", "length")
    # What must end does, whatever else is asked.
    assert one(driver, prompt, {"regex": "ab"}, min_tokens=9) == ("ab", "stop")
    assert one(driver, prompt, {"regex": "ab"}, ignore_eos=True) == ("ab", "stop")
    assert one(driver, prompt, {"regex": "ab"}, max_tokens=2) == ("ab", "stop")
    assert one(driver, prompt, {"regex": "ab"}, allowed_token_ids=[token("z")]) == ("ab", "stop")
    assert one(driver, prompt, {"regex": "ab*"}, stop_token_ids=[token("b")], logit_bias={token("b"): 100}) == (
        "ab",
        "stop",
    )


def test_logprobs_are_those_of_what_the_grammar_allows(driver: Driver, prompt: list[int]) -> None:
    request_id = constrained(driver, prompt, {"regex": "[xyz]q"}, logprobs=3)
    rows = [row for output in driver.run()[request_id] for row in output.new_logprobs or []]
    assert set(rows[0].top_ids) == {token("x"), token("y"), token("z")}
    assert rows[0].rank == 1
    assert rows[1].logprob == pytest.approx(0, abs=1e-5)


def test_a_preempted_request_goes_on_in_its_grammar(driver: Driver, prompt: list[int]) -> None:
    specs = [{"regex": "[ab]{24}"}, {"regex": "[cd]{24}"}]
    alone = [one(driver, prompt, spec)[0] for spec in specs]
    with driver.few_pages(44):
        ids = [constrained(driver, prompt, spec) for spec in specs]
        found = driver.run()
    assert [text_of(driver, found[i]) for i in ids] == alone
    assert max(output.num_preemptions for i in ids for output in found[i]) > 0


def test_aborted_and_without_overlap(driver: Driver, prompt: list[int]) -> None:
    gone = constrained(driver, prompt, {"regex": "[ab]{30}"})
    for _ in range(4):
        driver.engine.step()
    driver.engine.abort([gone])
    unready = constrained(driver, prompt, {"regex": "[ab]{31}"})
    driver.engine.abort([unready])
    driver.run()
    assert not driver.engine.has_work
    text = one(driver, prompt, {"regex": "[ab]{9}"})
    config = driver.engine.config
    object.__setattr__(config, "overlap", False)
    try:
        assert one(driver, prompt, {"regex": "[ab]{9}"}) == text
    finally:
        object.__setattr__(config, "overlap", True)


def test_what_cannot_be_compiled_is_told(driver: Driver, prompt: list[int]) -> None:
    request_id = constrained(driver, prompt, {"regex": "("})
    [output] = driver.run()[request_id]
    assert output.finish_reason == "error"
    assert output.error
    assert "structured_outputs.regex" in output.error
    # Nor does a text end where its grammar does not: here no token can go on.
    request_id = constrained(driver, prompt, {"regex": "aZ"})
    last = driver.run()[request_id][-1]
    assert (last.finish_reason, last.error) == ("error", "no token of the vocabulary continues the grammar.")


class Slow:
    """A grammar that is compiled when the test says so."""

    matcher, ready, ignore_eos, error = None, False, False, None

    def start(self) -> bool:
        return self.ready

    def accept(self, token: int) -> bool:
        return False


def test_a_request_keeps_its_place_while_its_grammar_is_compiled() -> None:
    scheduler = Scheduler(num_pages=9, page_size=4, num_slots=1, max_num_batched_tokens=8, max_model_len=16)
    slow = Slow()
    message = lambda name: EngineRequest(name, [1, 2, 3], SamplingParams(max_tokens=1))
    scheduler.add(message("slow"), slow)  # type: ignore[arg-type]
    scheduler.add(message("next"))
    scheduler.add(message("last"))
    plan = scheduler.plan()
    assert plan is not None
    assert [row.request.request_id for row in plan.rows] == ["next"]  # nobody waits for it
    assert scheduler.stats().waiting == 2
    slow.ready = True
    scheduler.update(plan, [7])
    plan = scheduler.plan()
    assert plan is not None
    assert [row.request.request_id for row in plan.rows] == ["slow"]


def test_a_graph_that_a_step_compiled_itself_is_not_waited_for() -> None:
    """Such a step takes it out of the queue, which cancels the future that a request with a grammar waits for."""
    compiled: Future[Any] = Future()
    compiled.set_result(SimpleNamespace(deep_copy=lambda: "matcher"))
    taken: Future[Any] = Future()
    taken.cancel()
    grammar = Grammar(compiled, [taken])
    assert grammar.start()
    assert grammar.matcher == "matcher"


def test_without_a_vocabulary(prompt: list[int], driver: Driver) -> None:
    engine, compiler = driver.engine, driver.engine._compiler
    engine._compiler = None
    try:
        with pytest.raises(RequestError, match="vocabulary"):
            constrained(driver, prompt, {"regex": "a"})
    finally:
        engine._compiler = compiler


def test_parameters_are_checked() -> None:
    for bad, param in [
        ({}, "structured_outputs"),
        ({"regex": "a", "json": {}}, "structured_outputs"),
        ({"regexp": "a"}, "structured_outputs.regexp"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": [1]}, "structured_outputs.choice"),
        ({"regex": 3}, "structured_outputs.regex"),
        ({"regex": "a\0"}, "structured_outputs.regex"),
        ({"regex": "\ud800"}, "structured_outputs.regex"),
        ({"json": {"a": float("nan")}}, "structured_outputs.json"),
        ({"grammar": "a" * 200_000}, "structured_outputs.grammar"),
        ({"json_object": 1}, "structured_outputs.json_object"),
        ([], "structured_outputs"),
    ]:
        with pytest.raises(RequestError) as caught:
            SamplingParams(structured_outputs=bad)
        assert caught.value.param == param
    assert hash(StructuredOutputsParams.for_schema({"a": 1})) == hash(StructuredOutputsParams(json='{"a": 1}'))
