"""The packed buffer: both sides see the same fields, apart and aligned."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.engine.layout import Layout

LAYOUTS = [
    Layout(1, 1, True, 64),
    Layout(6, 6, True, 96),
    Layout(16, 3, False, 64),
    Layout(7, 3, False, 64, prompt_logprobs=True),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_the_host_writes_is_what_the_graph_reads(layout: Layout) -> None:
    buffer = np.full(layout.size, -1, np.int32)
    written = {}
    for name, view in layout.views(buffer).items():
        view[...] = np.random.default_rng(len(written)).integers(0, 1 << 30, view.shape)
        written[name] = view.copy()
    read = jax.jit(layout.unpack)(jnp.asarray(buffer))
    assert read.keys() == written.keys()
    for name, values in written.items():
        np.testing.assert_array_equal(read[name], values, err_msg=name)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_fields_are_aligned(layout: Layout) -> None:
    """A kernel may get a field as a view of the buffer, and Triton counts on pointers that 16 bytes divide."""
    assert all(offset * 4 % 16 == 0 for offset, _ in layout.fields.values())
