"""Names of compute dtypes, as users and configs spell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vjax.errors import ModelError

NAMES = {
    "float32": jnp.float32,
    "float": jnp.float32,
    "bfloat16": jnp.bfloat16,
    "float16": jnp.float16,
    "half": jnp.float16,
}


def resolve_dtype(dtype: Any = "auto", config: Mapping[str, Any] | None = None) -> jnp.dtype:
    """The compute dtype for `--dtype` or `dtype=`: a name, a dtype object, or None, which means "auto".

    "auto" is float32 on CPU; elsewhere the config's `dtype`, with bfloat16 for float32, which is how older
    checkpoints are labelled, and for none. Raises `ModelError` for any other dtype.
    """
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return _auto(config or {})
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
    else:
        try:
            name = jnp.dtype(dtype).name
        except TypeError:
            name = ""
    if name not in NAMES:
        raise ModelError(f"dtype {dtype!r} is not supported. Known: auto, {', '.join(NAMES)}.")
    return jnp.dtype(NAMES[name])


def _auto(config: Mapping[str, Any]) -> jnp.dtype:
    if jax.default_backend() == "cpu":
        return jnp.dtype(jnp.float32)
    text = config.get("text_config") or {}
    places = [(config, "dtype"), (config, "torch_dtype"), (text, "dtype"), (text, "torch_dtype")]
    named = next((str(place[key]) for place, key in places if place.get(key)), "bfloat16")
    found = NAMES.get(named.removeprefix("torch."), jnp.bfloat16)
    return jnp.dtype(jnp.bfloat16 if found == jnp.float32 else found)
