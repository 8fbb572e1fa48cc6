"""The metadata of a GGUF file's architecture, checked as it is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from vjax.errors import CheckpointError
from vjax.loading.gguf import GGUFFile


class Fields:
    """The metadata keys of one architecture, checked as they are read."""

    def __init__(self, gguf: GGUFFile, architecture: str) -> None:
        self.gguf, self.architecture = gguf, architecture

    def fail(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.gguf.path}: metadata key {key!r} {problem}.")

    def integer(self, name: str) -> int:
        value = self.optional(name, int)
        if value is None or value < 1:
            raise self.fail(
                f"{self.architecture}.{name}", "is missing" if value is None else f"is {value}, not positive"
            )
        return value

    def optional(self, name: str, kind: type, prefix: str | None = None) -> Any:
        """A value of `kind` or None. Lists with one value a layer, all equal, count as that value."""
        key = f"{self.architecture if prefix is None else prefix}.{name}"
        value = self.gguf.metadata.get(key)
        if kind in (int, float) and isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if kind is float and type(value) is int:
            value = float(value)
        if value is not None and type(value) is not kind:
            raise self.fail(key, f"must be {kind.__name__}, found {type(value).__name__}")
        return shortest(value) if isinstance(value, float) else value


def shortest(value: float) -> float:
    """Metadata floats are float32: 1e-5 comes as 9.999999747378752e-06. Back to the number that was meant."""
    return float(str(np.float32(value)))
