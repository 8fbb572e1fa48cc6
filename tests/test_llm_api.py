"""`LLM` over a fake engine, and once over a real one with random weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.fakes import FakeEngine, byte_tokenizer, letter
from vjax import LLM, EngineConfig, SamplingParams
from vjax.engine.messages import EngineOutput
from vjax.errors import CheckpointError, ModelError, RequestError
from vjax.frontend.files import FrontendFiles


def make(engine: FakeEngine | None = None, generation_config: dict[str, Any] | None = None) -> LLM:
    files = FrontendFiles(byte_tokenizer(), generation_config or {})
    return LLM.from_engine(engine or FakeEngine(EngineConfig()), files)


def said(prompt: bytes, count: int) -> str:
    return bytes(letter(list(prompt), at) for at in range(count)).decode()


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    prompts = ["long one", {"prompt_token_ids": [97, 98]}, [120], "b"]
    params = [SamplingParams(max_tokens=count) for count in (9, 1, 5, 3)]
    outputs = make().generate(prompts, params, use_tqdm=False)
    sources = [b"long one", b"ab", b"x", b"b"]
    assert [output.outputs[0].text for output in outputs] == [
        said(source, count) for source, count in zip(sources, (9, 1, 5, 3), strict=True)
    ]
    assert [output.prompt for output in outputs] == ["long one", None, None, "b"]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)


@pytest.mark.parametrize("prompt", ["ab", [97, 98], {"prompt": "ab"}, {"prompt_token_ids": [97, 98]}])
def test_one_prompt(prompt: Any) -> None:
    [output] = make().generate(prompt, SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.outputs[0].text == "bc"


def test_no_prompts() -> None:
    assert make().generate([], use_tqdm=False) == []


def test_sampling_params_are_the_models_own_by_default_and_never_changed() -> None:
    llm = make(generation_config={"temperature": 0.5, "top_k": 7, "max_new_tokens": 4, "eos_token_id": [99]})
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=7, max_tokens=4)
    [output] = llm.generate("xyz", use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4
    params = SamplingParams(max_tokens=None, output_kind="delta")
    [output] = llm.generate("ab", params, use_tqdm=False)
    assert params == SamplingParams(max_tokens=None, output_kind="delta")
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([98, 99], "stop")


def test_a_bad_prompt_stops_the_batch_before_it_starts() -> None:
    engine = FakeEngine(EngineConfig())
    with pytest.raises(RequestError, match="prompt 2: the prompt is empty"):
        make(engine).generate(["a", "b", "", "c"], use_tqdm=False)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"sampling_params": [SamplingParams()]}, "sampling_params"),
        ({"sampling_params": {"n": 1}}, "sampling_params"),
        ({"priority": [1]}, "priority"),
        ({"priority": ["a", "b"]}, "priority"),
    ],
)
def test_bad_arguments(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        make().generate(["a", "b"], use_tqdm=False, **options)
    assert caught.value.param == param


def test_a_request_that_fails_harms_no_other() -> None:
    failed, fine = make().generate(["!fail", "abc"], SamplingParams(max_tokens=6), use_tqdm=False)
    assert (failed.outputs[0].finish_reason, len(failed.outputs[0].token_ids)) == ("error", 2)
    assert fine.outputs[0].text == said(b"abc", 6)


def test_ctrl_c_leaves_an_empty_engine() -> None:
    class Interrupted(FakeEngine):
        steps = 0

        def step(self) -> list[EngineOutput]:
            self.steps += 1
            if self.steps == 3:
                raise KeyboardInterrupt
            return super().step()

    engine = Interrupted(EngineConfig())
    llm = make(engine)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["ab", "cd"], SamplingParams(max_tokens=9, n=2), use_tqdm=False)
    assert not engine.has_work
    assert llm.generate("ab", SamplingParams(max_tokens=2), use_tqdm=False)[0].outputs[0].text == "bc"


def test_stop_strings_end_in_the_engine_too() -> None:
    engine = FakeEngine(EngineConfig())
    [output] = make(engine).generate("abc", SamplingParams(max_tokens=50, stop=["dbc"]), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("bc", "dbc")
    assert engine.aborted == [output.request_id]
    assert engine.tokens < 10


def test_priority_reaches_the_engine() -> None:
    seen = {}

    class Watched(FakeEngine):
        def add(self, request: Any) -> None:
            seen[bytes(request.prompt_token_ids)] = request.priority
            super().add(request)

        def abort(self, request_ids: Iterable[str]) -> None:
            super().abort(request_ids)

    make(Watched(EngineConfig())).generate(["a", "b"], priority=[3, -1], use_tqdm=False)
    assert seen == {b"a": 3, b"b": -1}


def test_chat() -> None:
    llm = make()
    hello = [{"role": "user", "content": "hi"}]
    [one] = llm.chat(hello, SamplingParams(max_tokens=2), use_tqdm=False)
    assert (one.prompt, one.outputs[0].text) == ("hi>", said(b"hi>", 2))
    several = llm.chat([hello, [*hello, {"role": "assistant", "content": "yo"}]], use_tqdm=False)
    assert [output.prompt for output in several] == ["hi>", "hiyo>"]
    [plain] = llm.chat(
        hello,
        use_tqdm=False,
        add_generation_prompt=False,
        chat_template="{{ greeting }}{{ tools[0].name }}",
        chat_template_kwargs={"greeting": "hey "},
        tools=[{"name": "f"}],
    )
    assert plain.prompt == "hey f"
    with pytest.raises(RequestError):
        llm.chat([], use_tqdm=False)


def test_the_progress_bar_shows_rates(capsys: pytest.CaptureFixture[str]) -> None:
    make().generate(["a", "b"], use_tqdm=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tok/s" in shown


def test_without_a_tokenizer() -> None:
    llm = LLM.from_engine(FakeEngine(EngineConfig()), FrontendFiles())
    [output] = llm.generate([[97, 98]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert (output.outputs[0].token_ids, output.outputs[0].text) == ([98, 99], "")
    for work in (llm.get_tokenizer, lambda: llm.generate("text"), lambda: llm.chat([{"role": "user", "content": ""}])):
        with pytest.raises(RequestError, match="without a tokenizer"):
            work()


def test_unknown_options_and_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unknown engine option 'max_len'"):
        LLM("x", max_len=3)
    with pytest.raises(CheckpointError, match="nowhere"):
        LLM(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("value", [{"temperature": 9}, {"eos_token_id": "x"}])
def test_a_bad_generation_config_is_named(tmp_path: Path, value: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "generation_config.json").write_text(json.dumps(value))
    config = EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, load_format="dummy")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        FrontendFiles.load(config)


TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def test_a_real_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    llm = LLM(
        str(tmp_path),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        kv_cache_memory_bytes=1 << 20,
        warmup="lazy",
        use_tqdm_on_load=False,
    )
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1, prompt_logprobs=0)
    prompts = [[1, 2, 3], list(range(5, 30)), [7]]
    together = llm.generate(prompts, params, use_tqdm=False)
    alone = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts]
    assert [output.outputs[0].token_ids for output in together] == [output.outputs[0].token_ids for output in alone]
    for prompt, output in zip(prompts, together, strict=True):
        assert len(output.outputs[0].token_ids) == 6
        assert output.outputs[0].logprobs is not None
        assert [next(iter(row)) for row in output.outputs[0].logprobs] == output.outputs[0].token_ids
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        assert [next(iter(row or {})) for row in output.prompt_logprobs[1:]] == prompt[1:]
    [sampled] = llm.generate([[1, 2]], SamplingParams(n=3, seed=1, max_tokens=5, ignore_eos=True), use_tqdm=False)
    assert len({tuple(one.token_ids) for one in sampled.outputs}) > 1
    llm.shutdown()
