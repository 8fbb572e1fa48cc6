"""Shapes of published models: their `config.json` without weights, for plans and for benchmarks with random weights.

One file a model. The names are those that people use; the fields are the publisher's.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from vjax.loading.hf_config import read_json_object

_HERE = files(__name__)


def names() -> list[str]:
    return sorted(entry.name.removesuffix(".json") for entry in _HERE.iterdir() if entry.name.endswith(".json"))


def config(name: str) -> dict[str, Any]:
    """The config of a shape. Raises `KeyError` for a name that is not among `names()`."""
    if name not in names():
        raise KeyError(name)
    return read_json_object(_HERE / f"{name}.json")  # type: ignore[arg-type]
