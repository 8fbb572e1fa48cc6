"""`TensorReader`: what every kind of checkpoint file looks like to `load_params`."""

from __future__ import annotations

from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from vjax.errors import CheckpointError

ALIGNMENT = 64  # bytes: JAX's CPU client adopts a host array that is this aligned instead of copying it


class TensorInfo(NamedTuple):
    """A stored tensor: shape in numpy's order, and the file format's own name of its type (`BF16`, `Q4_K`)."""

    shape: tuple[int, ...]
    dtype: str


class TensorReader(Protocol):
    """Reads single tensors of a checkpoint. Every error is a `CheckpointError` that names the file."""

    path: Path

    def names(self) -> Mapping[str, TensorInfo]:
        """Every tensor, by its name in the file."""
        ...

    def read(self, name: str, rows: slice | None = None) -> np.ndarray:
        """The tensor, or `rows` (step 1) of its first axis, as an array of its own that the caller may keep."""
        ...

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor, for messages."""
        ...

    def stored_bytes(self, name: str) -> int: ...

    def close(self) -> None: ...


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """`np.empty` whose data JAX can adopt on CPU without a second copy."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + nbytes].view(dtype).reshape(shape)


def read_bytes(file: BufferedReader, path: Path, offset: int, nbytes: int) -> np.ndarray:
    """`nbytes` bytes at `offset`, uint8. Plain reads rather than a mapping: a file cut while it is open is an error
    here and a crash there, and mapped pages would count as memory of ours."""
    buffer = aligned_empty((nbytes,), np.dtype(np.uint8))
    try:
        file.seek(offset)
        got = file.readinto(buffer.data)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if got != nbytes:
        raise CheckpointError(
            f"{path}: ends at byte {offset + got}, {offset + nbytes} expected; the file is truncated."
        )
    return buffer


def row_range(shape: tuple[int, ...], rows: slice | None) -> tuple[int, int]:
    """First and last-but-one index of a slice over the first axis (`(0, 1)` for a scalar)."""
    if not shape:
        return 0, 1
    start, stop, step = (rows or slice(None)).indices(shape[0])
    if step != 1:
        raise ValueError(f"rows must have step 1, got {rows}")
    return start, max(stop, start)
