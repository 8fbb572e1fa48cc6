"""Times an engine's graphs alone, on random weights, caches and page tables: no scheduler, no tokenizer.

    python -m benches.graph llama8b --decode 1,64 --prefill 128,1024 [--kv 192] [--sampled] [--profile]

A decode step has that many rows, a prefill step one row of that many tokens, in the bucket that holds them. `--sampled`
asks for temperature, top-k and top-p in every row, `--profile` lists the kernels that take the time. A profile shows
kernels one by one (XLA records no CUDA graph while it profiles), so its sum is less than a step.
Prints a line for each step and, with `--json`, writes what `vjax bench` writes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vjax import shapes
from vjax.bench import SHORT, environment
from vjax.config import EngineConfig
from vjax.engine.engine import Engine
from vjax.engine.layout import ROW_PARAMS, Layout
from vjax.engine.runner import Runner
from vjax.engine.state import State

STEPS, ROUNDS, SHOWN = 50, 5, 20


def make_engine(args: argparse.Namespace, batch: int, tokens: int) -> Engine:
    """An engine of the shape on random weights: `batch` rows, prompts of up to `tokens`."""
    shape, layers, kv = args.shape, args.layers, max(args.kv, tokens)
    config = shapes.config(SHORT.get(shape, shape)) | ({"num_hidden_layers": layers} if layers else {})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        return Engine(
            EngineConfig(
                model=folder, load_format="dummy", dtype=args.dtype, max_model_len=kv + 64, max_num_seqs=batch,
                max_num_batched_tokens=max(tokens, 2048), warmup="lazy", kernels=args.kernels,
                num_gpu_blocks_override=batch * (kv // 16 + 6) + 64, skip_tokenizer_init=True,
            )
        )  # fmt: skip


def random_state(engine: Engine, kv: int) -> State:
    """The engine's state, filled: normal keys and values, tokens, and distinct pages in random order for every row."""
    runner, rng = engine.runner, np.random.default_rng(0)
    state, shape = runner.state, runner.shape
    pages = rng.permutation(shape.pages - 1) + 1
    each = -(-(kv + 1) // shape.page_size)
    table = np.zeros(state.page_table.shape, np.int32)
    for row in range(shape.slots):
        table[row, :each] = pages[row * each : (row + 1) * each]

    def noise(pool: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.key(rng.integers(1 << 30)), pool.shape, pool.dtype)

    tokens = jnp.asarray(rng.integers(0, 30000, state.tokens.shape), jnp.int32)
    return State(jax.tree.map(noise, state.cache), tokens, jnp.asarray(table))


def decode_plan(layout: Layout, kv: int, sampled: bool) -> np.ndarray:
    """One step's buffer: every row decodes at position `kv - 1`."""
    buffer, view = empty_plan(layout, sampled)
    view["slot"][:] = np.arange(layout.rows)
    view["kv_len"][:] = view["store"][:] = kv
    return buffer


def prefill_plan(layout: Layout, tokens: int, sampled: bool) -> np.ndarray:
    """One step's buffer: a prompt of `tokens` in the first row."""
    buffer, view = empty_plan(layout, sampled)
    view["slot"][:] = view["kv_len"][:] = view["row"][:] = view["query_start"][0] = 0
    view["kv_len"][0] = view["store"][0] = view["query_start"][1:] = tokens
    view["position"][:tokens] = np.arange(tokens)
    view["ids"][:tokens] = np.random.default_rng(1).integers(0, 30000, tokens)
    return buffer


def empty_plan(layout: Layout, sampled: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A buffer without edits and page updates, and its fields."""
    buffer = np.full(layout.size, -1, np.int32)
    view = layout.views(buffer)
    view["scored"][:] = view["params"][:] = 0
    values = dict(temperature=float(sampled), top_p=0.9 if sampled else 1.0, repetition_penalty=1.0)
    for name, value in values.items():
        view["params"][ROW_PARAMS.index(name)] = np.float32(value).view(np.int32)
    view["params"][ROW_PARAMS.index("top_k")] = 50 if sampled else 0
    return buffer, view


class Timed:
    """A compiled graph, run as the engine runs it, on the runner's state."""

    def __init__(self, runner: Runner, layout: Layout, compiled: Any, buffer: np.ndarray) -> None:
        self.runner, self.layout, self.compiled, self.buffer = runner, layout, compiled, buffer

    def step(self) -> dict[str, jax.Array]:
        result, _ = self.runner.run(self.layout, self.compiled, self.buffer)
        return result

    def seconds(self, steps: int) -> float:
        """A step's time over `steps` that follow each other, as an engine's do."""
        started = time.perf_counter()
        for _ in range(steps):
            result = self.step()
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / steps

    def host(self, steps: int) -> float:
        """What dispatching a step takes where the device waits for it."""
        spent = []
        for _ in range(steps):
            started = time.perf_counter()
            result = self.step()
            spent.append(time.perf_counter() - started)
            jax.block_until_ready(result)
        return sorted(spent)[steps // 2]


def profile(timed: Timed) -> list[str]:
    steps = 10
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            timed.seconds(steps)
        file = next(Path(folder).rglob("*.trace.json.gz"))
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    spent: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for e in events:
        if e.get("ph") == "X" and "GPU" in names.get(e["pid"], "") and "hlo_op" in e.get("args", {}):
            spent[e["name"]] += e["dur"]
            count[e["name"]] += 1
    lines = [f"  kernels {spent.total() / steps / 1e3:.3f} ms a step"]
    lines.append(f"  {sum(count.values()) // steps} kernels; the host takes {timed.host(steps) * 1e3:.3f} ms a step")
    for name, micros in spent.most_common(SHOWN):
        lines.append(f"  {micros / steps / 1e3:.3f} ms x{count[name] // steps} {name[:90]}")
    return lines


def sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*SHORT, *shapes.names()])
    parser.add_argument("--decode", type=sizes, default=[], help="rows, comma-separated")
    parser.add_argument("--prefill", type=sizes, default=[], help="tokens, comma-separated")
    parser.add_argument("--kv", type=int, default=192, help="tokens that every decode row has")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kernels", type=json.loads, default={}, help='such as \'{"grouped_matmul": "triton"}\'')
    parser.add_argument("--layers", type=int, default=None, help="fewer, for a quick look")
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    longest = max([args.kv, *args.prefill])
    engine = make_engine(args, max([1, *args.decode]), longest)
    runner, rows = engine.runner, []
    runner.state = random_state(engine, longest)
    work = [(True, size, args.kv) for size in args.decode] + [(False, size, size) for size in args.prefill]
    for decode, size, kv in work:
        layout, compiled = runner.graphs.take(decode, size)
        buffer = (decode_plan if decode else prefill_plan)(layout, kv, args.sampled)
        timed = Timed(runner, layout, compiled, buffer)
        timed.seconds(5)
        step = sorted(timed.seconds(STEPS) for _ in range(ROUNDS))[ROUNDS // 2]
        temporary = compiled.memory_analysis().temp_size_in_bytes
        name = f"decode B={size} kv={kv}" if decode else f"prefill {kv} tokens in {layout.tokens}"
        print(f"STEP {args.shape} {name} {step * 1e3:.3f} ms, {temporary / 1e6:.0f} MB temporary")
        if args.profile:
            print("\n".join(profile(timed)), flush=True)
        rows.append({"decode": decode, "size": size, "kv": kv, "step": step, "temporary_bytes": temporary})
    if args.json:
        args.json.write_text(json.dumps({"model": args.shape, "results": rows, **environment()}, indent=1))


if __name__ == "__main__":
    main()
