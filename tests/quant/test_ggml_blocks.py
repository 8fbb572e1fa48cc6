"""Packed GGUF weights: the specification against the `gguf` package, the native products against the specification."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from vjax.native import library
from vjax.pallas_kernels import dispatch
from vjax.quant.ggml_blocks import FEW_ROWS, GGMLBlocks, rounded
from vjax.quant.ggml_kinds import KINDS

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler")

SCALES = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "MXFP4": [], "NVFP4": []}  # fmt: skip  # where a block's float16 numbers lie; others: [0]


def random_blocks(kind: str, out: tuple[int, ...], blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes but for the scales, which are finite: ordinary, subnormal and zero, of either sign."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (*out, blocks, KINDS[kind].bytes), dtype=np.uint8)
    for at in SCALES.get(kind, [0]):
        scales = rng.standard_normal((*out, blocks)) * rng.choice([1e-2, 1e-6, 0.0], (*out, blocks), p=[0.8, 0.1, 0.1])
        data[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if kind == "MXFP4":  # an exponent, of a size that sums can hold
        data[..., 0] = data[..., 0] % 20 + 115
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


def in_a_step(weight: GGMLBlocks, x: jax.Array) -> jax.Array:
    with dispatch.tracing_a_step():
        return weight.matmul(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [False, True])
def test_products(kind: str, rounds: bool) -> None:
    """Further shapes are in `tests/native/sanitized.cc`."""
    out = (3, 97)
    weight, dense = make(kind, out, 2)
    product = jax.jit(in_a_step if rounds else GGMLBlocks.matmul)
    for tokens in (1, 7) if rounds else (7, FEW_ROWS + 1):
        x = np.random.default_rng(tokens).standard_normal((tokens, weight.width)).astype(np.float32)
        if rounds:
            x = np.asarray(rounded(jnp.asarray(x)))  # which rounding again does not change
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


def test_native_rounding_is_bit_equal_to_the_specification() -> None:
    eye = np.zeros((64, 2, KINDS["Q8_0"].bytes), np.uint8)  # the identity, in blocks of 32 with scale 1
    eye[..., :2] = np.ones((64, 2, 1), np.float16).view(np.uint8)
    eye[np.arange(64), np.arange(64) // 32, 2 + np.arange(64) % 32] = 1
    weight = GGMLBlocks(jnp.asarray(eye.reshape(64, -1)), "Q8_0", 64)
    x = np.random.default_rng(2).standard_normal((6, 64)) * [[1], [1], [1e-3], [1e-31], [0], [1e30]]
    x[0] = (np.arange(64) % 32 - 15) * 2 + np.where(np.arange(64) % 32 == 31, 95, 0.5)  # ties: the largest is 127
    x = x.astype(np.float32)
    found = np.asarray(jax.jit(in_a_step)(weight, jnp.asarray(x)))
    np.testing.assert_array_equal(found, jax.jit(rounded)(x))
    assert (np.abs(found - x).max(1) <= 0.5 * np.abs(x).max(1) / 126 + 1e-29).all()


def test_a_number_that_is_not_finite_stays_so() -> None:
    weight, _ = make("Q4_1", (3,), 2)
    x = jnp.ones((3, 64)).at[jnp.arange(3), 40].set(jnp.array([jnp.inf, -jnp.inf, jnp.nan]))
    assert not jnp.isfinite(in_a_step(weight, x)).any()


def test_rounding_can_be_turned_off() -> None:
    weight, dense = make("Q4_1", (6,), 2)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((3, weight.width)), jnp.float32)
    try:
        dispatch.choose({"ggml_matmul": "reference"})
        np.testing.assert_allclose(in_a_step(weight, x), x @ dense.T, atol=1e-5)
        dispatch.choose()
        assert float(jnp.abs(in_a_step(weight, x) - x @ dense.T).max()) > 1e-5
        assert dispatch.chosen() == {"ggml_matmul": "native"}
    finally:
        dispatch.choose()


def test_a_long_step_unpacks_one_weight_at_a_time() -> None:
    weights = [make("Q8_0", (512,), 16, seed)[0] for seed in range(6)]

    def step(weights: list[GGMLBlocks], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = in_a_step(weight, x)
        return x

    compiled = jax.jit(step).lower(weights, jnp.ones((FEW_ROWS + 1, 512))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 3 * 512 * 512 * 4
