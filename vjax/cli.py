"""The `vjax` command. Each sub command's module is imported only when it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vjax.cli_args import normalise
from vjax.errors import VjaxError
from vjax.version import __version__

# Name -> module with `add_arguments(parser)` and `run(args) -> exit code`, and what it does.
COMMANDS = {
    "serve": ("vjax.serve", "serve a model over OpenAI's HTTP API"),
    "export": ("vjax.export", "write a model's compiled graphs, to run without vjax"),
    "convert": ("vjax.convert", "write a model as a checkpoint that loads without renaming or merging"),
    "plan": ("vjax.plan", "what a model needs: weights, cache, how many requests fit"),
    "bench": ("vjax.bench", "measure prefill and decode offline"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. An error that vjax raises on purpose is one line on stderr, unless `VJAX_LOG=debug`."""
    argv = normalise(sys.argv[1:] if argv is None else argv)
    try:
        parser, run = _parser(argv[0] if argv else "")
        args = parser.parse_args(argv)
        return int(run(args))
    except VjaxError as error:
        if os.environ.get("VJAX_LOG", "").lower() == "debug":
            raise
        print(f"vjax: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush to
        return 1
    except KeyboardInterrupt:
        return 130


def _parser(command: str):  # type: ignore[no-untyped-def]
    parser = argparse.ArgumentParser(
        prog="vjax",
        description="Serves language models from compiled JAX graphs.",
        epilog="`vjax COMMAND --help` lists a command's options.",
    )
    parser.add_argument("--version", "-v", action="version", version=f"vjax {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = None
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == command:
            loaded = import_module(module)
            loaded.add_arguments(sub)
            run = loaded.run
    return parser, run


if __name__ == "__main__":
    sys.exit(main())
