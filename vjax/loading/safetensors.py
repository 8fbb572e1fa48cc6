"""Hugging Face directories of safetensors files. The `safetensors` package judges each header; reads are ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from vjax.errors import CheckpointError
from vjax.loading.hf_config import read_json_object
from vjax.loading.reader import TensorInfo, TensorReader, read_bytes, row_range

INDEX = "model.safetensors.index.json"
DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64,
    "U64": np.uint64,
    "I32": np.int32,
    "U32": np.uint32,
    "I16": np.int16,
    "U16": np.uint16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class _Entry(NamedTuple):
    file: int
    info: TensorInfo
    start: int
    nbytes: int


class SafetensorsReader:
    """A directory's safetensors files as one set of tensors."""

    def __init__(self, directory: Path, paths: list[Path]) -> None:
        self.path = directory
        self._paths = paths
        self._files: list[BufferedReader] = []
        self._entries: dict[str, _Entry] = {}
        try:
            for number, path in enumerate(paths):
                self._add(number, path)
        except BaseException:
            self.close()
            raise
        self._names = {name: entry.info for name, entry in self._entries.items()}

    def _add(self, number: int, path: Path) -> None:
        for name, entry in _read_header(number, path).items():
            if name in self._entries:
                other = self._paths[self._entries[name].file]
                raise CheckpointError(f"{path}: tensor {name!r} is also in {other.name}; keep one of the two files.")
            self._entries[name] = entry
        self._files.append(path.open("rb"))

    def names(self) -> Mapping[str, TensorInfo]:
        return self._names

    def file_of(self, name: str) -> Path:
        return self._paths[self._entry(name).file]

    def stored_bytes(self, name: str) -> int:
        return self._entry(name).nbytes

    def read(self, name: str, rows: slice | None = None) -> np.ndarray:
        entry, path = self._entry(name), self.file_of(name)
        if entry.info.dtype not in DTYPES:
            raise CheckpointError(f"{path}: tensor {name!r} has dtype {entry.info.dtype}, which is not supported.")
        dtype, shape = np.dtype(DTYPES[entry.info.dtype]), entry.info.shape
        first, last = row_range(shape, rows)
        row = entry.nbytes // max(shape[0], 1) if shape else entry.nbytes
        data = read_bytes(self._files[entry.file], path, entry.start + first * row, (last - first) * row)
        return data.view(dtype).reshape((last - first, *shape[1:]) if shape else ())

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise CheckpointError(f"{self.path}: no tensor {name!r}.")
        return self._entries[name]


def open_safetensors(directory: Path | str) -> TensorReader:
    """The safetensors files of a model directory: those its index names, `model.safetensors`, or the only one there.

    Raises `CheckpointError` naming the file: missing, truncated or corrupt, or a tensor that is stored twice.
    """
    directory = Path(directory)
    index = directory / INDEX
    if index.exists():
        return _open_indexed(directory, index)
    single = directory / "model.safetensors"
    found = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
    if not found:
        raise CheckpointError(f"{directory}: no .safetensors file there.")
    _check_shard_count(found)
    return SafetensorsReader(directory, found)


def _open_indexed(directory: Path, index: Path) -> SafetensorsReader:
    mapping = read_json_object(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(v, str) for v in mapping.values()):
        raise CheckpointError(f"{index}: 'weight_map' must map tensor names to file names.")
    names = sorted(set(mapping.values()))
    outside = [name for name in names if Path(name).name != name or name in (".", "..")]
    if outside:
        raise CheckpointError(f"{index}: names {outside[0]!r}, which is not a file of this directory.")
    absent = [name for name in names if not (directory / name).is_file()]
    if absent:
        raise CheckpointError(f"{index}: names {absent[0]!r}, which is missing ({len(absent)} of {len(names)} files).")
    reader = SafetensorsReader(directory, [directory / name for name in names])
    wrong = [name for name, file in mapping.items() if name not in reader.names() or reader.file_of(name).name != file]
    if wrong:
        reader.close()
        raise CheckpointError(
            f"{directory / mapping[wrong[0]]}: tensor {wrong[0]!r} is not in it, but {INDEX} says so."
        )
    return reader


def _check_shard_count(paths: list[Path]) -> None:
    """Without an index, a name such as `model-00001-of-00003.safetensors` still says how many there must be."""
    for path in paths:
        total = path.stem.rpartition("-of-")[2]
        if "-of-" in path.stem and total.isdigit() and int(total) != len(paths):
            raise CheckpointError(f"{path}: one of {int(total)} files by its name, {len(paths)} found; get the others.")


def _read_header(number: int, path: Path) -> dict[str, _Entry]:
    try:
        with safe_open(path, "np"):  # checks the header: its length, its JSON, and that tensors tile the file
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length), object_pairs_hook=_no_duplicates)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a valid safetensors file: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.") from None
    header.pop("__metadata__", None)
    entries = {}
    for name, item in header.items():
        start, end = item["data_offsets"]
        entries[name] = _Entry(number, TensorInfo(tuple(item["shape"]), item["dtype"]), 8 + length + start, end - start)
    return entries


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is listed twice")
        found[name] = value
    return found
