"""`LLM`: batches of prompts on an engine in this process."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from vjax.config import EngineConfig
from vjax.engine.messages import EngineOutput
from vjax.errors import ModelError, RequestError, VjaxError
from vjax.frontend.beam_search import Beams, BeamSearchOutput, BeamSearchParams
from vjax.frontend.files import FrontendFiles
from vjax.frontend.inputs import InputProcessor, PreparedRequest, Prompt
from vjax.frontend.labels import with_label_ids
from vjax.frontend.outputs import OutputProcessor
from vjax.frontend.pooled_batches import PooledBatches
from vjax.frontend.scores import Scoring, as_texts, render_pair
from vjax.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from vjax.pooling_params import PoolingParams, PoolingTask
from vjax.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vjax.engine.child import Core
    from vjax.tokenizing import Tokenizer

log = logging.getLogger(__name__)

Message = Mapping[str, Any]


class LLM:
    """Generates text offline.

    >>> llm = LLM("smollm2-demo", max_model_len=1024)
    >>> [output] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))
    >>> output.outputs[0].text

    `engine` is the engine underneath. Not thread-safe.
    """

    def __init__(self, model: str, **options: Any) -> None:
        """`model`: a folder, a `.gguf` file or a registered name; `options`: the fields of `EngineConfig`.

        Raises `ModelError`, `CheckpointError` or `CapacityError`.
        """
        known = {item.name for item in fields(EngineConfig)}
        if unknown := sorted(set(options) - known):
            raise ModelError(f"unknown engine option {unknown[0]!r}; known: {', '.join(sorted(known))}.")
        config = EngineConfig(model=str(model), **options)
        from vjax.engine.kinds import make_engine

        files = FrontendFiles.load(config)
        engine = make_engine(with_label_ids(config, files))
        if engine.limits.pooling is not None:
            self._files, self._encoder = files, PooledBatches(engine, files)
        else:
            self._take(engine, files)

    _encoder: PooledBatches | None = None  # of a model that encodes, which has no `engine` here

    @classmethod
    def from_engine(cls, engine: Core, files: FrontendFiles) -> Self:
        """Over an engine that exists, such as one made of parameters at hand."""
        llm = cls.__new__(cls)
        llm._take(engine, files)
        return llm

    def _take(self, engine: Core, files: FrontendFiles) -> None:
        self.engine = engine
        self._files = files
        self._inputs = InputProcessor(files.tokenizer, engine.limits, eos_token_ids=files.eos_token_ids)
        self._numbers = itertools.count()

    def get_tokenizer(self) -> Tokenizer:
        """Raises `RequestError` when the engine runs without one."""
        if self._files.tokenizer is None:
            raise RequestError("this engine runs without a tokenizer (skip_tokenizer_init).")
        return self._files.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults, from its generation_config.json; a fresh object each time."""
        return self._files.default_sampling_params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """One output for each prompt, in their order. A prompt is text, token ids, or a mapping with `prompt` or
        `prompt_token_ids`.

        `sampling_params`: for all, or one for each; the model's defaults when None. `priority`: one for each, the
        lowest first (with scheduling_policy="priority").

        Raises `RequestError` for any bad prompt, before any of them starts. A request that fails in the engine ends
        with finish_reason "error" and harms no other. Ctrl-C ends all of them.
        """
        return self._generate(_as_list(prompts), sampling_params, use_tqdm, priority, add_special_tokens=True)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """As `generate`, for one conversation or a list of them, by the model's chat template or `chat_template`.
        `chat_template_kwargs` reach the template."""
        if not messages:
            raise RequestError("messages must not be empty.", "messages")
        tokenizer = self.get_tokenizer()
        conversations: Any = [messages] if isinstance(messages[0], Mapping) else messages
        prompts = [
            tokenizer.render_chat(
                conversation,
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        # The template writes BOS itself.
        return self._generate(prompts, sampling_params, use_tqdm, None, add_special_tokens=False)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The `params.beam_width` best continuations of each prompt, the best first. `params.max_tokens` is cut to what
        the context leaves. Raises `RequestError` for a bad prompt, before any of them starts."""
        if self._encoder is not None:
            raise RequestError("this model encodes; use LLM.encode.")
        params.check_against(self._inputs.limits.max_logprobs)
        searches = [self._beams(prompt, params) for prompt in _as_list(prompts)]
        step = params.step_params()
        with tqdm(total=params.max_tokens, desc="Beam search", disable=not use_tqdm, dynamic_ncols=True) as bar:
            while open_ := [beams for beams in searches if beams.live]:
                texts = [beam.tokens for beams in open_ for beam in beams.live]
                outputs = iter(self._generate(texts, step, False, None, add_special_tokens=False))
                for beams in open_:
                    rows = [next(outputs).outputs[0].logprobs for _ in beams.live]
                    if not all(rows):
                        raise VjaxError("a beam failed in the engine; see the log.")
                    beams.advance([row[0] for row in rows if row])
                bar.update()
        return [self._beam_output(beams) for beams in searches]

    def _beams(self, prompt: Prompt, params: BeamSearchParams) -> Beams:
        prepared = self._inputs.process("", prompt, params.step_params())
        room = self._inputs.limits.max_model_len - len(prepared.prompt_token_ids)
        params = replace(params, max_tokens=min(params.max_tokens, room))
        return Beams(prepared.prompt_token_ids, params, self._inputs.eos_token_ids)

    def _beam_output(self, beams: Beams) -> BeamSearchOutput:
        best, tokenizer = beams.best(), self._files.tokenizer
        for sequence in best:
            sequence.text = None if tokenizer is None else tokenizer.decode(beams.text_ids(sequence))
        return BeamSearchOutput(best)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        pooling_task: PoolingTask | None = None,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """A model that encodes: what it makes of each prompt is `.outputs.data`, a float32 numpy array.

        `pooling_task`: "embed", a vector `[d]`, or for a classifier "classify", probabilities `[labels]` (one label:
        its sigmoid); "token_embed", a vector for each token `[T, d]`.

        Such models are bare ones (`BertModel`, `Qwen3Model`), classifiers (`...ForSequenceClassification`), and those
        with Sentence Transformers' files. Any other decoder becomes one by `runner="pooling"`.

        Raises `RequestError` for any bad prompt, before any of them starts.
        """
        listed = _as_list(prompts)
        params = _one_each(pooling_params or PoolingParams(), PoolingParams, len(listed), "pooling_params")
        if pooling_task is not None:
            params = [one.clone(task=pooling_task) for one in params]
        return self._pooled().run(listed, params, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """As `encode`; a vector of each prompt is `.outputs.embedding`, a list."""
        outputs = self.encode(prompts, pooling_params, pooling_task="embed", use_tqdm=use_tqdm)
        return [
            EmbeddingRequestOutput(one.request_id, EmbeddingOutput(one.outputs.data.tolist()), one.prompt_token_ids)
            for one in outputs
        ]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[ClassificationRequestOutput]:
        """As `encode`, of a classifier; a probability for each class is in `.outputs.probs`."""
        outputs = self.encode(prompts, pooling_params, pooling_task="classify", use_tqdm=use_tqdm)
        return [
            ClassificationRequestOutput(
                one.request_id, ClassificationOutput(one.outputs.data.tolist()), one.prompt_token_ids
            )
            for one in outputs
        ]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        pooling_params: PoolingParams | None = None,
        chat_template: str | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How well each pair of texts fits; one in `data_1` goes with all of `data_2`. A model that embeds compares
        their vectors, a classifier of one class reads both at once, by `chat_template` (roles query and document) or as
        the tokenizer joins pairs."""
        pooled = self._pooled()
        render = None
        if chat_template is not None:
            render = partial(render_pair, self.get_tokenizer(), chat_template)
        scoring = Scoring(pooled.inputs, as_texts(data_1, "data_1"), as_texts(data_2, "data_2"), render=render,
                          names=("data_1", "data_2"))  # fmt: skip
        params = (pooling_params or PoolingParams()).clone(task=scoring.task)
        outputs = pooled.run(scoring.prompts, [params] * len(scoring.prompts), use_tqdm, render is None)
        scores = scoring.scores([one.outputs.data for one in outputs])
        ids = scoring.tokens([one.prompt_token_ids for one in outputs])
        return [
            ScoringRequestOutput(str(at), ScoringOutput(score), tokens)
            for at, (score, tokens) in enumerate(zip(scores, ids, strict=True))
        ]

    def _pooled(self) -> PooledBatches:
        if self._encoder is None:
            raise RequestError("this model generates; LLM.encode needs one that encodes (see its docstring).")
        return self._encoder

    def shutdown(self) -> None:
        """Give back the engine's threads."""
        if self._encoder is None:
            self.engine.shutdown()
        else:
            self._encoder.engine.shutdown()

    def _generate(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: Sequence[int] | None,
        add_special_tokens: bool,
    ) -> list[RequestOutput]:
        if self._encoder is not None:
            raise RequestError("this model encodes; use LLM.encode.")
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = _one_each(sampling_params, SamplingParams, len(prompts), "sampling_params")
        priorities = _one_each(0 if priority is None else priority, int, len(prompts), "priority")
        requests: list[PreparedRequest] = []
        for at, prompt in enumerate(prompts):
            try:
                request = self._inputs.process(
                    str(next(self._numbers)),
                    prompt,
                    params[at].clone(output_kind="final_only"),
                    priority=priorities[at],
                    add_special_tokens=add_special_tokens,
                )
            except RequestError as error:
                where = f"prompt {at}: " if len(prompts) > 1 else ""
                raise RequestError(f"{where}{error}", error.param) from None
            requests.append(request)
        with _Bar(requests, show=use_tqdm) as bar:
            return self._run(requests, bar)

    def _run(self, requests: list[PreparedRequest], bar: _Bar) -> list[RequestOutput]:
        processor = OutputProcessor(self._files.tokenizer)
        finished: dict[str, RequestOutput] = {}
        try:
            if any(request.params.structured_outputs is not None for request in requests):
                self.engine.teach(self._inputs.grammars.vocabulary)
            for request in requests:
                processor.add(request)
                for child in request.children:
                    self.engine.add(child)
            while len(processor):
                if not self.engine.has_work:
                    raise RuntimeError(f"the engine lost {len(processor)} requests.")
                outputs = self.engine.step()
                news = processor.process(outputs)
                self.engine.abort(news.aborts)
                for request_id, error in news.errors.items():
                    log.error("request %s failed: %s", request_id, error)
                for output in news.outputs:
                    finished[output.request_id] = output
                bar.show(outputs, news.outputs)
        except BaseException:  # Ctrl-C above all: the next call must find an empty engine
            self.engine.abort(child.request_id for request in requests for child in request.children)
            raise
        return [finished[request.request_id] for request in requests]


class _Bar:
    """Requests done, and tokens per second in and out."""

    def __init__(self, requests: list[PreparedRequest], show: bool) -> None:
        self._bar = tqdm(total=len(requests), desc="Requests", unit="req", disable=not show, dynamic_ncols=True)
        self._read = self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, outputs: Iterable[EngineOutput], done: Sequence[RequestOutput]) -> None:
        if self._bar.disable:
            return
        self._written += sum(len(output.new_token_ids) for output in outputs)
        if done:
            self._read += sum(len(output.prompt_token_ids) for output in done)
            seconds = max(self._bar.format_dict["elapsed"], 1e-6)
            rates = f"in {self._read / seconds:.1f} tok/s, out {self._written / seconds:.1f} tok/s"
            self._bar.set_postfix_str(rates, refresh=False)
            self._bar.update(len(done))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A lone prompt in a list; a list of integers is a lone prompt."""
    if isinstance(prompts, (str, Mapping)) or (len(prompts) > 0 and hasattr(prompts[0], "__index__")):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def _one_each(value: Any, kind: type, count: int, name: str) -> Sequence[Any]:
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or not all(isinstance(item, kind) for item in value):
        raise RequestError(f"{name} must be one {kind.__name__} or a list of them.", name)
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts.", name)
    return value
