"""Times a mixture's products on a GPU: placing the rows, gate and up with the activation, down.

    python benches/grouped_matmul.py [--tokens 1,8,64,4096] [--experts 128 --each 8 --inner 768 --width 2048] [--tiles]
                                     [--json FILE]

Experts are drawn at random, so that few tokens go to different ones. Each graph works through as many layers' weights
as exceed the second-level cache several times. The floor is what must be read of the weights at 4.3 TB/s, or the
arithmetic at 740 TFLOP/s, whichever takes longer. `--tiles` tries others than those that vjax takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import jax
import jax.numpy as jnp
import numpy as np

from vjax.bench import environment
from vjax.pallas_kernels import dispatch
from vjax.pallas_kernels.grouped_matmul import Groups, group_rows, triton_kernel
from vjax.pallas_kernels.grouped_matmul.triton_kernel import Tile

STEPS, ROUNDS, BYTES = 10, 5, 3e10
FEW = [
    Tile(16, 128, 4, 4), Tile(16, 256, 4, 3), Tile(16, 256, 4, 4), Tile(16, 512, 4, 2), Tile(16, 256, 2, 3),
    Tile(32, 128, 4, 4), Tile(32, 256, 4, 3), Tile(64, 128, 4, 4), Tile(64, 128, 4, 5),
]  # fmt: skip
MANY = [
    Tile(64, 64, 4, 3), Tile(64, 64, 8, 3), Tile(64, 64, 8, 4), Tile(128, 64, 8, 3), Tile(128, 64, 8, 4),
    Tile(64, 128, 8, 2), Tile(128, 32, 8, 4),
]  # fmt: skip


def seconds(run: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
    """One call's time, the median of several rounds of calls that follow each other."""
    jax.block_until_ready(run(x))
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(STEPS):
            found = run(x)
        jax.block_until_ready(found)
        rounds.append((time.perf_counter() - started) / STEPS)
    return sorted(rounds)[ROUNDS // 2]


class Weights:
    """A mixture's experts in several layers."""

    def __init__(self, experts: int, inner: int, width: int) -> None:
        self.experts, self.inner, self.width = experts, inner, width
        self.layers = max(2, int(BYTES / (6 * experts * inner * width)))
        keys = jax.random.split(jax.random.key(0), 2 * self.layers)
        normal = lambda key, *shape: jax.random.normal(key, shape, jnp.bfloat16) / shape[-1] ** 0.5
        self.gate_up = [normal(key, experts, 2, inner, width) for key in keys[: self.layers]]
        self.down = [normal(key, experts, width, inner) for key in keys[self.layers :]]


def measure(w: Weights, tokens: int, each: int, tiles: bool) -> list[dict[str, Any]]:
    """Lines of what was measured for a step of `tokens`."""
    rng, rows = np.random.default_rng(tokens), []
    ids = jnp.asarray(np.stack([rng.permutation(w.experts)[:each] for _ in range(tokens)]), jnp.int32)
    touched, routed = len(np.unique(ids)), tokens * each
    place = jax.jit(lambda ids: [group_rows((ids + i) % w.experts, w.experts).place for i in range(w.layers)])
    with dispatch.tracing_a_step():
        groups = group_rows(ids, w.experts)
        placing = seconds(place, ids) / w.layers

    def line(name: str, what: str, took: float, floor: float) -> None:
        text = f", floor {floor * 1e6:.1f} ({floor / took:.2f})" if floor else ""
        print(f"{tokens:>6} in blocks of {groups.block:3} {name:9} {what:18} {took * 1e6:8.1f} us{text}", flush=True)
        rows.append({"tokens": tokens, "block": groups.block, "what": name, "tile": what, "us": took, "floor": floor})

    line("place", "", placing, 0.0)
    tokens_in = jax.random.normal(jax.random.key(1), (tokens, w.width), jnp.bfloat16)
    laid_in = jax.random.normal(jax.random.key(2), (groups.rows, w.inner), jnp.bfloat16)
    halves: list[tuple[str, Any, list[jax.Array], jax.Array, int]] = [
        ("gate, up", triton_kernel.grouped_swiglu, w.gate_up, tokens_in, 2),
        ("down", partial(triton_kernel.grouped_matmul, lay_out=False), w.down, laid_in, 1),
    ]
    for name, multiply, weights, values, wide in halves:
        products = wide * w.inner * w.width
        floor = max(touched * products * 2 / 4.3e12, 2 * routed * products / 740e12)
        for tile in [None, *(FEW if groups.block <= 32 else MANY)] if tiles else [None]:
            try:
                took = seconds(partial(each_layer(multiply, groups, tile), weights), values) / w.layers
            except Exception as error:  # a tile that does not fit
                print(f"{name} {tile}: {str(error)[:100]}", flush=True)
                continue
            line(name, "as chosen" if tile is None else str(tuple(tile)), took, floor)
    return rows


def each_layer(multiply: Any, groups: Groups, tile: Tile | None) -> Any:
    """The product with each of the weights, as one graph."""
    arrays = groups.place, groups.token, groups.group

    @jax.jit
    def run(weights: list[jax.Array], arrays: tuple[jax.Array, ...], x: jax.Array) -> list[jax.Array]:
        place, token, group = arrays
        laid = Groups(place, token, group, groups.block, True)
        return [multiply(x, w, groups=laid, tile=tile) for w in weights]

    return lambda weights, x: run(weights, arrays, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 64, 256, 4096])
    for name, value in (("experts", 128), ("each", 8), ("inner", 768), ("width", 2048)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    weights = Weights(args.experts, args.inner, args.width)
    rows = [row for tokens in args.tokens for row in measure(weights, tokens, args.each, args.tiles)]
    if args.json:
        args.json.write_text(json.dumps({"results": rows, **environment()}, indent=1))


if __name__ == "__main__":
    main()
