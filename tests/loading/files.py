"""Tiny checkpoint files, and ways to break them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

STRING, ARRAY, UINT32 = 8, 9, 4


def write_gguf(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, Any] | None = None, kind: str = "F32",
               architecture: str = "llama") -> Path:  # fmt: skip
    """A GGUF file; `metadata` values may be int, float, bool, str or lists of them."""
    writer = GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in (metadata or {}).items():
        writer.add_array(key, value) if isinstance(value, list) else add[type(value)](key, value)
    for name, array in tensors.items():
        quantised = GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        writer.add_tensor(name, quantize(array, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_entry(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf_bytes(entries: list[bytes], metadata: list[bytes] = [], data: int = 0, version: int = 3) -> bytes:  # noqa: B006
    """A file made by hand: raw metadata items and tensor entries, then `data` zero bytes."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(entries), len(metadata)) + b"".join(metadata) + b"".join(entries)
    return head + bytes(-len(head) % 32) + bytes(data)


def broken_variants(data: bytes, header: int, seed: int, flips: int) -> Iterator[bytes]:
    """Cut at every byte of the header and a few of the body; every 8 header bytes in turn made absurd; random flips."""
    cuts = [*range(header), *range(header, len(data), 97)]
    yield from (data[:cut] for cut in cuts)
    for at in range(header):
        for absurd in (b"\xff" * 8, struct.pack("<Q", 1 << 40), struct.pack("<Q", 1 << 62), bytes(8)):
            yield data[:at] + absurd + data[at + 8 :]
    random = np.random.default_rng(seed)
    for _ in range(flips):
        changed = bytearray(data)
        for at in random.integers(0, header, random.integers(1, 5)):
            changed[at] = random.integers(0, 256)
        yield bytes(changed)
