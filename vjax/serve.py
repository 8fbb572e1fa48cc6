"""`vjax serve MODEL`, also `python -m vjax.serve MODEL`."""

from __future__ import annotations

import argparse
import sys

from vjax.cli_args import add_flags, from_flags
from vjax.config import EngineConfig
from vjax.serving.options import ServerOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", metavar="MODEL", nargs="?", help="folder, .gguf file, or a registered name")
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS,
                        help="YAML file with flags; the command line wins")  # fmt: skip
    add_flags(parser, EngineConfig, "engine")
    add_flags(parser, ServerOptions, "server")
    parser.add_argument("--disable-log-requests", dest="enable_log_requests", action="store_false",
                        default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until a signal, or until the engine dies. Returns the exit code."""
    given = {"model": args.model_tag} if args.model_tag else {}
    config = from_flags(EngineConfig, args, **given)
    options = from_flags(ServerOptions, args)
    from vjax.serving.server import serve

    return serve(config, options)


if __name__ == "__main__":
    from vjax.cli import main

    sys.exit(main(["serve", *sys.argv[1:]]))
