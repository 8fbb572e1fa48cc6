"""What requests may ask of the engine, on one tiny model; the plain pass (`model.apply`) is the judge."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vjax
from tests.engine.driver import Driver
from tests.goldens import checkpoint, load_case
from vjax.config import EngineConfig
from vjax.engine.messages import EngineOutput, TokenLogprobs
from vjax.engine.state import StateShape, abstract_state
from vjax.engine.step import lower
from vjax.models.model import Model
from vjax.parallel.mesh import replicated
from vjax.sampling_params import SamplingParams

CASE = "llama-gqa"
OPTIONS: dict[str, Any] = dict(
    max_num_seqs=4, max_num_batched_tokens=16, block_size=4, max_model_len=64, warmup="lazy", use_tqdm_on_load=False,
    max_logprobs=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(CASE, tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[Driver]:
    driver = Driver(EngineConfig(model=str(folder), **OPTIONS))
    yield driver
    driver.close()


class Judge:
    """Logits of the plain pass, padded to one length so that it is compiled once."""

    def __init__(self, model: Model, params: Any) -> None:
        self.apply, self.params = jax.jit(model.apply), params

    def log_probs(self, tokens: list[int]) -> np.ndarray:
        padded = jnp.asarray([tokens + [0] * (64 - len(tokens))])
        return np.asarray(jax.nn.log_softmax(self.apply(self.params, padded)[0, : len(tokens)], axis=-1))


@pytest.fixture(scope="module")
def judge(folder: Path) -> Judge:
    return Judge(*vjax.load(folder, use_tqdm_on_load=False))


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return [int(t) for t in load_case(CASE).tokens[0, :13]]


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **options})


def one(driver: Driver, prompt: list[int], params: SamplingParams, **fields: Any) -> list[EngineOutput]:
    request_id = driver.add(prompt, params, **fields)
    return driver.run()[request_id]


def ids(outputs: list[EngineOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def test_a_seed_gives_the_same_tokens_whatever_else_runs(driver: Driver, prompt: list[int]) -> None:
    params = SamplingParams(temperature=1.5, top_p=0.9, seed=7, max_tokens=12, ignore_eos=True)
    alone = driver.tokens([prompt], params)[0]
    ids_ = [driver.add(prompt[:n], SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True)) for n in (3, 5, 7)]
    mine = driver.add(prompt, params)
    found = driver.run()
    assert [t for o in found[mine] for t in o.new_token_ids] == alone
    assert len(ids_) == 3
    assert driver.tokens([prompt], params.clone(seed=8))[0] != alone


def test_seedless_requests_differ(driver: Driver, prompt: list[int]) -> None:
    params = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True)
    assert len({tuple(tokens) for tokens in driver.tokens([prompt] * 3, params)}) == 3


def test_logprobs_are_those_of_the_plain_pass(driver: Driver, judge: Judge, prompt: list[int]) -> None:
    outputs = one(driver, prompt, greedy(logprobs=3))
    tokens = ids(outputs)
    expected = judge.log_probs(prompt + tokens)
    entries = [entry for output in outputs for entry in output.new_logprobs or []]
    assert len(entries) == len(tokens)
    for i, entry in enumerate(entries):
        row = expected[len(prompt) + i - 1]
        assert entry.token_id == tokens[i]
        check_entry(entry, row, 3)
        assert entry.rank == 1


def check_entry(entry: TokenLogprobs, row: np.ndarray, k: int) -> None:
    assert entry.logprob == pytest.approx(row[entry.token_id], abs=1e-4)
    assert entry.rank == 1 + (row > row[entry.token_id]).sum()
    assert entry.top_ids == np.argsort(-row)[:k].tolist()
    np.testing.assert_allclose(entry.top_logprobs, -np.sort(-row)[:k], atol=1e-4)


@pytest.mark.parametrize("chunk", [16, 5])
def test_prompt_logprobs(driver: Driver, judge: Judge, prompt: list[int], chunk: int) -> None:
    driver.chunk(chunk)
    outputs = one(driver, prompt, greedy(prompt_logprobs=2, max_tokens=2))
    entries = [entry for output in outputs for entry in output.prompt_logprobs or []]
    assert [entry.token_id for entry in entries] == prompt[1:]
    expected = judge.log_probs(prompt)
    for i, entry in enumerate(entries):
        check_entry(entry, expected[i], 2)
    driver.chunk(16)


def test_logit_bias_forces_and_bans(driver: Driver, prompt: list[int]) -> None:
    assert ids(one(driver, prompt, greedy(logit_bias={9: 100.0}))) == [9] * 8
    free = ids(one(driver, prompt, greedy()))
    assert free[0] not in ids(one(driver, prompt, greedy(logit_bias={free[0]: -100.0})))


def test_allowed_token_ids(driver: Driver, prompt: list[int]) -> None:
    assert set(ids(one(driver, prompt, greedy(allowed_token_ids=[5, 6, 7])))) <= {5, 6, 7}
    assert ids(one(driver, prompt, greedy(allowed_token_ids=[5]))) == [5] * 8


def test_more_edits_than_a_graph_has_room_for(driver: Driver, prompt: list[int], judge: Judge) -> None:
    vocab = judge.log_probs(prompt).shape[1]
    allowed = list(range(3, vocab))  # more entries than the smallest graph takes
    expected = ids(one(driver, prompt, greedy(allowed_token_ids=[t for t in range(vocab) if t > 2])))
    assert ids(one(driver, prompt, greedy(allowed_token_ids=allowed))) == expected
    assert len(allowed) > 64


def test_bad_words_of_several_tokens(driver: Driver, prompt: list[int]) -> None:
    free = ids(one(driver, prompt, greedy()))
    for length in (1, 2, 3):
        word = free[2 : 2 + length]
        got = ids(one(driver, prompt, greedy(bad_words=["x"]), bad_word_ids=[word]))
        assert not any(got[i : i + length] == word for i in range(len(got)))
        assert got[: 1 + length] == free[: 1 + length] or length == 1


def test_stop_tokens_and_min_tokens(driver: Driver, prompt: list[int]) -> None:
    free = ids(one(driver, prompt, greedy()))
    stop = free[3]
    outputs = one(driver, prompt, greedy(stop_token_ids=[stop]))
    first = free.index(stop)
    assert ids(outputs) == free[: first + 1]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", stop)
    outputs = one(driver, prompt, greedy(ignore_eos=False), eos_token_ids=[stop])
    assert ids(outputs) == free[: first + 1]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", None)
    held = ids(one(driver, prompt, greedy(stop_token_ids=[stop], min_tokens=6)))
    assert len(held) >= 6
    assert stop not in held[:5]


def test_penalties_count_cached_prompts_too(driver: Driver, judge: Judge, prompt: list[int]) -> None:
    options = dict(repetition_penalty=1.7, frequency_penalty=0.4, presence_penalty=0.3, max_tokens=6)
    driver.chunk(16)
    for _ in range(2):  # the second time the prompt's pages are cached
        got = ids(one(driver, prompt, greedy(**options)))
        assert got == penalised(judge, prompt, options)
    assert driver.engine.stats().prefix_hits > 0


def penalised(judge: Judge, prompt: list[int], options: dict[str, Any]) -> list[int]:
    tokens, new = list(prompt), []
    for _ in range(options["max_tokens"]):
        # Log-probabilities differ from logits by a constant, which the repetition penalty would see: use logits.
        padded = jnp.asarray([tokens + [0] * (64 - len(tokens))])
        logits = np.array(judge.apply(judge.params, padded)[0, len(tokens) - 1])
        for token in set(tokens):
            r = options["repetition_penalty"]
            logits[token] = logits[token] / r if logits[token] > 0 else logits[token] * r
        for token in set(new):
            logits[token] -= options["frequency_penalty"] * new.count(token) + options["presence_penalty"]
        new.append(int(logits.argmax()))
        tokens.append(new[-1])
    return new


def test_abort_at_any_moment_leaves_the_others_alone(driver: Driver, prompt: list[int]) -> None:
    want = driver.tokens([prompt], greedy())[0]
    for steps in range(6):
        keep, drop = driver.add(prompt, greedy()), driver.add(prompt[:7], greedy(max_tokens=30))
        found: dict[str, list[EngineOutput]] = {}
        for _ in range(steps):
            for output in driver.engine.step():
                found.setdefault(output.request_id, []).append(output)
        driver.engine.abort([drop, "unknown"])
        for request_id, outputs in driver.run().items():
            found.setdefault(request_id, []).extend(outputs)
        assert ids(found[keep]) == want
    assert driver.engine.reset_prefix_cache()  # nothing is held any more


def test_the_longest_request(driver: Driver, prompt: list[int]) -> None:
    outputs = one(driver, prompt, greedy(max_tokens=None))
    assert len(prompt) + len(ids(outputs)) == 64
    assert outputs[-1].finish_reason == "length"


def test_overlap_changes_nothing(driver: Driver, folder: Path, prompt: list[int]) -> None:
    plain = Driver(EngineConfig(model=str(folder), overlap=False, **OPTIONS))
    prompts = [prompt, prompt[:4], prompt[3:]]
    assert plain.greedy(prompts, 10) == driver.greedy(prompts, 10)
    plain.close()


@pytest.mark.parametrize("size", ["prefill", "decode 1", "decode 4"])
def test_no_graph_copies_the_cache(driver: Driver, size: str) -> None:
    """The state is aliased in full, and temporaries do not grow with the cache."""
    runner, plan = driver.engine.runner, driver.engine.runner.graphs.plan
    key = plan.key(False, plan.prefill[-1]) if size == "prefill" else plan.key(True, int(size.split()[1]))
    temporaries = []
    for pages in (64, 4096):
        shape = StateShape(pages, 4, 4, 64)
        state = abstract_state(runner.model.config, shape, jnp.float32, runner.mesh)
        buffer = jax.ShapeDtypeStruct((key.size,), jnp.int32, sharding=replicated(runner.mesh))
        memory = lower(runner.model, key, runner.top, runner.params, state, buffer).compile().memory_analysis()
        assert memory.alias_size_in_bytes >= sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        temporaries.append(memory.temp_size_in_bytes)
    assert temporaries[1] <= temporaries[0] * 1.05


def test_nothing_compiles_once_warm(folder: Path, prompt: list[int]) -> None:
    driver = Driver(EngineConfig(model=str(folder), **{**OPTIONS, "warmup": "all"}))
    compiled: list[str] = []

    def listener(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    rng = np.random.default_rng(0)
    for _ in range(6):
        prompts = [prompt[: int(n)] for n in rng.integers(1, 13, size=int(rng.integers(1, 7)))]
        driver.tokens(prompts, SamplingParams(temperature=float(rng.integers(0, 2)), max_tokens=5, ignore_eos=True))
    driver.close()
    assert compiled == []


SECOND_START = """
import sys, jax
from vjax.config import EngineConfig
from tests.engine.driver import Driver
hits = {"hit": 0, "miss": 0}
def listener(event, **_):
    if event == "/jax/compilation_cache/cache_hits": hits["hit"] += 1
    if event == "/jax/compilation_cache/cache_misses": hits["miss"] += 1
jax.monitoring.register_event_listener(listener)
options = dict(max_num_seqs=1, max_num_batched_tokens=16, block_size=4, max_model_len=64, use_tqdm_on_load=False)
driver = Driver(EngineConfig(model=sys.argv[1], warmup="all", **options))
driver.greedy([[5, 6, 7]], 4)
driver.close()
print(hits["hit"], hits["miss"])
"""


def test_a_second_start_compiles_nothing(folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "VJAX_CACHE_DIR": str(tmp_path)}
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SECOND_START, str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        counts.append([int(n) for n in done.stdout.split()])
    assert counts[0][1] > 0
    assert counts[1][1] == 0
    assert counts[1][0] > 0
