"""The fused addition and norm: its reference, and the kernel's logic in Triton's interpreter where torch is there.

`scripts/gpu_test.py` runs the compiled kernel inside whole models.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.pallas_kernels.add_rms_norm import reference

SHAPES = [(1, 8), (3, 40), (2, 129), (5, 1152)]


def problem(rows: int, width: int) -> list[jax.Array]:
    rng = np.random.default_rng(rows * width)
    x, update = rng.normal(size=(2, rows, width)) * 3
    return [jnp.asarray(a, jnp.float32) for a in (x, update, rng.normal(size=width))]


def expected(x: jax.Array, update: jax.Array, weight: jax.Array, offset: float) -> tuple[np.ndarray, np.ndarray]:
    total = np.asarray(x, np.float64) + np.asarray(update)
    return total, total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * (np.asarray(weight) + offset)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_reference(shape: tuple[int, int], offset: float) -> None:
    args = problem(*shape)
    for got, want in zip(reference.add_rms_norm(*args, 1e-5, offset), expected(*args, offset), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_the_norm_sees_the_rounded_sum() -> None:
    x, update, weight = (a.astype(jnp.bfloat16) for a in problem(3, 40))
    total, normed = reference.add_rms_norm(x, update, weight, 1e-5)
    assert total.dtype == normed.dtype == jnp.bfloat16
    np.testing.assert_array_equal(normed, reference.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernel(shape: tuple[int, int], offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pallas_kernels.interpreter import interpret
    from vjax.pallas_kernels.add_rms_norm import triton_kernel

    monkeypatch.setattr(triton_kernel, "call", interpret)
    args = problem(*shape)
    for got, want in zip(triton_kernel.add_rms_norm(*args, 1e-5, offset), expected(*args, offset), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
