"""`vjax bench`: offline prefill time and decode rate on random or real weights, through `LLM` like any caller."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vjax import shapes
from vjax.errors import ModelError
from vjax.version import __version__

SHORT = {"llama8b": "llama-3.1-8b", "qwen0.6b": "qwen3-0.6b"}  # names of vLLM's bench that ours is read beside
WORK = ((1, 128), (8, 128), (32, 128), (64, 128), (128, 128), (256, 128), (1, 2048), (32, 1024))
DECODED = 128


@dataclass
class Result:
    """One line: medians are of `repeats` runs; seconds."""

    batch: int
    prompt: int
    prefill: float
    decode_step: float

    def line(self, name: str) -> str:
        return (
            f"RESULT {name} B={self.batch} in={self.prompt} prefill {self.prefill * 1e3:.1f} ms "
            f"({self.batch * self.prompt / self.prefill:.0f} tok/s) decode {self.decode_step * 1e3:.3f} ms/step "
            f"{self.batch / self.decode_step:.0f} tok/s"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", help=f"a model to load, or a shape with random weights: {', '.join([*SHORT, *shapes.names()])}"
    )
    parser.add_argument(
        "--work", default=None, help="batch x prompt pairs such as 1x128,64x128; a standard set by default"
    )
    parser.add_argument("--decode", type=int, default=DECODED, help="tokens to decode")
    parser.add_argument(
        "--repeats",
        type=int,
        default=4,
        help="runs of each; the fastest counts (CUDA graphs are recorded anew in the first few)",
    )
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-model-len", type=int, default=None)
    parser.add_argument("--max-num-seqs", type=int, default=None)
    parser.add_argument("--max-num-batched-tokens", type=int, default=None)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--hf-overrides", type=json.loads, default=None, help="JSON merged over the config")
    parser.add_argument("--json", type=Path, default=None, help="also write results with machine, versions and commit")


def run(args: argparse.Namespace) -> int:
    from vjax.llm import LLM

    work = _work(args.work)
    started = time.perf_counter()
    llm: Any = LLM(**_engine_options(args, work))
    startup = time.perf_counter() - started
    print(f"RESULT {args.model} startup {startup:.1f}s", flush=True)
    vocab = llm.engine.limits.vocab_size
    _generate(llm, *min(work, key=lambda pair: pair[0] * pair[1]), min(args.decode, 8), vocab)
    llm.engine.runner.graphs.wait()
    results = []
    for batch, prompt in work:
        first = min(_generate(llm, batch, prompt, 1, vocab) for _ in range(args.repeats))
        full = min(_generate(llm, batch, prompt, args.decode + 1, vocab) for _ in range(args.repeats))
        results.append(Result(batch, prompt, first, (full - first) / args.decode))
        print(results[-1].line(args.model), flush=True)
    if args.json:
        args.json.write_text(json.dumps(report(args.model, startup, results), indent=1))
    return 0


def report(name: str, startup: float, results: list[Result]) -> dict[str, Any]:
    """Results with what they depend on."""
    return {
        "model": name,
        "startup_seconds": startup,
        "results": [asdict(result) for result in results],
        **environment(),
    }


def environment() -> dict[str, Any]:
    """Machine, versions, commit, date and command: what a figure needs beside it."""
    import jax

    device = jax.devices()[0]
    return {
        "machine": {"device": device.device_kind, "platform": device.platform, "cores": os.cpu_count()},
        "versions": {"vjax": __version__, "jax": jax.__version__, "python": platform.python_version()},
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
    }


def commit() -> str | None:
    """The checkout's commit, where vjax runs from one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5
        )
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _engine_options(args: argparse.Namespace, work: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    longest = max(prompt for _, prompt in work) + args.decode + 1
    options: dict[str, Any] = dict(
        model=args.model,
        dtype=args.dtype,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=args.max_model_len or longest,
        max_num_seqs=args.max_num_seqs or max(batch for batch, _ in work),
        max_num_batched_tokens=args.max_num_batched_tokens,
        gpu_memory_utilization=args.gpu_memory_utilization,
        hf_overrides=args.hf_overrides,
    )
    return options | shape_options(args.model)


def shape_options(name: str) -> dict[str, Any]:
    """What an engine needs for random weights of a shape; nothing for other names."""
    shape = SHORT.get(name, name)
    if shape not in shapes.names():
        return {}
    folder = tempfile.mkdtemp(prefix="vjax-bench-")
    Path(folder, "config.json").write_text(json.dumps(shapes.config(shape)))
    return dict(model=folder, load_format="dummy", skip_tokenizer_init=True)


def _generate(llm: Any, batch: int, prompt: int, tokens: int, vocab: int) -> float:
    """Seconds for `batch` random prompts."""
    from vjax.sampling_params import SamplingParams

    draw = random.Random(batch * 1000 + prompt)
    top = min(30000, vocab)
    prompts = [{"prompt_token_ids": [draw.randrange(10, top) for _ in range(prompt)]} for _ in range(batch)]
    params = SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started


def _work(text: str | None) -> tuple[tuple[int, int], ...]:
    if text is None:
        return WORK
    try:
        pairs = tuple((int(b), int(n)) for b, n in (part.split("x") for part in text.split(",")))
    except ValueError:
        raise ModelError(f"--work must look like 1x128,64x128, got {text!r}.") from None
    return pairs
