from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from tests.loading.files import (
    ARRAY,
    STRING,
    UINT32,
    broken_variants,
    gguf_bytes,
    gguf_entry,
    gguf_string,
    write_gguf,
)
from vjax.errors import CheckpointError
from vjax.loading import gguf as module
from vjax.loading.gguf import open_gguf, write_vocabulary

QUANTISED = sorted(kind.name for kind in quants._type_traits)
METADATA = {
    "a.int": 7,
    "a.float": 0.5,
    "a.bool": True,
    "a.text": "grüße",
    "a.strings": ["x", "", "ünï"],
    "a.ints": [1, 2, 3],
    "a.floats": [0.25, 4.0],
    "a.bools": [True, False],
}


def small(path: Path) -> Path:
    tensors = {"m.weight": np.arange(64, dtype=np.float32).reshape(2, 32), "v.weight": np.ones(5, np.float32)}
    return write_gguf(path, tensors, METADATA)


def raw_types(path: Path, kinds: list[str], rows: int = 6, blocks: int = 2) -> dict[str, np.ndarray]:
    """A file with one tensor of random blocks for every type."""
    writer, random, stored = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0), {}
    for kind in kinds:
        _, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        stored[kind] = random.integers(0, 256, (rows, blocks * block_bytes), np.uint8)
        writer.add_tensor(kind, stored[kind], raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint32)  # NaNs of random blocks compare too


def test_metadata_and_tensors(tmp_path: Path) -> None:
    file = open_gguf(small(tmp_path / "a.gguf"))
    assert {key: file.metadata[key] for key in METADATA} == METADATA
    assert file.metadata["general.architecture"] == "llama"
    assert file.names() == {"m.weight": ((2, 32), "F32"), "v.weight": ((5,), "F32")}
    np.testing.assert_array_equal(file.read("m.weight"), np.arange(64, dtype=np.float32).reshape(2, 32))
    np.testing.assert_array_equal(file.read("m.weight", slice(1, 2)), np.arange(32, 64, dtype=np.float32)[None])
    with pytest.raises(CheckpointError, match=r"a\.gguf: no tensor 'x'"):
        file.read("x")
    file.close()


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_type_is_bit_equal_to_the_package(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = raw_types(tmp_path / "q.gguf", [kind])[kind]
    with np.errstate(all="ignore"):
        expected = quants.dequantize(stored, GGMLQuantizationType[kind])
    file = open_gguf(tmp_path / "q.gguf")
    assert file.names()[kind] == (expected.shape, kind)
    np.testing.assert_array_equal(bits(file.read(kind)), bits(expected))
    np.testing.assert_array_equal(bits(file.read(kind, slice(2, 5))), bits(expected[2:5]))
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * expected.shape[1] * 4)  # four rows, then two
    np.testing.assert_array_equal(bits(file.read(kind)), bits(expected))
    np.testing.assert_array_equal(file.read_blocks(kind), stored)
    np.testing.assert_array_equal(file.read_blocks(kind, slice(1, 3)), stored[1:3])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int16", "int32", "int64"])
def test_plain_types(dtype: str, tmp_path: Path) -> None:
    array = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    writer = gguf.GGUFWriter(tmp_path / "p.gguf", "llama")
    writer.add_tensor("t", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_gguf(tmp_path / "p.gguf").read("t")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_experts_are_read_one_at_a_time(tmp_path: Path) -> None:
    experts = np.random.default_rng(0).standard_normal((4, 3, 32)).astype(np.float32)
    file = open_gguf(write_gguf(tmp_path / "e.gguf", {"e": experts}, kind="Q8_0"))
    whole = file.read("e")
    assert whole.shape == (4, 3, 32)
    np.testing.assert_array_equal(file.read("e", slice(2, 3)), whole[2:3])


def test_a_type_without_dequantisation(tmp_path: Path) -> None:
    raw_types(tmp_path / "q.gguf", ["Q8_K"])
    with pytest.raises(CheckpointError, match=r"q\.gguf: tensor 'Q8_K' has type Q8_K, which cannot be dequantised"):
        open_gguf(tmp_path / "q.gguf").read("Q8_K")


KEY = gguf_string("k")
BROKEN = {
    "not a GGUF file": b"PK\x03\x04" + bytes(60),
    "version 1;": gguf_bytes([], version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "tensors do not fit": b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
    "metadata keys do not fit": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
    "metadata key of": gguf_bytes([], [struct.pack("<Q", 1 << 50) + bytes(16)]),
    "is not UTF-8": gguf_bytes([], [gguf_string(b"\xff") + struct.pack("<IB", 7, 1)]),
    "'k' appears twice": gguf_bytes([], 2 * [KEY + struct.pack("<II", UINT32, 1)]),
    "unknown value type 77": gguf_bytes([], [KEY + struct.pack("<I", 77)]),
    "neither 0 nor 1": gguf_bytes([], [KEY + struct.pack("<IB", 7, 2)]),
    "needs 1125899906842624 bytes": gguf_bytes([], [KEY + struct.pack("<IQ", STRING, 1 << 50)]),
    "items in 'k' do not fit": gguf_bytes([], [KEY + struct.pack("<IIQ", ARRAY, UINT32, 1 << 50)]),
    "longer than the file": gguf_bytes([], [KEY + struct.pack("<IIQQ", ARRAY, STRING, 1, 1 << 63)]),
    "nested deeper": gguf_bytes([], [KEY + struct.pack("<I", ARRAY) + 9 * struct.pack("<IQ", ARRAY, 1) + bytes(64)]),
    "alignment is 24": gguf_bytes([], [gguf_string("general.alignment") + struct.pack("<II", UINT32, 24)]),
    "alignment is 0": gguf_bytes([], [gguf_string("general.alignment") + struct.pack("<II", UINT32, 0)]),
    "alignment is 'x'": gguf_bytes(
        [], [gguf_string("general.alignment") + struct.pack("<I", STRING) + gguf_string("x")]
    ),
    "tensor 't' appears twice": gguf_bytes([gguf_entry("t", (8,)), gguf_entry("t", (8,), 0, 32)], data=64),
    "has 5 dimensions": gguf_bytes([gguf_entry("t", (1,) * 5)], data=64),
    "has 0 dimensions": gguf_bytes([gguf_entry("t", ())], data=64),
    "unknown type 4242": gguf_bytes([gguf_entry("t", (8,), 4242)], data=64),
    "impossible shape": gguf_bytes([gguf_entry("t", (1 << 40, 1 << 40))], data=64),
    r"impossible shape \(0, 8\)": gguf_bytes([gguf_entry("t", (0, 8))], data=64),
    "rows of 33 do not divide into Q8_0": gguf_bytes([gguf_entry("t", (33, 2), 8)], data=256),
    "not a multiple of the alignment": gguf_bytes([gguf_entry("t", (8,), 0, 8)], data=64),
    "'t' and 'u' overlap": gguf_bytes([gguf_entry("t", (16,)), gguf_entry("u", (8,), 0, 32)], data=128),
    "it is truncated": gguf_bytes([gguf_entry("t", (1024,))], data=64),
    "ends at byte": gguf_bytes([gguf_entry("t", (8,), 0, 1 << 40)], data=64),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_file_says_what_is_wrong(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(BROKEN[problem])
    with pytest.raises(CheckpointError, match=problem) as caught:
        open_gguf(path)
    assert "bad.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_empty_and_folder(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    for name in ("absent.gguf", "empty.gguf", "folder.gguf"):
        with pytest.raises(CheckpointError, match=name):
            open_gguf(tmp_path / name)


def test_broken_headers_never_surprise(tmp_path: Path) -> None:
    """Whatever the bytes: a clear error, or a file that reads; never much memory."""
    data = small(tmp_path / "a.gguf").read_bytes()
    header = data.index(b"v.weight") + 40
    path, accepted = tmp_path / "bad.gguf", 0
    tracemalloc.start()
    for variant in broken_variants(data, header, seed=0, flips=2000):
        path.write_bytes(variant)
        with contextlib.suppress(CheckpointError):
            file = open_gguf(path)
            for name in file.names():
                file.read(name)
            file.close()
            accepted += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert accepted > 0  # flips inside names and values are valid files


def test_a_file_cut_while_open(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"m": np.ones((64, 64), np.float32)})
    file = open_gguf(path)
    with path.open("r+b") as handle:
        handle.truncate(path.stat().st_size - 5000)
    with pytest.raises(CheckpointError, match="the file is truncated"):
        file.read("m")


def split(folder: Path, numbers: list[tuple[int, int]], totals: int = 3) -> list[Path]:
    paths = [folder / f"m-{i + 1:05d}-of-{len(numbers):05d}.gguf" for i in range(len(numbers))]
    for i, (path, (number, count)) in enumerate(zip(paths, numbers, strict=True)):
        meta = {"split.no": number, "split.count": count, "split.tensors.count": totals}
        write_gguf(path, {f"t{i}": np.full((2, 2), i, np.float32)}, meta)
    return paths


def test_split_files(tmp_path: Path) -> None:
    paths = split(tmp_path, [(0, 3), (1, 3), (2, 3)])
    for path in paths:
        file = open_gguf(path)
        assert set(file.names()) == {"t0", "t1", "t2"}
        assert file.file_of("t2") == paths[2]
        assert file.read("t2")[0, 0] == 2
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf: missing; the model needs all 3 files"):
        open_gguf(paths[0])


def test_split_files_that_disagree(tmp_path: Path) -> None:
    wrong = split(tmp_path, [(0, 2), (0, 2)], totals=2)
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.gguf: says it is file 0 of 2"):
        open_gguf(wrong[0])
    few = split(tmp_path, [(0, 2), (1, 2)], totals=9)
    with pytest.raises(CheckpointError, match="promises 9 tensors over all files, 2 found"):
        open_gguf(few[0])
    renamed = few[1].rename(tmp_path / "part.gguf")
    with pytest.raises(CheckpointError, match=r"part\.gguf: is one of 2 files"):
        open_gguf(renamed)
    with pytest.raises(CheckpointError, match=r"m-00000-of-00000\.gguf: missing"):
        open_gguf(tmp_path / "m-00000-of-00000.gguf")


def test_vocabulary_alone(tmp_path: Path) -> None:
    source = open_gguf(small(tmp_path / "a.gguf"))
    write_vocabulary(tmp_path / "a.gguf", tmp_path / "tokenizer.gguf")
    copy = open_gguf(tmp_path / "tokenizer.gguf")
    assert copy.metadata == source.metadata
    assert not copy.names()
