"""Implementations are chosen by platform, by the engine's mesh, or by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vjax.errors import ModelError
from vjax.pallas_kernels import dispatch


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
