"""Kernels at the sizes of large models, in bfloat16, against their specifications in float32. They need a GPU:

python3 -m pytest --noconftest tests/pallas_kernels
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.layers.rope import Rope, rotate
from vjax.layers.routing import Routing, route
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.grouped_matmul import group_rows, grouped_matmul, grouped_swiglu
from vjax.pallas_kernels.paged_attention import Preparation, append_and_attend, paged_attention, reference

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU")
PAGE, PAGES = 16, 1 << 14


@pytest.fixture(autouse=True)
def _kernels() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")  # of float32, which is what they are compared with
    dispatch.choose(dict.fromkeys(dispatch.KNOWN, "triton"))


def close(got: jax.Array, want: jax.Array, of: float = 0.02) -> None:
    """Within a share of the largest value, as bfloat16 has eight bits."""
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= of * np.abs(want).max()


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def pages(lengths: list[int]) -> tuple[jax.Array, jax.Array]:
    """A table of distinct pages for rows of these lengths, and the lengths."""
    width, free = max(lengths) // PAGE + 1, iter(1 + np.random.default_rng(0).permutation(PAGES - 1))
    table = [[next(free) if at * PAGE < n else 0 for at in range(width)] for n in lengths]
    return jnp.asarray(table, jnp.int32), jnp.asarray(lengths, jnp.int32)


def wide(*arrays: jax.Array) -> list[jax.Array]:
    return [array.astype(jnp.float32) for array in arrays]


@pytest.mark.parametrize("lengths", [[4097], [0, 1, 16, 17, 900, 3000, 31, 4096], list(range(0, 2048, 32))])
@pytest.mark.parametrize(("heads", "groups", "dim"), [(8, 4, 128), (8, 2, 64), (4, 1, 256)])
def test_appending_and_attending(lengths: list[int], heads: int, groups: int, dim: int) -> None:
    rows, (table, kv_len) = len(lengths), pages(lengths)
    qkv, (k, v) = normal(1, rows, heads, groups + 2, dim), (normal(i, PAGES, PAGE, heads, dim) for i in (2, 3))
    q_norm, k_norm = normal(4, dim), normal(5, dim)
    at = jnp.maximum(kv_len - 1, 0)
    tables = Rope(dim).tables(at)
    do = Preparation(*tables, q_norm, k_norm, 1e-6)

    @jax.jit
    def run(qkv: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        found = append_and_attend(qkv, k, v, table, kv_len, do, scale=dim**-0.5)
        assert found is not None
        return found

    got, new_k, new_v = run(qkv, k, v)
    x, k32, v32, qn, kn = wide(qkv, k, v, q_norm, k_norm)
    norm = lambda a, w: a / jnp.sqrt(jnp.mean(a * a, -1, keepdims=True) + 1e-6) * w
    q, key = rotate(norm(x[:, :, :groups], qn), tables), rotate(norm(x[:, :, groups], kn), tables)
    used = np.asarray(kv_len) > 0
    page, place = table[jnp.arange(rows), at // PAGE][used], (at % PAGE)[used]
    k32, v32 = k32.at[page, place].set(key[used]), v32.at[page, place].set(x[:, :, groups + 1][used])
    want = reference.decode_attention(q, k32, v32, table, kv_len, scale=dim**-0.5)
    close(got[used], want[used])
    close(new_k, k32)
    np.testing.assert_array_equal(np.asarray(new_v, np.float32), np.asarray(v32))


@pytest.mark.parametrize("lengths", [[4097], [0, 1, 16, 17, 900, 31], list(range(1, 2048, 32))])
@pytest.mark.parametrize("heads", [128, 20])
def test_latents(lengths: list[int], heads: int) -> None:
    rows, (table, kv_len) = len(lengths), pages(lengths)
    q, pool = normal(1, rows, 1, heads, 576), normal(2, PAGES, PAGE, 576)
    start, at = jnp.arange(rows + 1, dtype=jnp.int32), jnp.maximum(kv_len - 1, 0)
    attend = lambda q, pool: paged_attention(
        q, pool, None, table, kv_len, start, at, decode=True, value_dim=512, scale=0.05
    )
    want = reference.decode_attention(*wide(q, pool), None, table, kv_len, scale=0.05, value_dim=512)
    used = np.asarray(kv_len) > 0
    close(jax.jit(attend)(q, pool)[used], want[used])


def test_a_prompt_of_latents() -> None:
    table, kv_len = pages([700, 300])
    q, pool = normal(1, 640, 1, 128, 576), normal(2, PAGES, PAGE, 576)
    start = jnp.asarray([0, 500, 600], jnp.int32)  # 500 of 700, 100 of 300, 40 of none
    at = jnp.concatenate([jnp.arange(200, 700), jnp.arange(200, 300), jnp.zeros(40)]).astype(jnp.int32)
    rows = table, kv_len, start, at
    attend = lambda q, pool: paged_attention(q, pool, None, *rows, decode=False, value_dim=512, scale=0.05)
    want = reference.ragged_attention(*wide(q, pool), None, *rows, scale=0.05, value_dim=512)
    close(jax.jit(attend)(q, pool)[:600], want[:600])


@pytest.mark.parametrize("tokens", [1, 8, 64, 300, 4096])
@pytest.mark.parametrize(("experts", "each", "inner", "width"), [(128, 8, 768, 2048), (32, 4, 2880, 2880)])
def test_a_mixture(tokens: int, experts: int, each: int, inner: int, width: int) -> None:
    x, logits = normal(1, tokens, width), normal(2, tokens, experts).astype(jnp.float32)
    gate_up, down = normal(3, experts, 2, inner, width) / 45, normal(4, experts, width, inner) / 28
    routing = Routing(each, renormalise=True)

    @jax.jit
    def run(x: jax.Array, logits: jax.Array, gate_up: jax.Array, down: jax.Array) -> tuple[jax.Array, ...]:
        with dispatch.tracing_a_step():
            ids, weights = route(logits, routing)
            groups = group_rows(ids, experts)
            hidden = grouped_swiglu(x, gate_up, groups)
            return ids, weights, grouped_matmul(hidden, down, groups, lay_out=False)[groups.place]

    ids, weights, got = run(x, logits, gate_up, down)
    dispatch.choose(dispatch.REFERENCE)
    want_ids, want_weights = route(logits, routing)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_allclose(weights, want_weights, rtol=1e-5)
    some = np.random.default_rng(0).choice(tokens, min(tokens, 64), replace=False)
    x32, g32, d32 = x.astype(jnp.float32)[some], gate_up.astype(jnp.float32), down.astype(jnp.float32)
    for choice in range(each):
        one = ids[some, choice]
        both = jnp.einsum("ti,taoi->tao", x32, g32[one]).astype(jnp.bfloat16).astype(jnp.float32)
        hidden = (jax.nn.silu(both[:, 0]) * both[:, 1]).astype(jnp.bfloat16).astype(jnp.float32)
        close(got.reshape(tokens, each, width)[some, choice], jnp.einsum("ti,toi->to", hidden, d32[one]))
