"""Times products of one row against XLA's, over weights that no cache holds: the layers of a decode step.

    python benches/matvec.py [OUTxIN ...] [--tiles] [--json out.json]

2xOUTxIN is a SwiGLU's first half. Each graph multiplies by as many different matrices as exceed the second-level cache
several times, each by a row of its own. `--tiles` tries others than the one that vjax takes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import jax
import jax.numpy as jnp
import numpy as np

from vjax.bench import environment
from vjax.pallas_kernels.matvec import triton_kernel
from vjax.pallas_kernels.matvec.triton_kernel import Tile
from vjax.quant import Dense, swiglu

LLAMA_8B = ["6144x4096", "4096x4096", "2x14336x4096", "4096x14336", "128256x4096"]
TILES = [
    Tile(1, 1024, 4), Tile(1, 2048, 4), Tile(1, 2048, 8), Tile(1, 4096, 8), Tile(2, 1024, 4), Tile(2, 2048, 8),
    Tile(4, 512, 2), Tile(4, 1024, 4), Tile(8, 512, 4),
]  # fmt: skip
BYTES, STEPS, ROUNDS = 2e9, 20, 5


def microseconds(multiply: Any, xs: list[jax.Array], ws: list[jax.Array]) -> float:
    """A product's time, the median of several rounds; graphs that follow each other, as steps do."""
    run = jax.jit(lambda xs, ws: [multiply(x, w) for x, w in zip(xs, ws, strict=True)]).lower(xs, ws).compile()
    jax.block_until_ready(run(xs, ws))
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(STEPS):
            found = run(xs, ws)
        jax.block_until_ready(found)
        rounds.append((time.perf_counter() - started) / STEPS / len(ws) * 1e6)
    return sorted(rounds)[ROUNDS // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=LLAMA_8B)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    rows = []
    for text in args.shapes:
        shape = tuple(int(n) for n in text.split("x"))
        count = max(2, int(BYTES / 2 / math.prod(shape)))
        keys = jax.random.split(jax.random.key(0), 2 * count)
        ws = [jax.random.normal(key, shape, jnp.bfloat16) / shape[-1] ** 0.5 for key in keys[:count]]
        xs = [jax.random.normal(key, (1, shape[-1]), jnp.bfloat16) for key in keys[count:]]
        ours = triton_kernel.swiglu if len(shape) == 3 else triton_kernel.matmul
        plain = (lambda x, w: swiglu(x, Dense(w))) if len(shape) == 3 else (lambda x, w: Dense(w).matmul(x))
        want = np.asarray(jax.jit(plain)(xs[0], ws[0]), np.float32)
        runs = {"XLA": plain, "vjax": ours}
        if args.tiles:
            runs |= {str(tuple(tile)): (lambda x, w, tile=tile, ours=ours: ours(x, w, tile)) for tile in TILES}
        for name, multiply in runs.items():
            off = np.abs(np.asarray(jax.jit(multiply)(xs[0], ws[0]), np.float32) - want).max()
            micros = microseconds(multiply, xs, ws)
            rate = 2 * math.prod(shape) / micros / 1e6
            print(f"{text:>16} {name:16} {micros:7.1f} us {rate:5.2f} TB/s, off {off:.1e}", flush=True)
            rows.append({"shape": shape, "what": name, "us": micros, "tb_per_s": rate, "off": float(off)})
    if args.json:
        args.json.write_text(json.dumps({"results": rows, **environment()}, indent=1))


if __name__ == "__main__":
    main()
