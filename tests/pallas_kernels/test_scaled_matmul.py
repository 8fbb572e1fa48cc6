"""Products with packed codes: what codes mean, when kernels run, their logic in Triton's interpreter where torch is.

`tests/pallas_kernels/test_on_gpu.py` runs the compiled kernels, `benches/quantised.py` times them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vjax.pallas_kernels import dispatch, scaled_matmul
from vjax.pallas_kernels.scaled_matmul import api, reference
from vjax.pallas_kernels.scaled_matmul.reference import FOUR_BITS


class Format(NamedTuple):
    """How `packed` makes a weight: code, channels of a scale (0: all), its type, whether there are zero points."""

    code: str
    group: int
    scale: str = "float32"
    zero: bool = False
    tensor_scale: bool = False
    block: bool = False


FORMATS = [
    Format("int8", 0), Format("int8", 32, "bfloat16", zero=True), Format("float8_e4m3fn", 0, "bfloat16"),
    Format("float8_e4m3fn", 128, block=True), Format("float8_e5m2", 64, tensor_scale=True),
    Format("int4", 32, "float16"), Format("int4", 0), Format("int4", 128, "bfloat16"),
    Format("uint4", 128, "float16", zero=True), Format("uint4", 64),
    Format("fp4", 32, "uint8"), Format("fp4", 16, "float8_e4m3fn", tensor_scale=True), Format("fp4", 0),
]  # fmt: skip


def packed(kind: Format, out: tuple[int, ...], channels: int, seed: int = 0) -> api.Flat:
    """Random codes; weights of about `channels ** -0.5`."""
    rng, group = np.random.default_rng(seed), kind.group or channels
    size = channels**-0.5 / {"int8": 74, "int4": 5, "uint4": 5, "fp4": 3}.get(kind.code, 1)
    if kind.code in FOUR_BITS:
        data = jnp.asarray(rng.integers(0, 256, (*out, channels // 2)), jnp.uint8)
    elif kind.code == "int8":
        data = jnp.asarray(rng.integers(-128, 128, (*out, channels)), jnp.int8)
    else:
        data = jnp.asarray(rng.normal(size=(*out, channels)), kind.code)
    shape = (*out[:-1], -(-out[-1] // 128) if kind.block else out[-1], -(-channels // group))
    if kind.scale == "uint8":
        scale = jnp.asarray(rng.integers(-1, 2, shape) + round(127 + np.log2(size)), jnp.uint8)
    else:
        scale = jnp.asarray(rng.uniform(0.5, 1.5, shape) * (1 if kind.tensor_scale else size), kind.scale)
    zero = jnp.asarray(rng.integers(0, 16, shape), kind.scale) if kind.zero else None
    code = "fp8" if kind.code.startswith("float8") else kind.code
    return api.Flat(data, scale, zero, jnp.float32(size) if kind.tensor_scale else None, code)


def inputs(rows: int, channels: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(rows).normal(size=(rows, channels)), jnp.float32)


@pytest.mark.once
def test_codes_by_hand() -> None:
    bytes_ = jnp.asarray([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], jnp.uint8)
    two = jnp.asarray([[2.0, 10.0]], jnp.float32)
    made = lambda code, scale, **more: api.Flat(bytes_, scale, more.get("zero"), more.get("tensor_scale"), code)
    magnitudes = np.asarray(reference.FP4)
    np.testing.assert_array_equal(
        reference.decode(made("fp4", jnp.asarray([[128, 126]], jnp.uint8)))[0],
        np.concatenate([magnitudes * 2, -magnitudes / 2]),
    )
    np.testing.assert_array_equal(
        reference.decode(made("uint4", two))[0], np.arange(16) * np.repeat([2, 10], 8)
    )  # fmt: skip
    zero, third = jnp.asarray([[3.0, 1.0]]), jnp.float32(0.5)
    np.testing.assert_array_equal(
        reference.decode(made("int4", two, zero=zero, tensor_scale=third))[0],
        (np.arange(16) - 8 - np.repeat([3, 1], 8)) * np.repeat([1, 5], 8),
    )


@pytest.mark.once
@pytest.mark.parametrize(("scale", "shape", "found"), [
    ((7, 4), (7, 64), (1, 16)), ((7, 1), (7, 48), (1, 48)), ((2, 3), (200, 300), (128, 128)),
    ((5, 2, 1), (5, 2, 64), (1, 64)),
])  # fmt: skip
def test_extents(scale: tuple[int, ...], shape: tuple[int, ...], found: tuple[int, int]) -> None:
    assert reference.extent(scale, shape) == found
    assert reference._spread(jnp.ones(scale), shape).shape[-2:] == shape[-2:]


@pytest.mark.once
@pytest.mark.parametrize("scale", [(6, 4), (7, 5), (1, 1), (7, 0)])
def test_scales_that_do_not_fit_are_refused(scale: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="fit no groups"):
        reference.extent(scale, (7 if scale != (1, 1) else 300, 64))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pallas_kernels.interpreter import interpret
    from vjax.pallas_kernels.grouped_matmul import triton_groups
    from vjax.pallas_kernels.scaled_matmul import triton_row, triton_tile

    for module in (triton_row, triton_tile, triton_groups):
        monkeypatch.setattr(module, "call", interpret)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", FORMATS)
def test_one_row(kind: Format) -> None:
    """Three parts of the channels, the last one short, and a program with rows to spare."""
    from vjax.pallas_kernels.scaled_matmul import triton_row

    w, x = packed(kind, (9,), 640), inputs(1, 640)
    got = triton_row.matmul(x, w, triton_row.Tile(4, 256, 1))
    np.testing.assert_allclose(got, reference.matmul(x, w), atol=2e-4)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", [FORMATS[3], FORMATS[8]])
def test_one_row_of_many_axes(kind: Format) -> None:
    w, x = packed(kind, (2, 128), 256), inputs(1, 256)
    np.testing.assert_allclose(scaled_matmul.matmul(x, w), reference.matmul(x, w), atol=2e-4)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", [FORMATS[2], FORMATS[8], FORMATS[11]])
def test_one_gated_row(kind: Format) -> None:
    w, x = packed(kind, (2, 9), 256), inputs(1, 256)
    both = reference.matmul(x, w)
    np.testing.assert_allclose(scaled_matmul.swiglu(x, w), jax.nn.silu(both[:, 0]) * both[:, 1], atol=2e-4)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", [*FORMATS, Format("int4", 48), Format("uint4", 16, zero=True)])
@pytest.mark.parametrize(("rows", "tile"), [(3, (16, 64, 4, 1)), (70, (64, 128, 4, 1, 2))])
def test_rows(kind: Format, rows: int, tile: tuple[int, ...]) -> None:
    from vjax.pallas_kernels.scaled_matmul import triton_tile

    w, x = packed(kind, (70,), 384), inputs(rows, 384)
    got = triton_tile.matmul(x, w, triton_tile.Tile(*tile))
    np.testing.assert_allclose(got, reference.matmul(x, w), atol=1e-5)


@pytest.mark.usefixtures("interpreted")
def test_tails() -> None:
    """Channels that no tile divides, and rows past a block's."""
    w, x = packed(Format("int4", 16, zero=True), (2, 5), 176), inputs(17, 176)
    np.testing.assert_allclose(scaled_matmul.matmul(x, w), reference.matmul(x, w), atol=1e-5)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", [FORMATS[0], FORMATS[3], FORMATS[8], FORMATS[11]])
@pytest.mark.parametrize("tokens", [1, 20])
def test_mixtures(kind: Format, tokens: int) -> None:
    from vjax.pallas_kernels.grouped_matmul import Groups, triton_groups

    ids = np.random.default_rng(tokens).integers(0, 4, (tokens, 2))  # nobody goes to the fifth
    placed = triton_groups.group_rows(jnp.asarray(ids, jnp.int32), 5, 16, ids.size // 16 + min(5, ids.size))
    groups, x = Groups(*placed, 16, True), inputs(tokens, 256)
    gate_up, down = packed(kind, (5, 2, 128), 256), packed(kind, (5, 128 if kind.block else 40), 128)
    both = jnp.einsum("ti,tkaoi->tkao", x, reference.decode(gate_up)[ids])
    want = (jax.nn.silu(both[:, :, 0]) * both[:, :, 1]).reshape(-1, 128)
    active = scaled_matmul.grouped_swiglu(x, gate_up, groups)
    np.testing.assert_allclose(active[groups.place], want, atol=1e-5)
    out = scaled_matmul.grouped_matmul(active, down, groups)[groups.place]
    np.testing.assert_allclose(out, jnp.einsum("ni,noi->no", want, reference.decode(down)[ids.reshape(-1)]), atol=1e-5)


@pytest.mark.parametrize(("shape", "dtype", "step", "taken"), [
    ((1, 32), "bfloat16", True, True), ((1, 32), "float16", True, True), ((1, 32), "bfloat16", False, False),
    ((1, 32), "float32", True, False), ((32,), "bfloat16", True, False), ((1, 1, 32), "bfloat16", True, False),
    ((1, 24), "bfloat16", True, False),
])  # fmt: skip
def test_what_kernels_take(
    shape: tuple[int, ...], dtype: str, step: bool, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "pick", lambda op, obstacle: "reference" if obstacle else "triton")
    x, w = jnp.zeros(shape, dtype), packed(Format("int8", 0), (4,), shape[-1])
    if step:
        with dispatch.tracing_a_step():
            assert scaled_matmul.runs(x, w) is taken
    else:
        assert scaled_matmul.runs(x, w) is taken


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="what a CPU does")
def test_not_on_a_cpu() -> None:
    with dispatch.tracing_a_step():
        assert not scaled_matmul.runs(jnp.zeros((1, 32), jnp.bfloat16), packed(Format("int8", 0), (4,), 32))
