"""GGUF files, single or split. `gguf.quants` turns blocks into float32, a few rows at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from vjax.errors import CheckpointError
from vjax.loading.gguf_header import Header, Tensor, read_header
from vjax.loading.reader import TensorInfo, aligned_empty, read_bytes, row_range

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf")
CHUNK_BYTES = 8 << 20  # of float32, per call of `dequantize`
PLAIN: dict[str, Any] = {
    "F32": np.float32, "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
}  # fmt: skip


class GGUFFile:
    """A GGUF model: `metadata` of the (first) file and the tensors of all. A `TensorReader`."""

    def __init__(self, path: Path, paths: list[Path], headers: list[Header]) -> None:
        self.path = path
        self.metadata: dict[str, Any] = headers[0].metadata
        self._paths = paths
        self._files: list[BufferedReader] = []
        self._tensors: dict[str, tuple[int, Tensor]] = {}
        for number, header in enumerate(headers):
            for name, tensor in header.tensors.items():
                if name in self._tensors:
                    other = paths[self._tensors[name][0]]
                    raise CheckpointError(f"{paths[number]}: tensor {name!r} is also in {other.name}.")
                self._tensors[name] = (number, tensor)
        self._files = [path.open("rb") for path in paths]
        self._names = {name: TensorInfo(t.shape, t.type.name) for name, (_, t) in self._tensors.items()}

    def names(self) -> Mapping[str, TensorInfo]:
        return self._names

    def file_of(self, name: str) -> Path:
        return self._paths[self._tensor(name)[0]]

    def stored_bytes(self, name: str) -> int:
        return self._tensor(name)[1].nbytes

    def read_blocks(self, name: str, rows: slice | None = None) -> np.ndarray:
        """The tensor as stored: uint8 `[*shape[:-1], bytes of a row]`."""
        number, tensor = self._tensor(name)
        first, last = row_range(tensor.shape, rows)
        data = self._bytes(number, tensor, first, last)
        return data.reshape(*_extent(tensor.shape, first, last)[:-1], -1)

    def read(self, name: str, rows: slice | None = None) -> np.ndarray:
        """The tensor in float32 (integers and float64 as they are). Holds one chunk of blocks beside the result."""
        number, tensor = self._tensor(name)
        first, last = row_range(tensor.shape, rows)
        shape = _extent(tensor.shape, first, last)
        if tensor.type.name in PLAIN:
            return self._bytes(number, tensor, first, last).view(PLAIN[tensor.type.name]).reshape(shape)
        out = aligned_empty(shape, np.dtype(np.float32))
        flat = out.reshape(-1, tensor.shape[-1])
        row_bytes = _row_bytes(tensor)
        start = tensor.start + first * (tensor.nbytes // tensor.shape[0])
        step = max(1, CHUNK_BYTES // (4 * tensor.shape[-1]))
        for at in range(0, len(flat), step):
            count = min(step, len(flat) - at)
            blocks = read_bytes(self._files[number], self._paths[number], start + at * row_bytes, count * row_bytes)
            flat[at : at + count] = self._dequantize(name, blocks.reshape(count, row_bytes), tensor.type)
        return out

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _bytes(self, number: int, tensor: Tensor, first: int, last: int) -> np.ndarray:
        row = tensor.nbytes // tensor.shape[0]
        return read_bytes(self._files[number], self._paths[number], tensor.start + first * row, (last - first) * row)

    def _dequantize(self, name: str, blocks: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
        try:
            with np.errstate(all="ignore"):
                return dequantize(blocks, kind)
        except NotImplementedError:
            where = self.file_of(name)
            raise CheckpointError(
                f"{where}: tensor {name!r} has type {kind.name}, which cannot be dequantised."
            ) from None

    def _tensor(self, name: str) -> tuple[int, Tensor]:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: no tensor {name!r}.")
        return self._tensors[name]


def open_gguf(path: Path | str) -> GGUFFile:
    """Open a GGUF file; of a split one (`-00001-of-00003.gguf`) any file, all of which must be there.

    Raises `CheckpointError` that names the file and what is wrong with it.
    """
    path = Path(path)
    match = SHARD.fullmatch(path.name)
    if match is None:
        header = read_header(path)
        count = header.metadata.get("split.count")
        if type(count) is int and count > 1 and header.tensors:
            raise CheckpointError(f"{path}: is one of {count} files; keep their names NAME-00001-of-{count:05d}.gguf.")
        return GGUFFile(path, [path], [header])
    total = int(match["total"])
    paths = [path.with_name(f"{match['stem']}-{i:05d}-of-{total:05d}.gguf") for i in range(1, total + 1)]
    absent = [p for p in paths if not p.is_file()]
    if absent or not paths:
        raise CheckpointError(f"{absent[0] if absent else path}: missing; the model needs all {total} files.")
    headers = [read_header(p) for p in paths]
    _check_split(paths, headers)
    return GGUFFile(path, paths, headers)


def write_vocabulary(path: Path | str, out: Path) -> None:
    """Write a GGUF file that holds the metadata of another one, tokenizer included, and no tensors."""
    path = Path(path)
    end = read_header(path).metadata_end
    with path.open("rb") as source, out.open("wb") as target:
        target.write(source.read(8) + bytes(8))  # magic and version; no tensors
        source.seek(16)
        target.write(source.read(end - 16))


def _check_split(paths: list[Path], headers: list[Header]) -> None:
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        said = (header.metadata.get("split.no"), header.metadata.get("split.count"))
        if said != (number, len(paths)):
            raise CheckpointError(f"{path}: says it is file {said[0]} of {said[1]} (from 0); its name says otherwise.")
    total = headers[0].metadata.get("split.tensors.count")
    found = sum(len(header.tensors) for header in headers)
    if total is not None and total != found:
        raise CheckpointError(f"{paths[0]}: promises {total} tensors over all files, {found} found.")


def _row_bytes(tensor: Tensor) -> int:
    block, block_bytes = GGML_QUANT_SIZES[tensor.type]
    return tensor.shape[-1] // block * block_bytes


def _extent(shape: tuple[int, ...], first: int, last: int) -> tuple[int, ...]:
    return (last - first, *shape[1:])
