"""The `vjax` command. Each sub-command lives in the module of its name, imported only when it is asked for."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vjax.errors import VjaxError
from vjax.version import __version__

COMMANDS = {
    "serve": "serve a model over OpenAI's API",
    "bench": "measure prefill and decode speed offline",
    "export": "write compiled graphs that run without vjax",
    "convert": "write a model as an orbax checkpoint that starts fast",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. Errors that vjax expects are one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="vjax", description="Serves language models from compiled JAX graphs.",
        epilog="`vjax COMMAND --help` shows a command's options.",
    )  # fmt: skip
    parser.add_argument("-v", "--version", action="version", version=f"vjax {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == asked:  # the others' modules, and JAX with them, stay unloaded
            import_module(f"vjax.{name}").add_arguments(sub)
    args = parser.parse_args(words)
    level = os.environ.get("VJAX_LOG", "warning").upper()
    logging.basicConfig(level=getattr(logging, level, logging.WARNING), format="%(levelname)s %(name)s: %(message)s")
    try:
        return int(import_module(f"vjax.{args.command}").run(args))
    except VjaxError as error:
        if level == "DEBUG":
            raise
        print(f"vjax: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
