"""Implementations are chosen by platform, by the engine's mesh, or by name."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from vjax.errors import ModelError
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.paged_attention import paged_attention

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="what a CPU does")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    dispatch.choose()


def test_a_cpu_takes_the_reference_and_says_so() -> None:
    dispatch.choose()
    assert dispatch.chosen() == {}
    assert dispatch.pick("paged_attention") == "reference"
    assert dispatch.chosen() == {"paged_attention": "reference"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ModelError, match="flash"):
        dispatch.choose({"flash": "triton"})
    with pytest.raises(ModelError, match="mosaic"):
        dispatch.choose({"paged_attention": "mosaic"})


def test_a_kernel_that_cannot_run_is_refused() -> None:
    dispatch.choose({"paged_attention": "triton"})
    with pytest.raises(ModelError, match="the platform is cpu"):
        dispatch.pick("paged_attention")


def test_cuda_takes_the_kernel_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_missing", lambda: None)
    with dispatch.lowering_for("cuda"):
        assert dispatch.pick("paged_attention") == "triton"
        assert dispatch.pick("paged_attention", "heads are 512 wide") == "reference"
        dispatch.choose(devices=2)
        assert dispatch.pick("paged_attention") == "reference"
        dispatch.choose({"paged_attention": "reference"})
        assert dispatch.pick("paged_attention") == "reference"
    monkeypatch.setattr(dispatch, "_missing", lambda: "jax-triton is not installed")
    dispatch.choose()
    with dispatch.lowering_for("cuda"):
        assert dispatch.pick("paged_attention") == "reference"


def test_latents_have_a_kernel_of_their_own() -> None:
    shape = jax.ShapeDtypeStruct
    q, pool = shape((2, 1, 4, 24), jnp.float32), shape((8, 16, 24), jnp.float32)
    numbers = [shape(size, jnp.int32) for size in ((2, 4), (2,), (3,), (2,))]
    dispatch.choose()
    jax.eval_shape(lambda q, k, *more: paged_attention(q, k, None, *more, decode=True, value_dim=16, scale=1.0),
                   q, pool, *numbers)  # fmt: skip
    assert dispatch.chosen()["latent_attention"] == "reference"
