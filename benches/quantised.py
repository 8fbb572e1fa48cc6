"""Times products with packed weights against bfloat16 ones, over weights that no cache holds: the layers of a step.

    python benches/quantised.py [--formats int8,fp8,int4,nvfp4,mxfp4] [--rows 1,64] [OUTxIN ...] [--tiles] [--json FILE]

2xOUTxIN is a SwiGLU's first half. Each graph multiplies by as many different matrices as exceed the second-level cache
several times. The floor is reading the packed bytes at 4.3 TB/s. `--tiles` tries others than those that vjax takes.
Weights are random; "off" is the largest difference from the decoded product in float32, of the largest value.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import jax
import jax.numpy as jnp

from vjax.bench import environment
from vjax.pallas_kernels import dispatch, scaled_matmul
from vjax.pallas_kernels.scaled_matmul import triton_row, triton_tile
from vjax.pallas_kernels.scaled_matmul.api import Flat, _flat
from vjax.quant import Dense, matmul, swiglu

LLAMA_8B = ["6144x4096", "4096x4096", "2x14336x4096", "4096x14336", "128256x4096"]
FORMATS = {  # code, channels of a scale (0: a row's), its type
    "int8": ("int8", 0, "float32"),
    "fp8": ("fp8", 0, "float32"),
    "fp8-block": ("fp8", 128, "float32"),
    "int4": ("int4", 128, "bfloat16"),
    "int4-32": ("int4", 32, "bfloat16"),
    "awq": ("uint4", 128, "float16"),
    "nvfp4": ("fp4", 16, "float8_e4m3fn"),
    "mxfp4": ("fp4", 32, "uint8"),
}
ROW_TILES = [(4, 1024, 4), (8, 1024, 4), (16, 1024, 4), (8, 512, 2), (8, 2048, 8), (4, 256, 1), (8, 256, 1)]
TILES = [
    (64, 128, 4, 4, 1), (64, 128, 4, 4, 4), (64, 256, 4, 4, 1), (64, 256, 4, 4, 4), (128, 128, 4, 4, 1),
    (128, 128, 8, 4, 2), (64, 256, 4, 3, 2), (128, 256, 8, 3, 1), (32, 256, 4, 4, 2),
]  # fmt: skip
BYTES, STEPS, ROUNDS, RATE = 1e9, 20, 5, 4.3e12


def random_codes(name: str, shape: tuple[int, ...], key: jax.Array) -> Flat:
    """A weight of that format on the device, its values about one over the root of its channels."""
    code, group, kind = FORMATS[name]
    out, channels = shape[:-1], shape[-1]
    four, size = code in ("int4", "uint4", "fp4"), channels**-0.5
    data = jax.random.bits(key, (*out, channels // 2 if four else channels), jnp.uint8)
    if code == "fp8":
        data = jax.lax.bitcast_convert_type(data & 0xBF, jnp.float8_e4m3fn)  # below two, and no NaN
    elif code == "int8":
        data = jax.lax.bitcast_convert_type(data, jnp.int8)
    rows = (*out[:-1], -(-out[-1] // 128)) if name == "fp8-block" else out
    size /= {"int8": 74, "int4": 4.6, "uint4": 4.6, "fp4": 3, "fp8": 0.5}[code]
    scale = jax.random.uniform(key, (*rows, -(-channels // (group or channels))), minval=0.5, maxval=1.5)
    tensor_scale, zero = None, None
    if kind == "uint8":
        scale = jnp.round(jnp.log2(scale * size) + 127).astype(jnp.uint8)
    elif kind == "float8_e4m3fn":
        scale, tensor_scale = scale.astype(kind), jnp.float32(size)
    else:
        scale = (scale * size).astype(kind)
    if code == "uint4":
        zero = jnp.full(scale.shape, 8, scale.dtype)
    return Flat(data, scale, zero, tensor_scale, code)


def microseconds(multiply: Any, xs: list[jax.Array], ws: list[Any]) -> float:
    """A product's time, the median of several rounds; graphs that follow each other, as steps do."""
    arrays = [tuple(w)[:4] if isinstance(w, Flat) else (w,) for w in ws]
    code = ws[0].code if isinstance(ws[0], Flat) else None

    def all_of(xs: list[jax.Array], arrays: list[Any]) -> list[jax.Array]:
        with dispatch.tracing_a_step():
            return [multiply(x, Flat(*a, code) if code else Dense(*a)) for x, a in zip(xs, arrays, strict=True)]

    run = jax.jit(all_of).lower(xs, arrays).compile()
    jax.block_until_ready(run(xs, arrays))
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(STEPS):
            found = run(xs, arrays)
        jax.block_until_ready(found)
        rounds.append((time.perf_counter() - started) / STEPS / len(ws) * 1e6)
    return sorted(rounds)[ROUNDS // 2]


def ways(rows: int, gated: bool, tiles: bool) -> dict[str, Any]:
    """Products to try, by name."""
    found: dict[str, Any] = {"": scaled_matmul.swiglu if gated else scaled_matmul.matmul}
    if not tiles:
        return found
    if rows == 1:
        ours = triton_row.swiglu if gated else triton_row.matmul
        return found | {str(tile): partial(ours, tile=triton_row.Tile(*tile)) for tile in ROW_TILES}
    tiled = lambda x, w, tile: triton_tile.matmul(x, _flat(w, 1), triton_tile.Tile(*tile))
    return found | {str(tile): partial(tiled, tile=tile) for tile in TILES}


def off(multiply: Any, x: jax.Array, w: Flat, gated: bool) -> float:
    got = jax.jit(lambda x, a: multiply(x, Flat(*a, w.code)))(x, tuple(w)[:4]).astype(jnp.float32)
    with jax.default_matmul_precision("highest"):
        want = jnp.einsum("ti,...i->t...", x.astype(jnp.float32), scaled_matmul.decode(w))
    if gated and got.ndim < want.ndim:
        want = jax.nn.silu(want[:, 0]) * want[:, 1]
    return float(jnp.abs(got.reshape(want.shape) - want).max() / jnp.abs(want).max())


def measure(text: str, rows: int, formats: list[str], tiles: bool) -> list[dict[str, Any]]:
    shape = tuple(int(n) for n in text.split("x"))
    count = max(2, min(24, int(BYTES / math.prod(shape))))
    keys = jax.random.split(jax.random.key(0), 2 * count)
    gated, lines = len(shape) == 3, []
    xs = [jax.random.normal(key, (rows, shape[-1]), jnp.bfloat16) for key in keys[count:]]
    dense = [jax.random.normal(key, shape, jnp.bfloat16) / shape[-1] ** 0.5 for key in keys[:count]]
    plain = microseconds(swiglu if gated else matmul, xs, dense)
    del dense
    print(f"{text:>14} x{rows:<4} bfloat16 {plain:7.1f} us {2 * math.prod(shape) / plain / 1e6:5.2f} TB/s", flush=True)
    for name in formats:
        ws = [random_codes(name, shape, key) for key in keys[:count]]
        size = sum(a.nbytes for a in ws[0][:4] if a is not None)
        for tile, multiply in ways(rows, gated, tiles).items():
            try:
                wrong, took = off(multiply, xs[0], ws[0], gated), microseconds(multiply, xs, ws)
            except Exception as error:  # a tile that does not fit
                print(f"{name} {tile}: {type(error).__name__} {str(error)[:300]}", flush=True)
                continue
            print(
                f"{text:>14} x{rows:<4} {name:9} {tile:22} {took:7.1f} us {size / took / 1e6:5.2f} TB/s "
                f"(floor {size / RATE * 1e6:5.1f}), {plain / took:4.2f} times bfloat16, off {wrong:.4f}", flush=True,
            )  # fmt: skip
            lines.append(dict(shape=shape, rows=rows, format=name, tile=tile, us=took, bf16_us=plain, off=wrong))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: text.split(",")
    parser.add_argument("shapes", nargs="*", default=LLAMA_8B)
    parser.add_argument("--formats", type=words, default=["int8", "fp8", "int4", "nvfp4", "mxfp4"])
    parser.add_argument("--rows", type=lambda text: [int(n) for n in text.split(",")], default=[1, 64])
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    lines = []
    for rows in args.rows:
        for text in args.shapes:
            lines += measure(text, rows, args.formats, args.tiles)
    print("\nformat: times bfloat16 over all shapes (tiles as chosen)")
    for name in args.formats:
        for rows in args.rows:
            own = [line for line in lines if (line["format"], line["rows"], line["tile"]) == (name, rows, "")]
            if own:
                ratio = sum(line["bf16_us"] for line in own) / sum(line["us"] for line in own)
                print(f"{name:9} x{rows:<4} {ratio:4.2f}, off {max(line['off'] for line in own):.4f}")
    if args.json:
        args.json.write_text(json.dumps({"results": lines, **environment()}, indent=1))


if __name__ == "__main__":
    main()
