"""The native library's paged decode attention against the reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.native import library
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.paged_attention import cpu, reference

pytestmark = pytest.mark.skipif(
    not library.available() or jax.default_backend() != "cpu", reason="no C++ compiler, or this is a GPU"
)


def problem(kv_len: list[int], heads: int, groups: int, dim: int, page_size: int, seed: int = 0) -> tuple:
    """Random q, pools, page table and lengths: pages in a random order, table entries past the end out of range."""
    rng = np.random.default_rng(seed)
    width = max(-(-max(kv_len) // page_size), 1) + 1
    pages = len(kv_len) * width + 1
    table = rng.permutation(np.arange(1, pages))[: len(kv_len) * width].reshape(len(kv_len), width)
    q = rng.standard_normal((len(kv_len), heads, groups, dim))
    k, v = rng.standard_normal((2, pages, page_size, heads, dim))
    floats = [jnp.asarray(a, jnp.float32) for a in (q, k, v)]
    return *floats, jnp.asarray(table, jnp.int32), jnp.asarray(kv_len, jnp.int32)


@pytest.mark.parametrize("kv_len", [[1], [16], [17, 1, 300], [5, 64, 33, 2, 1000]])
@pytest.mark.parametrize(("heads", "groups", "dim"), [(1, 1, 16), (3, 3, 64), (2, 7, 80), (1, 4, 256)])
def test_equals_the_reference(kv_len: list[int], heads: int, groups: int, dim: int) -> None:
    args = problem(kv_len, heads, groups, dim, page_size=16)
    sinks = jax.random.normal(jax.random.key(0), (heads, groups)) * 3
    for options in (dict(), dict(window=1), dict(window=40), dict(softcap=5.0), dict(window=9, sinks=sinks)):
        options = dict(scale=dim**-0.5, **options)
        found = jax.jit(lambda *a, o=options: cpu.decode_attention(*a, **o))(*args)
        np.testing.assert_allclose(found, reference.decode_attention(*args, **options), atol=2e-6)


def test_large_scores_and_unused_rows() -> None:
    q, k, v, table, _ = problem([50, 50], 2, 2, 32, page_size=8)
    kv_len = jnp.array([50, 0])
    found = np.asarray(cpu.decode_attention(q * 1000, k, v, table, kv_len, scale=1.0))
    expected = reference.decode_attention(q[:1] * 1000, k, v, table[:1], kv_len[:1], scale=1.0)
    np.testing.assert_allclose(found[:1], expected, atol=1e-5)
    assert (found[1] == 0).all()


def test_wrong_shapes_and_wild_pages_do_not_crash() -> None:
    q, k, v, table, kv_len = problem([20, 20], 2, 2, 32, page_size=8)
    wild = cpu.decode_attention(q, k, v, table + 10**6, kv_len + 10**6, scale=1.0)
    assert np.isfinite(wild).all()
    with pytest.raises(Exception, match="do not belong together"):
        jax.block_until_ready(cpu.decode_attention(q, k, v, table, kv_len, scale=1.0, sinks=jnp.zeros((2, 1))))
    for bad in ((q[:1], k, v), (q[..., :24], k, v), (q, k[:, :, :1], v), (q, k, v[:3])):
        with pytest.raises(Exception, match="do not belong together"):
            jax.block_until_ready(cpu.decode_attention(*bad, table, kv_len, scale=1.0))


def test_picked_on_this_machine_alone() -> None:
    dispatch.choose()
    assert dispatch.pick("paged_attention", native=None) == "native"
    with dispatch.lowering_for("cpu"):
        assert dispatch.pick("paged_attention", native=None) == "reference"
    dispatch.choose(devices=2)
    assert dispatch.pick("paged_attention", native=None) == "reference"
    dispatch.choose({"paged_attention": "reference"})
    assert dispatch.pick("paged_attention", native=None) == "reference"
    dispatch.choose()
