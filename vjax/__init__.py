"""vjax serves language models from compiled JAX graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vjax.version import __version__

if TYPE_CHECKING:
    from vjax.config import EngineConfig
    from vjax.frontend.beam_search import BeamSearchParams
    from vjax.llm import LLM
    from vjax.loading.load import load
    from vjax.models.model import Model
    from vjax.outputs import CompletionOutput, Logprob, RequestOutput
    from vjax.pooling_params import PoolingParams
    from vjax.sampling_params import SamplingParams
    from vjax.structured_outputs import StructuredOutputsParams

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "Model",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "load",
]

# Resolved on first use: `vjax --help` and the HTTP front end must not wait for JAX.
_HOMES = {
    "LLM": "vjax.llm",
    "BeamSearchParams": "vjax.frontend.beam_search",
    "CompletionOutput": "vjax.outputs",
    "EngineConfig": "vjax.config",
    "Logprob": "vjax.outputs",
    "Model": "vjax.models.model",
    "PoolingParams": "vjax.pooling_params",
    "RequestOutput": "vjax.outputs",
    "SamplingParams": "vjax.sampling_params",
    "StructuredOutputsParams": "vjax.structured_outputs",
    "load": "vjax.loading.load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vjax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
