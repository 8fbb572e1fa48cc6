"""The messages between a front end and the engine core; msgspec structs, so that they cross a process boundary as
they are. All ids here are engine request ids: a front end splits `n` continuations into `n` requests."""

from __future__ import annotations

import msgspec

from vjax.sampling_params import SamplingParams


class EngineRequest(msgspec.Struct, array_like=True, gc=False):
    """One sequence to generate.

    `eos_token_ids` end the request unless `ignore_eos`; `bad_word_ids` are tokenised `bad_words`.
    `extra_keys` join the hash of every page (an adapter's name, an image's hash); `cache_salt` that of the first.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: list[int] = []
    bad_word_ids: list[list[int]] = []
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    extra_keys: tuple[str, ...] = ()


class Vocabulary(msgspec.Struct, tag=True, array_like=True, eq=False, dict=True):
    """What grammars need to know of a tokenizer: each token's bytes (empty: none), special and end-of-text ids, and the
    tokenizer as `tokenizer.json` has it. A message, so that an engine elsewhere need not read the tokenizer."""

    tokens: list[bytes]
    special: list[int]
    eos: list[int]
    tokenizer: str


class PoolRequest(msgspec.Struct, array_like=True, gc=False):
    """One text to encode. `second_from`: the first token of a pair's second half, for models that tell them apart."""

    request_id: str
    prompt_token_ids: list[int]
    task: str
    dimensions: int | None = None
    use_activation: bool | None = None
    second_from: int | None = None
    priority: int = 0
    arrival_time: float = 0.0


class Pooled(msgspec.Struct, array_like=True, gc=False):
    """An array of float32, as bytes of this machine's order."""

    shape: tuple[int, ...]
    data: bytes


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Logprobs at one position: the chosen token's, its rank, and the `k` most likely tokens' (or those that the
    request chose)."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class EngineOutput(msgspec.Struct, array_like=True, gc=False):
    """News of one request after a step. `finish_reason` set means that it is the last one."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None  # rows for prompt positions 1.., in order, across outputs
    finish_reason: str | None = None  # stop, length, repetition, abort, error
    stop_reason: int | str | None = None  # the stop token's id, None for EOS
    error: str | None = None
    num_cached_tokens: int = 0
    scheduled_time: float | None = None
    num_preemptions: int = 0
    pooled: Pooled | None = None  # what a text became, with the finish_reason stop


STEP_SIZES = (1, *(8 << n for n in range(12)))


class EngineStats(msgspec.Struct, array_like=True, gc=False):
    """Gauges now, and counters since the engine started."""

    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0  # 0..1, pages held by running requests over all pages
    prefix_queries: int = 0  # tokens asked for
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    last_step_tokens: int = 0
    step_tokens: int = 0  # of all steps
    step_sizes: list[int] = []  # steps by their tokens: at most 1, 8, 16, ..., 16384, and more (`STEP_SIZES`)
    sleep_level: int = 0  # 0: awake


class PoolingLimits(msgspec.Struct, array_like=True, gc=False):
    """What a model that encodes can do. `cut` says whether embeddings may lose their last channels, `sizes` to which
    sizes if not to any. `joined`: a pair is one text, not two with separators."""

    tasks: list[str]
    width: int = 0
    labels: list[str] = []
    normalizes: bool = True
    cut: bool = False
    sizes: list[int] = []
    joined: bool = False
    max_embed_len: int | None = None  # for embeddings made of pieces


class EngineLimits(msgspec.Struct, array_like=True, gc=False):
    """What a started engine can do; front ends validate requests against it."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    max_num_seqs: int
    num_pages: int
    block_size: int
    eos_token_ids: list[int] = []
    architecture: str = ""
    dtype: str = ""
    pooling: PoolingLimits | None = None  # None: it generates
