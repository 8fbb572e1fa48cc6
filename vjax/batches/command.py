"""`vjax run-batch -i INPUT -o OUTPUT --model MODEL`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vjax.cli_args import add_flags, from_flags
from vjax.config import EngineConfig
from vjax.serving.options import ServerOptions

# What a server has and a batch does not.
LISTENING = ("host", "port", "uds", "root_path", "shutdown_timeout", "allow_credentials", "api_key",
             "disable_uvicorn_access_log", "uvicorn_log_level", "ssl_keyfile", "ssl_certfile", "allowed_origins",
             "allowed_methods", "allowed_headers", "enable_request_id_headers")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input-file", type=Path, required=True, help="requests, JSON Lines as OpenAI's batches")
    parser.add_argument("-o", "--output-file", type=Path, required=True,
                        help="answers, in the same order; rows that are there are kept")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever the output holds")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    add_flags(parser, EngineConfig, "engine")
    add_flags(parser, ServerOptions, "server", skip=LISTENING)


def run(args: argparse.Namespace) -> int:
    """0 also when rows are errors: they say what was wrong with their line."""
    import asyncio

    from vjax.batches.run import run_file
    from vjax.frontend.async_llm import AsyncLLM

    config, options = from_flags(EngineConfig, args), from_flags(ServerOptions, args)
    work = run_file(
        AsyncLLM(config), options, args.input_file, args.output_file,
        overwrite=args.overwrite, progress=not args.no_progress,
    )  # fmt: skip
    rows, errors = asyncio.run(work)
    print(f"{rows} rows in {args.output_file}, {errors} new errors", file=sys.stderr)
    return 0
