"""Checks and times the paged attention kernels on a GPU.

    python benches/paged_attention.py [--check] [--time] [--tune] [--append] [--json FILE]

Without flags it checks and times. Checks compare with dense attention in float32 over awkward shapes; entries that must
not be read are NaN. Times are of one layer, from a graph of several that read different pages of one pool. Bandwidth
counts the keys and values of real tokens; TFLOP/s counts visible pairs. `--append` times configurations of the decode
kernel with all that precedes attention.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from vjax.pallas_kernels.paged_attention import Preparation, reference, triton_append, triton_decode, triton_ragged

REPEATS = 7
POOL_BYTES = 8 << 30  # of keys and values together, over the layers of a timing


@dataclass(frozen=True)
class Case:
    """Rows of (cached, new) tokens over K key/value heads with G queries of D channels each."""

    rows: tuple[tuple[int, int], ...]
    heads: tuple[int, int] = (8, 4)
    dim: int = 128
    dtype: Any = jnp.bfloat16
    page: int = 16
    window: int | None = None
    softcap: float | None = None

    @property
    def decode(self) -> bool:
        return all(new <= 1 for _, new in self.rows)

    def __str__(self) -> str:
        total, new = sum(a + b for a, b in self.rows), sum(b for _, b in self.rows)
        extra = (f" window {self.window}" if self.window else "") + (" softcap" if self.softcap else "")
        kv, groups = self.heads
        return (
            f"{'decode' if self.decode else 'ragged'} rows {len(self.rows)} new {new} keys {total} "
            f"heads {kv * groups}/{kv} x {self.dim} {jnp.dtype(self.dtype).name} page {self.page}{extra}"
        )


def layout(case: Case, rng: np.random.Generator, unused: int = 2) -> dict[str, np.ndarray]:
    """Tables of the rows and of `unused` empty ones; page 0 belongs to nobody."""
    width = max(-(-(a + b) // case.page) for a, b in case.rows) + 3
    counts = [-(-(a + b) // case.page) for a, b in case.rows]
    pages = 1 + rng.permutation(sum(counts))
    table = np.zeros((len(case.rows) + unused, width), np.int32)
    at = 0
    for row, count in enumerate(counts):
        table[row, :count] = pages[at : at + count]
        at += count
    new = [b for _, b in case.rows] + [0] * unused
    positions = np.concatenate([np.arange(a, a + b) for a, b in case.rows])
    return dict(
        page_table=table, kv_len=np.array([a + b for a, b in case.rows] + [0] * unused, np.int32),
        query_start=np.concatenate([[0], np.cumsum(new)]).astype(np.int32), positions=positions.astype(np.int32),
    )  # fmt: skip


def attend(case: Case, q: Any, pool_k: Any, pool_v: Any, f: dict[str, Any], page: int, **options: Any) -> jax.Array:
    common = dict(scale=case.dim**-0.5, window=case.window, softcap=case.softcap, first_page=page, **options)
    if case.decode:
        return triton_decode.decode_attention(q, pool_k, pool_v, f["page_table"], f["kv_len"], **common)
    return triton_ragged.ragged_attention(
        q, pool_k, pool_v, f["page_table"], f["kv_len"], f["query_start"], f["positions"], **common
    )


def check(case: Case, seed: int = 0) -> float:
    """Largest error, relative to the values' size. Raises when something outside the rows is not zero."""
    rng = np.random.default_rng(seed)
    f, padding = layout(case, rng), 0 if case.decode else 5
    kv, groups = case.heads
    count = 1 + sum(-(-(a + b) // case.page) for a, b in case.rows)
    pool = np.full((2, 2 * count, case.page, kv, case.dim), np.nan, np.float32)
    tokens = f["kv_len"].size if case.decode else len(f["positions"]) + padding
    q = np.full((tokens, kv, groups, case.dim), np.nan, np.float32)
    want = np.zeros(q.shape)
    round_off = lambda x: np.asarray(jnp.asarray(x, case.dtype).astype(jnp.float32))
    for row, (cached, new) in enumerate(case.rows):
        n = cached + new
        k, v = round_off(rng.normal(size=(2, n, kv, case.dim)))
        at = f["page_table"][row, np.arange(n) // case.page] + count, np.arange(n) % case.page  # the second layer
        pool[0][at], pool[1][at] = k, v
        for i in range(new):
            token = row if case.decode else f["query_start"][row] + i
            q[token] = round_off(rng.normal(size=q.shape[1:]))
            last = cached + i + 1
            first = max(0, last - case.window) if case.window else 0
            scores = q[token] @ k[first:last].transpose(1, 2, 0) * case.dim**-0.5  # [K, G, n]
            if case.softcap:
                scores = np.tanh(scores / case.softcap) * case.softcap
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            want[token] = weights / weights.sum(-1, keepdims=True) @ v[first:last].transpose(1, 0, 2)
    f["positions"] = np.concatenate([f["positions"], np.full(padding, 7, np.int32)])
    run = jax.jit(lambda q, k, v, f: attend(case, q, k, v, f, count))
    args = (jnp.asarray(q, case.dtype), jnp.asarray(pool[0], case.dtype), jnp.asarray(pool[1], case.dtype))
    f = jax.tree.map(jnp.asarray, f)
    got, again = (np.asarray(run(*args, f).astype(jnp.float32)) for _ in range(2))
    if not np.array_equal(got, again, equal_nan=True):
        raise AssertionError(f"{case}: two runs differ")
    outside = np.isnan(q[:, 0, 0, 0])
    if got[outside].any():
        raise AssertionError(f"{case}: padding is not zero")
    return float(np.abs(got - want).max())


AWKWARD: list[Any] = [(0, 1), (15, 1), (16, 1), (63, 1), (64, 1), (999, 1), (2000, 1)]
RAGGED = ((0, 1), (700, 1), (0, 17), (0, 128), (5, 129), (300, 33), (31, 0), (16, 16))
LIMITS = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2}


def check_cases() -> Iterable[Case]:
    for rows in (tuple(AWKWARD), RAGGED):
        for dim in (64, 80, 96, 128, 192, 256):
            yield Case(rows, dim=dim)
        for dim in (64, 128, 256):
            yield Case(rows, (2, 3), dim, jnp.float32)
        for heads in ((1, 1), (2, 7), (8, 1), (1, 16), (1, 71)):
            yield Case(rows, heads, 64, jnp.float16)
        for window, softcap in ((5, None), (256, None), (None, 20.0), (100, 20.0)):
            yield Case(rows, window=window, softcap=softcap)
        for page in (4, 8, 64, 256):
            yield Case(rows, page=page)
        yield Case(rows, (2, 3), 80, jnp.float32, 4, 100, 20.0)
        yield Case(rows, page=24)
    yield Case(((70000, 1),), (1, 4))
    yield Case(((3000, 200),), (2, 8), 128, window=1000)


@functools.lru_cache(maxsize=1)
def inputs(case: Case) -> tuple[tuple[Any, ...], int, int]:
    """Arguments of a kernel (queries, pools, layout), pages of a layer, and layers."""
    f = jax.tree.map(jnp.asarray, layout(case, np.random.default_rng(0), unused=0))
    kv, groups = case.heads
    count = 1 + sum(-(-(a + b) // case.page) for a, b in case.rows)
    one = 2 * count * case.page * kv * case.dim * jnp.dtype(case.dtype).itemsize
    layers = int(np.clip(POOL_BYTES // one, 4, 32))
    shape = (layers * count, case.page, kv, case.dim)
    make = jax.jit(lambda key: jax.random.normal(key, shape, case.dtype))
    tokens = sum(b for _, b in case.rows)
    q = jax.random.normal(jax.random.key(2), (tokens, kv, groups, case.dim), case.dtype)
    return (q, make(jax.random.key(0)), make(jax.random.key(1)), f), count, layers


def timed(case: Case, kernel: Callable[..., jax.Array]) -> float:
    """Seconds of one layer; `kernel(q, k_pool, v_pool, layout, first_page)`."""
    (q, k, v, f), count, layers = inputs(case)

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, f: dict[str, jax.Array]) -> jax.Array:
        for layer in range(layers):
            q = kernel(q, k, v, f, layer * count)
        return q

    jax.block_until_ready(run(q, k, v, f))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        out = q
        for _ in range(4):
            out = run(out, k, v, f)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - start) / 4 / layers)
    return sorted(times)[REPEATS // 2]


def measure(case: Case, kernel: Callable[..., jax.Array], note: str) -> dict[str, Any]:
    try:
        seconds = timed(case, kernel)
    except Exception as error:  # a variant that does not fit the device
        print(f"{case!s:75s} {note:40s} failed: {str(error)[:150]}", flush=True)
        return {"case": str(case), "note": note, "error": str(error)[:2000]}
    seen = sum(sum(min(a + i + 1, case.window or 1 << 40) for i in range(b)) for a, b in case.rows)
    keys = sum(min(a + b, (case.window or 1 << 40) + b - 1) for a, b in case.rows)
    rate = 2 * keys * case.heads[0] * case.dim * jnp.dtype(case.dtype).itemsize / seconds / 1e12
    flops = 4 * seen * case.heads[0] * case.heads[1] * case.dim / seconds / 1e12
    print(f"{case!s:75s} {note:40s} {seconds * 1e6:8.1f} us {rate:6.2f} TB/s {flops:6.0f} TFLOP/s", flush=True)
    return {"case": str(case), "note": note, "us": seconds * 1e6, "tb_s": rate, "tflop_s": flops}


def plain(case: Case) -> Callable[..., jax.Array]:
    """The reference in the kernels' place."""

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, f: dict[str, jax.Array], first: int) -> jax.Array:
        common = dict(scale=case.dim**-0.5, window=case.window, softcap=case.softcap)
        table = f["page_table"] + first
        if case.decode:
            return reference.decode_attention(q, k, v, table, f["kv_len"], **common)
        return reference.ragged_attention(q, k, v, table, f["kv_len"], f["query_start"], f["positions"], **common)

    return kernel


def ours(case: Case, **options: Any) -> Callable[..., jax.Array]:
    return lambda q, k, v, f, first: attend(case, q, k, v, f, first, **options)


def rows(count: int, cached: int, new: int = 1) -> tuple[tuple[int, int], ...]:
    return ((cached, new),) * count


BIG_DECODE = Case(rows(64, 2047))
BIG_PREFILL = Case(rows(1, 0, 4096))
SPREAD = tuple((int(n), 1) for n in np.random.default_rng(1).integers(16, 4096, 64))
ONE_LONG = Case(((32767, 1), *rows(63, 255)))
TIMES = [
    BIG_DECODE, Case(rows(1, 127)), Case(rows(1, 2047)), Case(rows(1, 32767)), Case(rows(8, 2047)),
    Case(rows(256, 255)), Case(rows(256, 1023)), Case(SPREAD), ONE_LONG,
    Case(rows(64, 2047), (8, 2)), Case(rows(64, 2047), (8, 1), 64), Case(rows(64, 2047), (4, 7)),
    Case(rows(32, 2047), dim=256), Case(rows(64, 4095), window=1024), Case(rows(64, 511), dtype=jnp.float32),
    BIG_PREFILL, Case(rows(4, 0, 1024)), Case(rows(32, 0, 128)), Case(rows(1, 8192, 1024)), Case(rows(1, 0, 512)),
    Case((*rows(63, 1023), (1024, 1985))), Case(rows(1, 0, 4096), dim=64), Case(rows(1, 0, 4096), (4, 2), 256),
    Case(rows(1, 0, 4096), window=1024), Case(rows(1, 0, 1024), dtype=jnp.float32),
]  # fmt: skip


def append_time(rows: int, keys: int, config: triton_decode.Config, heads: tuple[int, int] = (8, 4)) -> float:
    """Seconds of a decode step's attention in one layer, with norms, rope and the cache's new entry."""
    case = Case(((keys - 1, 1),) * rows, heads)
    (_, k, v, f), count, layers = inputs(case)
    qkv = jax.random.normal(jax.random.key(3), (rows, heads[0], heads[1] + 2, case.dim), case.dtype)
    angles = jax.random.normal(jax.random.key(4), (2, rows, case.dim // 2))
    do = Preparation(angles[0], angles[1], False, jnp.ones(case.dim), jnp.ones(case.dim), 1e-6)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def run(k: jax.Array, v: jax.Array, qkv: jax.Array, f: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        for layer in range(layers):
            out, k, v = triton_append.append_and_attend(
                qkv, k, v, f["page_table"], f["kv_len"], do, scale=0.1, first_page=layer * count, config=config
            )  # fmt: skip
            qkv = qkv.at[:, :, : heads[1]].set(out)
        return k, v, qkv

    times = []
    for _ in range(REPEATS):
        jax.block_until_ready(k)
        start = time.perf_counter()
        for _ in range(4):
            k, v, last = run(k, v, qkv, f)
        jax.block_until_ready(last)
        times.append((time.perf_counter() - start) / 4 / layers)
    inputs.cache_clear()  # its pools were donated
    return sorted(times)[REPEATS // 2]


def tune_append() -> None:
    for rows, keys in ((1, 192), (8, 192), (64, 192), (256, 192), (1, 2048), (64, 2048)):
        for block, warps, stages, shortest, programs in (
            (64, 4, 3, 64, 528), (64, 4, 2, 64, 528), (32, 4, 3, 64, 528), (32, 4, 4, 64, 528), (32, 2, 3, 64, 528),
            (64, 4, 3, 256, 528), (64, 4, 3, 128, 264), (32, 4, 3, 256, 528),
        ):  # fmt: skip
            took = append_time(rows, keys, triton_decode.Config(block, warps, stages, shortest, programs))
            floor = rows * keys * 8 * 128 * 2 * 2 / 4.3e12
            note = f"{block=} {warps=} {stages=} {shortest=} {programs=}"
            print(f"append rows {rows} keys {keys} {note} {took * 1e6:.1f} us, floor {floor * 1e6:.1f}", flush=True)


def tune() -> Iterable[dict[str, Any]]:
    """Configurations of the kernels over the cases that matter most."""
    for case in (BIG_DECODE, Case(rows(1, 2047)), Case(rows(8, 2047)), Case(SPREAD), ONE_LONG):
        for block, warps, stages, shortest, programs in (
            (64, 4, 3, 128, 528), (64, 4, 3, 128, 1056), (64, 4, 3, 64, 1056), (64, 4, 7, 128, 528),
            (64, 4, 5, 128, 1056), (32, 4, 5, 128, 1056), (128, 4, 5, 128, 528),
        ):  # fmt: skip
            config = triton_decode.Config(block, warps, stages, shortest, programs)
            note = f"{block=} {warps=} {stages=} {shortest=} {programs=}"
            yield measure(case, ours(case, config=config), note)
    for case in (BIG_PREFILL, Case(rows(1, 0, 512))):
        for queries, block, warps, stages in (
            (128, 128, 8, 3), (128, 128, 8, 5), (128, 64, 8, 5), (64, 64, 4, 5), (64, 32, 4, 7), (128, 32, 4, 5),
        ):  # fmt: skip
            tiles = triton_ragged.Config(queries, block, warps, stages)
            yield measure(case, ours(case, config=tiles), f"{queries=} {block=} {warps=} {stages=}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("check", "time", "tune", "append"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    both = not (args.check or args.time or args.tune or args.append)
    found, wrong = [], 0
    print(jax.devices()[0].device_kind, "jax", jax.__version__, flush=True)
    if args.check or both:
        for case in check_cases():
            try:
                error = check(case)
                bad = not error <= LIMITS[jnp.dtype(case.dtype).name]
                text = f"largest error {error:.1e}"
            except Exception as e:
                bad, text = True, f"{type(e).__name__}: {str(e)[:300]}"
            wrong += bad
            found.append({"case": str(case), "check": text, "ok": not bad})
            print(f"{case!s:75s} {text}" + (" WRONG" if bad else ""), flush=True)
        print(f"{wrong} of {len(found)} checks failed", flush=True)
    if args.append:
        tune_append()
    if args.tune:
        found += list(tune())
    if args.time or both:
        found += [measure(case, ours(case), "kernel") for case in TIMES]
        found += [measure(case, plain(case), "reference") for case in (BIG_DECODE, Case(rows(1, 2047)))]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
