"""The kernels of multi-head latent attention against the specification, in Triton's interpreter, which needs torch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.pallas_kernels.interpreter import interpret
from tests.pallas_kernels.test_paged_attention import CASES, problem
from vjax.pallas_kernels.paged_attention import api, reference, triton_latent
from vjax.pallas_kernels.paged_attention.triton_decode import Config

OPTIONS: list[dict[str, Any]] = [{}, dict(window=5), dict(softcap=2.0, window=40)]
DECODE = [(9, 1), (0, 1), (300, 1), (64, 1)]


SHAPES = [("decode", 3, (20, 12)), ("mixed", 20, (24, 16)), ("decode", 40, (40, 32))]


@pytest.mark.parametrize(("name", "heads", "dims"), SHAPES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("split", [0, 1000])
def test_as_specified(
    name: str, heads: int, dims: tuple[int, int], options: dict[str, Any], split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_latent, "call", interpret)
    monkeypatch.setattr(triton_latent, "SPLIT", split)
    decode, (dim, value_dim) = name == "decode", dims
    p = problem(DECODE if decode else CASES[name], heads=(1, heads), dim=dim, pad=2)
    q, pool, table = jnp.asarray(p.q), jnp.asarray(p.k_pool[:, :, 0]), jnp.asarray(p.table)
    kv_len, start, positions = jnp.asarray(p.kv_len), jnp.asarray(p.query_start), jnp.asarray(p.positions)
    if decode:
        want = reference.decode_attention(q, pool, None, table, kv_len, scale=0.3, value_dim=value_dim, **options)
    else:
        want = reference.ragged_attention(
            q, pool, None, table, kv_len, start, positions, scale=0.3, value_dim=value_dim, **options
        )  # fmt: skip
    row, seen = api._each_token(kv_len, start, positions, decode)
    got = triton_latent.latent_attention(
        q[:, 0], pool, table, row, seen, value_dim=value_dim, scale=0.3, config=Config(block=16, stages=1), **options
    )
    used = np.asarray(seen) > 0
    np.testing.assert_allclose(got[used], np.asarray(want)[used, 0], atol=2e-5)
    assert not np.asarray(got)[~used].any()
