"""`vjax bench startup`: from nothing to the first token, with an empty cache of compiled graphs and with a full one."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from vjax.benchmarks import offline
from vjax.errors import VjaxError

MARK = "STARTUP "
# In a process of its own: engine options as JSON on standard input.
CHILD = "import vjax.benchmarks.startup as startup; startup.child()"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-iters-cold", type=int, default=1, metavar="N",
                        help="starts with an empty compilation cache (1)")  # fmt: skip
    parser.add_argument("--num-iters-warm", type=int, default=2, metavar="N", help="starts with a full one (2)")
    offline.add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from vjax.benchmarks.summary import distribution

    offline.positive(args, "num_iters_cold", "num_iters_warm")
    options = offline.engine_options(args)
    cold, warm = [], []
    for _ in range(args.num_iters_cold):
        with tempfile.TemporaryDirectory(prefix="vjax-startup-") as folder:
            cold.append(start(options, folder))
            if len(cold) == args.num_iters_cold:
                warm = [start(options, folder) for _ in range(args.num_iters_warm)]
    found: dict[str, Any] = {"model": options["model"]}
    for name, starts in (("cold", cold), ("warm", warm)):
        for phase in ("imports", "engine", "first_token", "total"):
            found[f"{name}_{phase}"] = distribution([one[phase] for one in starts], (50,))
        shown = ", ".join(
            f"{phase.replace('_', ' ')} {found[f'{name}_{phase}']['mean']:.2f} s"
            for phase in ("imports", "engine", "first_token", "total")
        )
        print(f"{name} start ({len(starts)}): {shown}", flush=True)
    offline.write_report(args, found)
    return 0


def start(options: dict[str, Any], folder: str) -> dict[str, float]:
    """Seconds by phase of an engine started in a new process, with `folder` for compiled graphs."""
    from vjax.paths import cache_dir

    os.makedirs(cache_dir(), exist_ok=True)
    for shared in ("models", "native"):  # weights and the native library are no part of the question
        if cache_dir(shared).is_dir() and not os.path.lexists(os.path.join(folder, shared)):
            os.symlink(cache_dir(shared), os.path.join(folder, shared))
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(options), stdout=subprocess.PIPE, text=True,
        env={**os.environ, "VJAX_CACHE_DIR": folder},
    )  # fmt: skip
    total = time.perf_counter() - started
    found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not found:
        raise VjaxError(f"the engine did not start (exit code {done.returncode}); what it said is above.")
    return {**json.loads(found[-1].removeprefix(MARK)), "total": total}


def child() -> None:
    moments = [time.perf_counter()]
    options = json.loads(sys.stdin.read())
    from vjax.llm import LLM
    from vjax.sampling_params import SamplingParams

    moments.append(time.perf_counter())
    llm = LLM(**options)
    moments.append(time.perf_counter())
    llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
    moments.append(time.perf_counter())
    phases = [end - begin for begin, end in itertools.pairwise(moments)]
    print(MARK + json.dumps(dict(zip(("imports", "engine", "first_token"), phases, strict=True))), flush=True)
    os._exit(0)  # not waiting for graphs that are being compiled
