"""Derives what the user left open: context, rows, tokens a step, pages. Everything chosen is printed at start-up."""

from __future__ import annotations

import jax.numpy as jnp

from vjax.config import EngineConfig
from vjax.engine.page_groups import PageGroups
from vjax.engine.platform import CPU_CACHE_BYTES, free_bytes, platform
from vjax.engine.state import StateShape, page_bytes, snapshot_bytes, state_bytes
from vjax.errors import CapacityError, ModelError
from vjax.models.config import ModelConfig

SNAPSHOTS_SHARE, SNAPSHOTS_A_ROW = 0.25, 8  # of the cache's memory, and at most


def max_num_seqs(config: EngineConfig) -> int:
    return config.max_num_seqs or (16 if platform() == "cpu" else 256)


def max_num_batched_tokens(config: EngineConfig) -> int:
    """At least one token for every row that may run."""
    tokens = config.max_num_batched_tokens or (512 if platform() == "cpu" else 4096)
    rows = max_num_seqs(config)
    if tokens < rows:
        if config.max_num_batched_tokens is not None:
            raise ModelError(f"max_num_batched_tokens={tokens} is less than max_num_seqs={rows}.")
        return rows
    return tokens


def temporary_bytes(model: ModelConfig, rows: int, tokens: int, dtype: jnp.dtype, largest_weight: int) -> int:
    """A generous bound on a step's temporaries: logits in float32 with a few copies, more of them that stay for each
    smaller number of rows (`engine/kept.py`), and a layer's activations.

    Graphs are also compiled while steps run, and XLA times its candidates for a product on operands of its own:
    `largest_weight` bytes more.
    """
    width = 4 * model.hidden_size + 3 * model.intermediate_size + 3 * model.num_heads * model.head_dim
    activations = 8 * rows * model.vocab_size * 4 + 2 * tokens * width * jnp.dtype(dtype).itemsize
    return activations + largest_weight * 5 // 4 + (256 << 20)


def state_shape(config: EngineConfig, model: ModelConfig, dtype: jnp.dtype, *, largest_weight: int = 0) -> StateShape:
    """How many pages there are and how long a request may get. Raises `CapacityError` if one request does not fit.

    `largest_weight`: bytes of it on one device.
    """
    longest = config.max_model_len or model.max_position
    if config.max_model_len and config.max_model_len > model.max_position:
        raise ModelError(
            f"max_model_len={longest} is more than the model's own {model.max_position}; "
            "set hf_overrides={'max_position_embeddings': ...} if you know that it can."
        )
    rows = max_num_seqs(config)
    devices = config.tensor_parallel_size
    per_page = page_bytes(model, config.block_size, dtype, devices) * devices  # copies too, where heads do not divide
    budget = _budget(config, model, dtype, largest_weight)
    snapshots = _snapshots(config, model, max(budget, 0))
    budget -= snapshots * snapshot_bytes(model)
    if config.num_gpu_blocks_override is None and budget < 0:
        raise CapacityError(
            f"no memory for the state of {rows} requests ({state_bytes(model, rows) >> 20} MiB): lower max_num_seqs, "
            "or raise gpu_memory_utilization or kv_cache_memory_bytes."
        )
    groups, chunk = PageGroups(model.windows, config.block_size), max_num_batched_tokens(config)
    enough = rows * groups.held(longest, chunk) + 1
    pages = config.num_gpu_blocks_override or (budget // per_page if per_page else enough)
    room = groups.room(pages - 1, chunk, longest)  # page 0 is a dummy
    if not room:
        raise CapacityError(
            f"no memory for one page of the cache ({per_page >> 10} KiB): "
            "raise gpu_memory_utilization or kv_cache_memory_bytes."
        )
    if longest > room:
        if config.max_model_len is not None:
            raise CapacityError(
                f"the cache holds {room} tokens, less than max_model_len={longest}: lower max_model_len to {room}, or "
                "raise gpu_memory_utilization or kv_cache_memory_bytes."
            )
        longest = room
    # More pages than all rows can fill would only cost memory.
    useful = rows * groups.held(longest, chunk) + 1
    pages = min(pages, useful) if _capped(config) else pages
    return StateShape(pages, config.block_size, rows, longest, len(groups), snapshots)


def prefix_caching(config: EngineConfig, model: ModelConfig) -> bool:
    """Whether prefixes are to be shared: recurrent layers need to be asked, as it costs memory and shorter chunks."""
    if config.enable_prefix_caching is not None:
        return config.enable_prefix_caching
    return model.state_spec is None


def _snapshots(config: EngineConfig, model: ModelConfig, budget: int) -> int:
    """Snapshots of recurrent states, in a part of what is left for pages. None beside windows or several pools."""
    alike = model.windows == (None,) and len(model.cache_specs) == 1
    if model.state_spec is None or not alike or not prefix_caching(config, model):
        return 0
    return min(int(budget * SNAPSHOTS_SHARE) // snapshot_bytes(model), SNAPSHOTS_A_ROW * max_num_seqs(config))


def _capped(config: EngineConfig) -> bool:
    return config.num_gpu_blocks_override is None and config.kv_cache_memory_bytes is None and platform() == "cpu"


def _budget(config: EngineConfig, model: ModelConfig, dtype: jnp.dtype, largest_weight: int) -> int:
    """Bytes for pages; less than 0 where the state of recurrent layers alone is too large."""
    state = state_bytes(model, max_num_seqs(config))
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes - state
    free = free_bytes(config)
    if free is None:
        return CPU_CACHE_BYTES  # a default for pages alone
    rows, tokens = max_num_seqs(config), max_num_batched_tokens(config)
    left = max(free - temporary_bytes(model, rows, tokens, dtype, largest_weight), 0)
    return left * config.tensor_parallel_size - state
