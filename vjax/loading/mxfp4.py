"""MXFP4 in safetensors, as GPT-OSS is published: `NAME_blocks[..., n, 16]` holds 4-bit numbers in pairs, the first of
a pair in the low half, and `NAME_scales[..., n]` an exponent for each 32 of them (OCP Microscaling Formats, 1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from vjax.errors import CheckpointError
from vjax.loading.reader import TensorInfo, TensorReader, aligned_empty, row_range

BLOCKS, SCALES = "_blocks", "_scales"
PAIRS = 16  # of a block
BIAS = 127  # of the exponents (E8M0)
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1; the fourth bit is the sign
VALUES = np.array([*MAGNITUDES, *(-value for value in MAGNITUDES)], np.float32)
PAIR = np.stack([VALUES[np.arange(256) & 15], VALUES[np.arange(256) >> 4]], axis=1)  # of each byte


def unpacking(reader: TensorReader) -> TensorReader:
    """`reader`, in which packed tensors appear as `NAME_blocks` with the shape `[..., n * 32]` of their numbers."""
    names = reader.names()
    packed = {n for n in names if n.endswith(BLOCKS) and n.removesuffix(BLOCKS) + SCALES in names}
    return MXFP4Reader(reader, packed) if packed else reader


class MXFP4Reader:
    """Another reader's tensors, of which those named in `packed` are unpacked to bfloat16, which holds them exactly."""

    def __init__(self, reader: TensorReader, packed: set[str]) -> None:
        self.path, self._reader, self._packed = reader.path, reader, packed
        scales = {_scales(name) for name in packed}
        self._names = {name: info for name, info in reader.names().items() if name not in scales}
        for name in packed:
            shape, dtype = self._names[name]
            if dtype != "U8" or len(shape) < 2 or shape[-1] != PAIRS or reader.names()[_scales(name)] != (
                shape[:-1], "U8"
            ):  # fmt: skip
                where = reader.file_of(name)
                raise CheckpointError(f"{where}: tensors {name!r} and {_scales(name)!r} are not MXFP4: bytes "
                                      f"[..., n, {PAIRS}] and [..., n].")  # fmt: skip
            self._names[name] = TensorInfo((*shape[:-2], shape[-2] * 2 * PAIRS), "MXFP4")

    def names(self) -> Mapping[str, TensorInfo]:
        return self._names

    def file_of(self, name: str) -> Path:
        return self._reader.file_of(name)

    def stored_bytes(self, name: str) -> int:
        scales = self._reader.stored_bytes(_scales(name)) if name in self._packed else 0
        return self._reader.stored_bytes(name) + scales

    def read(self, name: str, rows: slice | None = None) -> np.ndarray:
        """One row of the first axis is unpacked at a time."""
        if name not in self._packed:
            return self._reader.read(name, rows)
        shape = self._names[name].shape
        first, last = row_range(shape, rows)
        out = aligned_empty((last - first, *shape[1:]), np.dtype(ml_dtypes.bfloat16))
        for i in range(first, last):
            row = slice(i, i + 1)
            numbers = PAIR[self._reader.read(name, row)]  # [1, ..., n, 16, 2]
            exponents = self._reader.read(_scales(name), row).astype(np.int32) - BIAS
            with np.errstate(over="ignore"):
                out[i - first] = np.ldexp(numbers, exponents[..., None, None]).reshape(shape[1:])
        return out

    def close(self) -> None:
        self._reader.close()


def _scales(name: str) -> str:
    return name.removesuffix(BLOCKS) + SCALES
