"""`python -m vjax.serve MODEL` (the same as `vjax serve MODEL`): OpenAI's API over HTTP."""

from __future__ import annotations

import argparse
import sys

from vjax.cli_args import add_dataclass_arguments, from_arguments
from vjax.config import EngineConfig
from vjax.serving.options import ServerOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=None, help="folder, .gguf file, or a registered name")
    add_dataclass_arguments(parser.add_argument_group("server"), ServerOptions)
    add_dataclass_arguments(parser.add_argument_group("engine"), EngineConfig)


def run(args: argparse.Namespace) -> int:
    from vjax.serving.server import serve

    if args.model is not None:
        args.model_option = args.model
    return serve(from_arguments(EngineConfig, args), from_arguments(ServerOptions, args))


if __name__ == "__main__":
    from vjax.cli import main

    sys.exit(main(["serve", *sys.argv[1:]]))
