"""`EngineConfig`: every option of an engine, named as in vLLM. The command line is generated from these fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from vjax.errors import ModelError


def option(default: Any, help: str, **extra: Any) -> Any:
    """A field with its help text; `extra` may hold `short` (a flag's short name), `choices`, or `size=True` for
    numbers that people write as 4k or 2GiB."""
    return field(default=default, metadata={"help": help, **extra})


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an engine. Raises `ModelError` naming the field when a value cannot be used."""

    model: str = option("smollm2-demo", "folder, .gguf file, or a registered name")
    tokenizer: str | None = option(None, "folder or .gguf file of the tokenizer; the model's own by default")
    skip_tokenizer_init: bool = option(False, "take and return token ids only")
    load_format: Literal["auto", "dummy"] = option("auto", "dummy: random weights, for benchmarks")
    dtype: str = option("auto", "compute dtype: auto, float32, bfloat16 or float16")
    runner: Literal["auto", "generate", "pooling"] = option(
        "auto", "generate text, or vectors and scores; auto: as the model's files say"
    )
    convert: Literal["auto", "none", "embed", "classify"] = option("auto", "pool with a model that was not made for it")
    pooler_config: dict[str, Any] | None = option(None, 'JSON such as {"pooling_type": "MEAN", "use_activation": true}')
    hf_overrides: dict[str, Any] | None = option(None, "JSON merged over the model's config.json")
    seed: int = option(0, "seeds the requests that bring no seed of their own, and dummy weights")
    max_model_len: int | None = option(
        None, "longest prompt plus output, in tokens; the model's own by default", size=True
    )
    max_num_seqs: int | None = option(None, "most requests that run at once; 256 on a GPU, 16 on CPU")
    max_num_batched_tokens: int | None = option(
        None, "most tokens in one step; 4096 on a GPU, 512 on CPU", size=True
    )  # fmt: skip
    block_size: int = option(16, "tokens in a page of the cache")
    gpu_memory_utilization: float = option(0.9, "share of the device's memory to use")
    kv_cache_memory_bytes: int | None = option(
        None, "memory for the cache instead of that share; 1 GiB on CPU by default", size=True
    )  # fmt: skip
    num_gpu_blocks_override: int | None = option(None, "pages in the cache instead of what memory allows")
    enable_prefix_caching: bool | None = option(
        None, "reuse the cache of prompts that start alike; by default where no layer is recurrent"
    )  # fmt: skip
    scheduling_policy: Literal["fcfs", "priority"] = option("fcfs", "who goes first")
    long_prefill_token_threshold: int = option(0, "most prompt tokens of one request in a step; 0: no limit")
    tensor_parallel_size: int = option(1, "devices to spread the model over", short="-tp")
    max_logprobs: int = option(20, "most logprobs a request may ask for; -1: the whole vocabulary")
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = option(
        "raw_logprobs", "before or after penalties, biases and temperature"
    )
    warmup: Literal["all", "background", "lazy"] = option(
        "background", "compile every graph before serving, the smallest set first and the rest meanwhile, or on demand"
    )
    overlap: bool = option(True, "plan the next step while the device runs the last")
    kernels: dict[str, str] | None = option(None, 'JSON such as {"paged_attention": "reference"}')
    use_tqdm_on_load: bool = option(True, "show progress while loading and compiling")

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override",
                     "kv_cache_memory_bytes", "block_size", "tensor_parallel_size"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ModelError(f"{name} must be a positive integer, got {value!r}.")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ModelError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization}.")
        if self.runner == "generate" and self.convert in ("embed", "classify"):
            raise ModelError(f"convert={self.convert} needs runner=pooling.")
        for item in fields(self):
            allowed = _choices(item.type)
            if allowed and getattr(self, item.name) not in allowed:
                raise ModelError(
                    f"{item.name} must be one of {', '.join(allowed)}, got {getattr(self, item.name)!r}."
                )  # fmt: skip


def _choices(annotation: Any) -> tuple[str, ...]:
    """The values of a field annotated `Literal[...]` (annotations are strings here)."""
    text = str(annotation)
    if not text.startswith("Literal["):
        return ()
    return tuple(part.strip().strip("\"'") for part in text[len("Literal[") : -1].split(","))
