"""Products of one row: when the kernel runs, and its logic in Triton's interpreter where torch is there.

`scripts/gpu_test.py` runs the compiled kernel inside whole models, `benches/matvec.py` alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.pallas_kernels import dispatch, matvec
from vjax.pallas_kernels.matvec import api
from vjax.quant import Dense, swiglu


def problem(out: tuple[int, ...], channels: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(channels)
    x, w = rng.normal(size=(1, channels)), rng.normal(size=(*out, channels)) / channels**0.5
    return jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)


@pytest.mark.parametrize("out", [(1,), (5,), (3, 7), (2, 2, 9)])
@pytest.mark.parametrize("channels", [3, 64, 129, 2049])
def test_kernel(out: tuple[int, ...], channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pallas_kernels.interpreter import interpret
    from vjax.pallas_kernels.matvec import triton_kernel

    monkeypatch.setattr(triton_kernel, "call", interpret)
    x, w = problem(out, channels)
    np.testing.assert_allclose(matvec.matmul(x, w), Dense(w).matmul(x), atol=1e-5)


@pytest.mark.parametrize(("width", "channels"), [(1, 3), (17, 129), (40, 2049)])
def test_gated_kernel(width: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pallas_kernels.interpreter import interpret
    from vjax.pallas_kernels.matvec import triton_kernel

    monkeypatch.setattr(triton_kernel, "call", interpret)
    x, w = problem((2, width), channels)
    np.testing.assert_allclose(matvec.swiglu(x, w), swiglu(x, Dense(w)), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtypes", "step", "taken"),
    [
        ((1, 8), ("bfloat16", "bfloat16"), True, True),
        ((1, 8), ("float16", "float16"), True, True),
        ((1, 8), ("bfloat16", "bfloat16"), False, False),
        ((2, 8), ("bfloat16", "bfloat16"), True, False),
        ((8,), ("bfloat16", "bfloat16"), True, False),
        ((1, 1, 8), ("bfloat16", "bfloat16"), True, False),
        ((1, 8), ("float32", "float32"), True, False),
        ((1, 8), ("float32", "bfloat16"), True, False),
        ((1, 4), ("bfloat16", "bfloat16"), True, False),  # a small weight
    ],
)
def test_what_it_takes(
    shape: tuple[int, ...], dtypes: tuple[str, str], step: bool, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "pick", lambda op: "triton")
    monkeypatch.setattr(api, "MIN_BYTES", 4 * 8 * 2)
    x, w = jnp.zeros(shape, dtypes[0]), jnp.zeros((4, shape[-1]), dtypes[1])
    if step:
        with dispatch.tracing_a_step():
            assert matvec.runs(x, w) is taken
    else:
        assert matvec.runs(x, w) is taken


def test_not_on_a_cpu() -> None:
    x, w = jnp.zeros((1, 8), jnp.bfloat16), jnp.zeros((4, 8), jnp.bfloat16)
    with dispatch.tracing_a_step():
        assert not matvec.runs(x, w)
    assert not dispatch.in_step()
