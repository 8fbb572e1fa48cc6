from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.loading.files import broken_variants
from vjax.errors import CheckpointError
from vjax.loading.safetensors import INDEX, open_safetensors


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def item(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def sharded(folder: Path) -> dict[str, Path]:
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for i, (name, file) in enumerate(files.items()):
        save_file({name: np.full((2, 3), i, np.float32)}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    return {name: folder / file for name, file in files.items()}


@pytest.mark.parametrize(
    "dtype",
    [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_],
)
def test_every_dtype_reads_as_written(dtype: Any, tmp_path: Path) -> None:
    array = np.arange(24).reshape(4, 3, 2).astype(dtype)
    save_file({"t": array, "scalar": np.asarray(1, dtype), "none": np.zeros((0, 3), dtype)}, tmp_path / "m.safetensors")
    reader = open_safetensors(tmp_path)
    assert reader.names()["t"].shape == (4, 3, 2)
    for name, expected in (("t", array), ("scalar", np.asarray(1, dtype)), ("none", np.zeros((0, 3), dtype))):
        found = reader.read(name)
        assert found.dtype == expected.dtype
        assert found.flags.writeable
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(reader.read("t", slice(1, 3)), array[1:3])
    assert reader.stored_bytes("t") == array.nbytes


def test_float8(tmp_path: Path) -> None:
    array = np.arange(8).astype(ml_dtypes.float8_e4m3fn)
    (tmp_path / "m.safetensors").write_bytes(raw({"t": item("F8_E4M3", [8], 0, 8)}, array.tobytes()))
    np.testing.assert_array_equal(open_safetensors(tmp_path).read("t"), array)


def test_an_unaligned_header(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32)
    text = json.dumps({"t": item("F32", [6], 0, 24)}).encode()
    (tmp_path / "m.safetensors").write_bytes(raw(text + b" " * (7 - len(text) % 8), array.tobytes()))
    np.testing.assert_array_equal(open_safetensors(tmp_path).read("t"), array)


def test_shards(tmp_path: Path) -> None:
    paths = sharded(tmp_path)
    reader = open_safetensors(tmp_path)
    assert set(reader.names()) == {"a", "b"}
    assert reader.read("b")[0, 0] == 1
    assert reader.file_of("b") == paths["b"]
    (tmp_path / INDEX).unlink()
    assert set(open_safetensors(tmp_path).names()) == {"a", "b"}  # names of files say enough


def test_a_missing_shard(tmp_path: Path) -> None:
    paths = sharded(tmp_path)
    paths["b"].unlink()
    with pytest.raises(CheckpointError, match=r"index\.json: names 'model-00002-of-00002\.safetensors', .* \(1 of 2"):
        open_safetensors(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(CheckpointError, match=r"model-00001.*: one of 2 files by its name, 1 found"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({"weight_map": {"a": "../../etc/passwd"}}, "is not a file of this directory"),
        ({"weight_map": {"a": ".."}}, "is not a file of this directory"),
        ({"weight_map": {"a": 3}}, "'weight_map' must map"),
        ({"weight_map": {}}, "'weight_map' must map"),
        ({}, "'weight_map' must map"),
        ([], "must hold a JSON object"),
        ({"weight_map": {"z": "model-00001-of-00002.safetensors"}}, "tensor 'z' is not in it, but"),
        ({"weight_map": {"a": "model-00002-of-00002.safetensors"}}, "tensor 'a' is not in it, but"),
    ],
)
def test_an_index_that_lies(index: Any, problem: str, tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=problem):
        open_safetensors(tmp_path)


def test_a_tensor_stored_twice(tmp_path: Path) -> None:
    for file in ("x.safetensors", "y.safetensors"):
        save_file({"t": np.ones(2, np.float32)}, tmp_path / file)
    with pytest.raises(CheckpointError, match=r"y\.safetensors: tensor 't' is also in x\.safetensors"):
        open_safetensors(tmp_path)


T = item("F32", [2], 0, 8)
BROKEN = {
    "empty": b"",
    "short": b"\x01\x02",
    "length beyond the file": raw({"t": T}, bytes(8), length=1 << 20),
    "absurd length": raw({"t": T}, bytes(8), length=(1 << 63) + 5),
    "not JSON": raw(b"{nope}", bytes(8)),
    "not an object": raw([1], bytes(8)),
    "data cut": raw({"t": T}, bytes(4)),
    "data left over": raw({"t": T}, bytes(9)),
    "offsets that overlap": raw({"t": T, "u": item("F32", [2], 4, 12)}, bytes(12)),
    "a hole": raw({"t": T, "u": item("F32", [2], 12, 20)}, bytes(20)),
    "offsets backwards": raw({"t": item("F32", [2], 8, 0)}, bytes(8)),
    "shape and size differ": raw({"t": item("F32", [3], 0, 8)}, bytes(8)),
    "unknown dtype": raw({"t": item("F99", [2], 0, 8)}, bytes(8)),
    "negative shape": raw({"t": item("F32", [-2], 0, 8)}, bytes(8)),
    "listed twice": raw(b'{"t":' + json.dumps(T).encode() + b',"t":' + json.dumps(T).encode() + b"}", bytes(8)),
    "nested deep": raw(b"[" * 100_000, bytes(8)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(BROKEN[name])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a valid safetensors file: .+") as caught:
        open_safetensors(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \.safetensors file there"):
        open_safetensors(tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
        open_safetensors(tmp_path)


def test_broken_headers_never_surprise(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a.weight": np.ones((4, 4), np.float32), "b": np.ones(3, np.float16)}, path)
    data, accepted = path.read_bytes(), 0
    tracemalloc.start()
    for variant in broken_variants(data, 8 + int.from_bytes(data[:8], "little"), seed=0, flips=1500):
        path.write_bytes(variant)
        with contextlib.suppress(CheckpointError):
            reader = open_safetensors(tmp_path)
            for name in reader.names():
                reader.read(name)
            reader.close()
            accepted += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert accepted > 0


def test_a_file_cut_while_open(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"t": np.ones((64, 64), np.float32)}, path)
    reader = open_safetensors(tmp_path)
    with path.open("r+b") as handle:
        handle.truncate(path.stat().st_size - 5000)
    with pytest.raises(CheckpointError, match="the file is truncated"):
        reader.read("t")
