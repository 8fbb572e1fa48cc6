"""Norms, rope, the cache's new entry and attention as one kernel, against the layers' own functions in turn, in
Triton's interpreter, which needs torch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.pallas_kernels.interpreter import interpret
from vjax.layers.norms import rms_norm
from vjax.layers.paging import KVPool
from vjax.layers.rope import Rope, rotate
from vjax.pallas_kernels.paged_attention import Preparation, reference, triton_append

PAGE, LAYER, PAGES = 4, 1, 160
LENGTHS = [9, 0, 300, 1, 65, 64, 2, 128]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rope": dict(rope=Rope(16)),
    "norm and rope": dict(rope=Rope(16), norm=True),
    "part of a head, offset norms": dict(rope=Rope(8), norm=True, offset=1.0),
    "neighbours": dict(rope=Rope(16, interleaved=True), norm=True),
    "window, soft cap": dict(rope=Rope(16), window=70, softcap=2.0),
    "sinks": dict(rope=Rope(12, interleaved=True), sinks=True),
}


@pytest.mark.parametrize("heads", [(2, 3), (1, 17)])
@pytest.mark.parametrize("name", VARIANTS)
def test_as_the_layers_do_it_one_by_one(name: str, heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_append, "call", interpret)
    variant = {"rope": None, "norm": False, "offset": 0.0, "window": None, "softcap": None, "sinks": False} | VARIANTS[
        name
    ]
    rng, (kv, groups), dim, rows = np.random.default_rng(5), heads, 16, len(LENGTHS)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    kv_len, width = jnp.asarray(LENGTHS, jnp.int32), 80
    counts = [-(-n // PAGE) for n in LENGTHS]
    own = iter(1 + rng.permutation(PAGES - 1))
    table = jnp.asarray([[next(own) if i < n else 0 for i in range(width)] for n in counts], jnp.int32)
    qkv, pool = normal(rows, kv, groups + 2, dim), KVPool(*normal(2, 2 * PAGES, PAGE, kv, dim), PAGES)
    q_norm, k_norm, sinks = normal(dim), normal(dim), normal(kv, groups)
    position = jnp.maximum(kv_len - 1, 0)
    tables = variant["rope"].tables(position) if variant["rope"] else None
    options = dict(scale=0.3, window=variant["window"], softcap=variant["softcap"])
    options["sinks"] = sinks if variant["sinks"] else None

    q, k, v = qkv[:, :, :groups], qkv[:, :, groups], qkv[:, :, groups + 1]
    if variant["norm"]:
        q, k = rms_norm(q, q_norm, 1e-5, variant["offset"]), rms_norm(k, k_norm, 1e-5, variant["offset"])
    if tables:
        q, k = rotate(q, tables), rotate(k, tables)
    index = table[jnp.arange(rows), position // PAGE] * PAGE + position % PAGE
    written = pool.write(LAYER, jnp.where(kv_len > 0, index, 2**30), k, v)
    want = reference.decode_attention(q, written.k, written.v, table + LAYER * PAGES, kv_len, **options)

    norms = dict(q_norm=q_norm, k_norm=k_norm, eps=1e-5, offset=variant["offset"]) if variant["norm"] else {}
    do = Preparation(*(tables or ()), **norms)
    got, k_pool, v_pool = triton_append.append_and_attend(
        qkv, pool.k, pool.v, table, kv_len, do, first_page=LAYER * PAGES, **options
    )
    used = np.asarray(LENGTHS) > 0
    np.testing.assert_allclose(got[used], want[used], atol=2e-5)
    assert not np.asarray(got)[~used].any()
    np.testing.assert_allclose(k_pool, written.k, atol=2e-6)
    np.testing.assert_array_equal(v_pool, written.v)
