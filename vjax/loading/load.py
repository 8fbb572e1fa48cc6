"""`load`: any supported checkpoint as `(model, params)`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from vjax.config import EngineConfig
from vjax.errors import CheckpointError
from vjax.loading.checkpoint import load_params
from vjax.loading.dtypes import resolve_dtype
from vjax.loading.gguf import open_gguf
from vjax.loading.gguf_config import hf_config_from_gguf
from vjax.loading.gguf_names import to_gguf_name
from vjax.loading.hf_config import read_hf_config
from vjax.loading.orbax import load_checkpoint, read_checkpoint_config
from vjax.loading.safetensors import open_safetensors
from vjax.loading.source import find_source
from vjax.models.model import Model
from vjax.models.registry import family_for_gguf
from vjax.models.spec import Param, Tree, map_params
from vjax.parallel.mesh import make_mesh, param_sharding
from vjax.quant import Dense


def load(
    path: str | Path,
    dtype: Any = None,
    *,
    tensor_parallel_size: int = 1,
    load_format: str = "auto",
    hf_overrides: dict[str, Any] | None = None,
    use_tqdm_on_load: bool = True,
    seed: int = 0,
) -> tuple[Model, Tree]:
    """A model and its parameters, on the device.

    `path`: a Hugging Face folder (safetensors), a `.gguf` file (or any of its shards), a folder that `vjax convert`
    wrote, or a registered name such as `smollm2-demo`. `dtype`: a name or dtype object; by default float32 on CPU and
    the checkpoint's own elsewhere. Tensors are read one at a time, straight to where they stay.

    Raises `CheckpointError` for files that are missing, broken or do not fit their config, `ModelError` for an
    architecture or option that is not supported.
    """
    config = EngineConfig(
        model=str(path),
        dtype=_name(dtype),
        tensor_parallel_size=tensor_parallel_size,
        load_format=load_format,  # type: ignore[arg-type]
        hf_overrides=hf_overrides,
        use_tqdm_on_load=use_tqdm_on_load,
        seed=seed,
    )
    return load_model(config, make_mesh(tensor_parallel_size))


def load_model(config: EngineConfig, mesh: Mesh) -> tuple[Model, Tree]:
    """The same for an engine's options."""
    model, params, _ = load_model_and_config(config, mesh)
    return model, params
