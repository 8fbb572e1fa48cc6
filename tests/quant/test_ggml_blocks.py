"""Packed GGUF weights: the specification against the `gguf` package, the native products against the specification."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from vjax.native import library
from vjax.quant.ggml_blocks import FEW_ROWS, KINDS, GGMLBlocks

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler")

SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}  # fmt: skip  # where a block's float16 numbers lie


def random_blocks(kind: str, out: tuple[int, ...], blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes but for the scales, which are finite: ordinary, subnormal and zero, of either sign."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (*out, blocks, KINDS[kind].bytes), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = rng.standard_normal((*out, blocks)) * rng.choice([1e-2, 1e-6, 0.0], (*out, blocks), p=[0.8, 0.1, 0.1])
        data[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return data.reshape(*out, -1)


def reference(data: np.ndarray, kind: str) -> np.ndarray:
    return dequantize(data, GGMLQuantizationType[kind])


def make(kind: str, out: tuple[int, ...], blocks: int, seed: int = 0) -> tuple[GGMLBlocks, np.ndarray]:
    data = random_blocks(kind, out, blocks, seed)
    return GGMLBlocks(jnp.asarray(data), kind, blocks * KINDS[kind].width), reference(data, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_specification_is_bit_equal_to_the_package(kind: str) -> None:
    weight, expected = make(kind, (3, 5), 7)
    assert weight.shape == expected.shape
    np.testing.assert_array_equal(jax.jit(GGMLBlocks.dequantize)(weight), expected)
    ids = jnp.array([[2, 0], [1, 99]])
    np.testing.assert_array_equal(weight.rows(ids), expected[np.array([[2, 0], [1, 2]])])


@pytest.mark.parametrize("kind", KINDS)
def test_native_decoding_is_bit_equal_to_the_specification(kind: str) -> None:
    weight, expected = make(kind, (301,), 3)
    found = jax.ffi.ffi_call("vjax_ggml_dequantize", jax.ShapeDtypeStruct(weight.shape, jnp.float32))(
        weight.data, kind=kind
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("out", "blocks"), [((1,), 1), ((3,), 2), ((2, 3, 5), 1), ((1000,), 3)])
def test_products(kind: str, out: tuple[int, ...], blocks: int) -> None:
    weight, dense = make(kind, out, blocks)
    product = jax.jit(GGMLBlocks.matmul)
    for tokens in (1, 3, 8, FEW_ROWS, FEW_ROWS + 1):
        x = np.random.default_rng(tokens).standard_normal((tokens, weight.width)).astype(np.float32)
        exact = np.tensordot(x.astype(np.float64), dense.astype(np.float64), (1, -1))
        scale = np.tensordot(np.abs(x).astype(np.float64), np.abs(dense).astype(np.float64), (1, -1))
        error = np.abs(np.asarray(product(weight, jnp.asarray(x))) - exact)
        assert error.shape == (tokens, *out)
        assert (error <= 1e-6 * scale + 1e-30).all(), f"{tokens} tokens: {np.max(error / (scale + 1e-30))}"


def test_products_can_be_differentiated_and_batched() -> None:
    weight, dense = make("Q4_1", (6,), 2)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((3, 2, weight.width)), jnp.float32)
    loss = lambda x: jnp.sum(jnp.sin(weight.matmul(x)))
    expected = jax.grad(lambda x: jnp.sum(jnp.sin(x @ dense.T)))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), expected, atol=1e-5)
    np.testing.assert_allclose(jax.vmap(weight.matmul)(x), x @ dense.T, atol=1e-5)
