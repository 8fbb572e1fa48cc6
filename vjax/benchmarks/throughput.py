"""`vjax bench throughput`: how fast many requests are answered that are all there from the beginning."""

from __future__ import annotations

import argparse

from vjax.benchmarks import offline, workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    workload.add_arguments(parser, file=False)
    parser.add_argument("--no-warmup-run", dest="warmup_run", action="store_false",
                        help="measure the first run, compiling included")  # fmt: skip
    offline.add_engine_arguments(parser, "seed")  # the workload's


def run(args: argparse.Namespace) -> int:
    defaults = {}
    if args.dataset_name == "random":
        most = args.random_prefix_len + (args.input_len + args.output_len) * (1 + args.random_range_ratio)
        defaults["max_model_len"] = int(most) + 3
    options = offline.engine_options(args, **defaults)
    llm = offline.make_llm(options)
    try:
        limits = llm.engine.limits
        asks = workload.make(args, limits.vocab_size, limits.max_model_len)
        if args.warmup_run:
            offline.generate(llm, asks[: 2 * limits.max_num_seqs])
            if options["enable_prefix_caching"] is not False:
                llm.engine.reset_prefix_cache()
        seconds = offline.generate(llm, asks, show=True)
    finally:
        llm.shutdown()
    prompt, output = sum(ask.prompt_tokens or 0 for ask in asks), sum(ask.output_tokens for ask in asks)
    found = {
        "model": options["model"], "num_requests": len(asks), "duration": seconds, "total_input_tokens": prompt,
        "total_output_tokens": output, "request_throughput": len(asks) / seconds,
        "output_throughput": output / seconds, "total_token_throughput": (prompt + output) / seconds,
    }  # fmt: skip
    print(
        f"throughput: {found['request_throughput']:.2f} requests/s, {found['total_token_throughput']:.1f} tokens/s, "
        f"of these {found['output_throughput']:.1f} generated/s ({len(asks)} requests in {seconds:.2f} s)",
        flush=True,
    )
    offline.write_report(args, found)
    return 0
