"""Packed experts of GPT-OSS: the numbers, against gguf's decoder, and the model, against the same weights unpacked."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file

import vjax
from tests.goldens import load_case
from tests.goldens.weights import Tensors, write_checkpoint
from vjax.errors import CheckpointError
from vjax.loading.mxfp4 import MAGNITUDES, unpacking
from vjax.loading.safetensors import open_safetensors


def pack(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest MXFP4 blocks and scales of `values[..., 32 * n]`."""
    blocks = np.ascontiguousarray(values).reshape(*values.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(blocks).max(-1) / 4))
    scaled = blocks / 2 ** exponent[..., None]
    codes = np.abs(np.abs(scaled)[..., None] - np.array(MAGNITUDES)).argmin(-1) + 8 * (scaled < 0)
    pairs = codes.reshape(*codes.shape[:-1], 16, 2).astype(np.uint8)
    return pairs[..., 0] | pairs[..., 1] << 4, (exponent + 127).astype(np.uint8)


def unpack_by_gguf(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """GGUF has the scale first, and in a byte the numbers i and i + 16 of a block."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    halves = codes[..., :16] | codes[..., 16:] << 4
    packed = np.concatenate([scales[..., None], halves], -1).astype(np.uint8)
    return dequantize(packed, GGMLQuantizationType.MXFP4).reshape(*blocks.shape[:-2], -1)


def test_numbers(tmp_path: Path) -> None:
    blocks = np.arange(2 * 3 * 4 * 16, dtype=np.int64).reshape(2, 3, 4, 16).astype(np.uint8)
    scales = np.random.RandomState(0).randint(1, 252, (2, 3, 4)).astype(np.uint8)
    save_file({"a_blocks": blocks, "a_scales": scales, "b": np.ones(3)}, tmp_path / "model.safetensors")
    reader = unpacking(open_safetensors(tmp_path))
    assert {name: info.shape for name, info in reader.names().items()} == {"a_blocks": (2, 3, 128), "b": (3,)}
    assert reader.stored_bytes("a_blocks") == blocks.size + scales.size
    want = unpack_by_gguf(blocks, scales)
    np.testing.assert_array_equal(reader.read("a_blocks").astype(np.float32), want)
    np.testing.assert_array_equal(reader.read("a_blocks", slice(1, 2)).astype(np.float32), want[1:])
    reader.close()


def test_what_is_not_mxfp4(tmp_path: Path) -> None:
    tensors = {"a_blocks": np.zeros((2, 4, 16), np.uint8), "a_scales": np.zeros((2, 3), np.uint8)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="a_blocks"):
        unpacking(open_safetensors(tmp_path))


def test_packed_experts_are_the_model(tmp_path: Path) -> None:
    golden = load_case("gpt-oss")
    plain: Tensors = {}
    packed: Tensors = {}
    for name, array in golden.tensors().items():
        plain[name] = packed[name] = array
        if name.endswith("_proj") and ".experts." in name:
            del packed[name]
            packed[f"{name}_blocks"], packed[f"{name}_scales"] = pack(array.swapaxes(1, 2))
            numbers = unpack_by_gguf(packed[f"{name}_blocks"], packed[f"{name}_scales"])
            plain[name] = np.ascontiguousarray(numbers.swapaxes(1, 2))
    logits = []
    for folder, tensors in (("plain", plain), ("packed", packed)):
        path = write_checkpoint(tmp_path / folder, golden.config, tensors)
        model, params = vjax.load(path, use_tqdm_on_load=False)
        logits.append(jax.jit(model.apply)(params, jnp.asarray(golden.tokens)))
    np.testing.assert_array_equal(*logits)
    assert 0.01 < np.abs(logits[0] - golden.logits).max() < 5
