"""The header of a GGUF file: metadata and where each tensor lies. Strict, as the file may come from anywhere."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from vjax.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_NESTING = 4
MAX_NAME = 1 << 16
MAX_ITEMS = 1 << 24  # the largest vocabularies have 300 thousand tokens
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}


class Tensor(NamedTuple):
    """A tensor's type, shape in numpy's order, and its bytes' place in the file."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """`metadata_end`: the byte after the metadata."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    metadata_end: int


class _Cursor:
    """Reads forward over the mapped file; nothing is taken before it is known to be there."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.size = data, path, 0, len(data)

    def fail(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: not a valid GGUF file: {problem}.")

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > self.size - self.at:
            raise self.fail(f"{what} at byte {self.at} needs {nbytes} bytes, {self.size - self.at} are left")

    def take(self, nbytes: int, what: str) -> bytes:
        self.need(nbytes, what)
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str, item_bytes: int) -> int:
        """A count of items of at least `item_bytes` each, refused when the file cannot hold them."""
        value = self.u64(f"number of {what}")
        if value > MAX_ITEMS or value * item_bytes > self.size - self.at:
            raise self.fail(f"{value} {what} do not fit into the file")
        return value

    def name(self, what: str) -> str:
        length = self.u64(f"length of a {what}")
        if length > MAX_NAME:
            raise self.fail(f"{what} of {length} bytes")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} at byte {self.at - length} is not UTF-8") from None

    def string(self, what: str) -> str:
        # Values may hold stray bytes (pieces of a byte-level vocabulary); names may not.
        return self.take(self.u64(f"length of {what}"), what).decode(errors="replace")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what, depth + 1)
        return self.numbers(kind, 1, what)[0]

    def array(self, what: str, depth: int) -> list[Any]:
        if depth > MAX_NESTING:
            raise self.fail(f"{what}: arrays nested deeper than {MAX_NESTING}")
        kind = self.u32(f"{what}: type of array items")
        if kind == STRING:
            return self.strings(self.count(f"items in {what}", 8), what)
        if kind == ARRAY:
            return [self.array(what, depth + 1) for _ in range(self.count(f"items in {what}", 12))]
        return self.numbers(kind, self.count(f"items in {what}", 1), what)

    def strings(self, count: int, what: str) -> list[str]:
        """As `string`, inlined: vocabularies hold hundreds of thousands."""
        data, at, size, length_at = self.data, self.at, self.size, struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            if at + 8 > size:
                raise self.fail(f"{what}: the file ends inside its strings")
            end = at + 8 + length_at(data, at)[0]
            if end > size:
                raise self.fail(f"{what}: string at byte {at} is longer than the file")
            found.append(data[at + 8 : end].decode(errors="replace"))
            at = end
        self.at = at
        return found

    def numbers(self, kind: int, count: int, what: str) -> list[Any]:
        if kind == BOOL:
            flags = self.take(count, what)
            if flags.strip(b"\0\1"):
                raise self.fail(f"{what}: a boolean that is neither 0 nor 1")
            return [flag == 1 for flag in flags]
        if kind not in SCALARS:
            raise self.fail(f"{what}: unknown value type {kind}")
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize, what), dtype).tolist()


def read_header(path: Path) -> Header:
    """Parse and check one file. Raises `CheckpointError` that names the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise CheckpointError(f"{path}: not a GGUF file (it does not start with {MAGIC.decode()!r}).")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(data, path))
    except (OSError, OverflowError) as error:
        raise CheckpointError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _parse(cursor: _Cursor) -> Header:
    cursor.take(4, "magic")
    version = cursor.u32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise cursor.fail("it is big-endian, which is not supported; convert it on a little-endian machine")
        raise cursor.fail(f"version {version}; versions 2 and 3 are supported")
    tensors = cursor.count("tensors", 24)
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count("metadata keys", 13)):
        key = cursor.name("metadata key")
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.u32(f"type of {key!r}"), repr(key))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r}, not a power of two")
    metadata_end = cursor.at
    found: dict[str, Tensor] = {}
    for _ in range(tensors):
        name = cursor.name("tensor name")
        if name in found:
            raise cursor.fail(f"tensor {name!r} appears twice")
        found[name] = _tensor(cursor, name, alignment)
    base = -(-cursor.at // alignment) * alignment
    placed = {name: tensor._replace(start=base + tensor.start) for name, tensor in found.items()}
    _check_places(placed, cursor.size, cursor.fail)
    return Header(metadata, placed, metadata_end)


def _tensor(cursor: _Cursor, name: str, alignment: int) -> Tensor:
    """One tensor's entry, its start still relative to the data section."""
    rank = cursor.u32(f"rank of tensor {name!r}")
    if not 1 <= rank <= 4:
        raise cursor.fail(f"tensor {name!r} has {rank} dimensions; 1 to 4 are possible")
    dims = struct.unpack(f"<{rank}Q", cursor.take(8 * rank, f"shape of tensor {name!r}"))
    number = cursor.u32(f"type of tensor {name!r}")
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise cursor.fail(f"tensor {name!r} has unknown type {number}") from None
    offset = cursor.u64(f"offset of tensor {name!r}")
    size = 1
    for dim in dims:
        size *= dim
    if min(dims) < 1 or size >= 1 << 62:
        raise cursor.fail(f"tensor {name!r} has the impossible shape {dims}")
    if dims[0] % block:
        raise cursor.fail(f"tensor {name!r}: rows of {dims[0]} do not divide into {kind.name} blocks of {block}")
    if offset % alignment:
        raise cursor.fail(f"tensor {name!r}: offset {offset} is not a multiple of the alignment {alignment}")
    return Tensor(kind, dims[::-1], offset, size // block * block_bytes)


def _check_places(tensors: dict[str, Tensor], size: int, fail: Callable[[str], CheckpointError]) -> None:
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.start < end:
            raise fail(f"tensors {before!r} and {name!r} overlap")
        end, before = tensor.start + tensor.nbytes, name
        if end > size:
            raise fail(f"tensor {name!r} ends at byte {end}, the file at {size}; it is truncated")
