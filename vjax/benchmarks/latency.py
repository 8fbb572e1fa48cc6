"""`vjax bench latency`: how long one batch of equal requests takes, end to end."""

from __future__ import annotations

import argparse
import random

from vjax.benchmarks import offline
from vjax.benchmarks.workload import FIRST_ID, Ask

PERCENTILES = (10, 25, 50, 75, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="(8)")
    parser.add_argument("--input-len", type=int, default=32, metavar="N", help="(32)")
    parser.add_argument("--output-len", type=int, default=128, metavar="N", help="(128)")
    parser.add_argument("--num-iters-warmup", type=int, default=3, metavar="N", help="runs before, not counted (3)")
    parser.add_argument("--num-iters", type=int, default=10, metavar="N", help="(10)")
    offline.add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from vjax.benchmarks.summary import distribution

    offline.positive(args, "batch_size", "input_len", "output_len", "num_iters")
    options = offline.engine_options(
        args, max_num_seqs=args.batch_size, max_model_len=args.input_len + args.output_len, enable_prefix_caching=False
    )
    llm = offline.make_llm(options)
    try:
        vocab, draw = llm.engine.limits.vocab_size, random.Random(0)
        first = min(FIRST_ID, vocab - 1)
        asks = [
            Ask([draw.randrange(first, vocab) for _ in range(args.input_len)], args.input_len, args.output_len)
            for _ in range(args.batch_size)
        ]
        for _ in range(args.num_iters_warmup):
            offline.generate(llm, asks)
        runs = [offline.generate(llm, asks) for _ in range(args.num_iters)]
    finally:
        llm.shutdown()
    found = distribution(runs, PERCENTILES)
    print(f"latency of {args.batch_size} x ({args.input_len} in, {args.output_len} out), {args.num_iters} runs:")
    print("  " + ", ".join(f"{name} {seconds:.4f}" for name, seconds in found.items()) + " s", flush=True)
    shape = {name: getattr(args, name) for name in ("batch_size", "input_len", "output_len")}
    offline.write_report(args, {"model": options["model"], **shape, "latency_seconds": found, "runs": runs})
    return 0
