"""Which weights of a GGUF file stay packed, and what they look like as rows of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from vjax.loading.reader import TensorInfo
from vjax.models.spec import Param, Shape
from vjax.quant.ggml_kinds import KINDS


class BlockReader(Protocol):
    """A checkpoint whose tensors can be read as stored."""

    def read_blocks(self, name: str, rows: slice | None = None) -> np.ndarray:
        """uint8 `[*shape[:-1], bytes of a row]`."""
        ...


def packed_kind(param: Param, stored: Sequence[TensorInfo]) -> str | None:
    """The block type in which `param` can stay, or None: one type for all of its sources, rows kept whole."""
    kinds = {info.dtype for info in stored}
    if param.kind != "weight" or len(stored) != len(param.sources) or len(kinds) != 1:
        return None
    (kind,) = kinds
    whole = all(len(s.stored) > 1 and s.stored[-1] == s.shape[-1] and s.convert is None for s in param.sources)
    if kind not in KINDS or not whole or param.concat == len(param.shape) - 1:
        return None
    return kind if param.shape[-1] % KINDS[kind].width == 0 else None


def as_bytes(param: Param, kind: str) -> Param:
    """`param` with rows of bytes for rows of weights."""

    def row(shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] // KINDS[kind].width * KINDS[kind].bytes)

    sources = tuple(replace(s, stored=row(s.stored), shape=row(s.shape)) for s in param.sources)
    return replace(param, shape=row(param.shape), sources=sources)
