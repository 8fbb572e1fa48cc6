"""The `vjax` command. Each sub command's module is imported only when it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vjax.cli_args import normalise
from vjax.cli_config import expand
from vjax.errors import VjaxError
from vjax.version import __version__

# Name -> module with `add_arguments(parser)` and `run(args) -> exit code`, and what it does.
COMMANDS = {
    "serve": ("vjax.serve", "serve a model over OpenAI's HTTP API"),
    "export": ("vjax.export", "write a model's compiled graphs, to run without vjax"),
    "convert": ("vjax.convert", "write a model as a checkpoint that loads without renaming or merging"),
    "plan": ("vjax.plan", "what a model needs: weights, cache, how many requests fit"),
    "chat": ("vjax.terminal.chat", "talk to a model, on a server or loaded here"),
    "complete": ("vjax.terminal.complete", "continue texts, on a server or with a model loaded here"),
    "run-batch": ("vjax.batches.command", "answer a file of requests in OpenAI's batch format"),
    "bench": ("vjax.bench", "measure prefill and decode offline"),
    "bench serve": ("vjax.benchmarks.serve", "measure a running server over HTTP"),
    "bench latency": ("vjax.benchmarks.latency", "measure one batch from beginning to end"),
    "bench throughput": ("vjax.benchmarks.throughput", "measure many requests at once, offline"),
    "bench startup": ("vjax.benchmarks.startup", "measure the time from nothing to the first token"),
    "collect-env": ("vjax.collect_env", "print what a bug report needs: versions, devices, settings"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. An error that vjax raises on purpose is one line on stderr, unless `VJAX_LOG=debug`."""
    argv = joined(normalise(sys.argv[1:] if argv is None else argv))
    try:
        argv = expand(argv)
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


def joined(argv: Sequence[str]) -> list[str]:
    """`bench serve` is one word for argparse. A model in a folder of such a name is `./serve`."""
    name = " ".join(argv[:2])
    return [name, *argv[2:]] if name in COMMANDS and " " in name else list(argv)


def _parser(command: str):  # type: ignore[no-untyped-def]
    parser = argparse.ArgumentParser(
        prog="vjax",
        description="Serves language models from compiled JAX graphs.",
        epilog="`vjax COMMAND --help` lists a command's options; `--config FILE` reads them from a YAML file.",
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
