"""What both commands share: flags, the answer as it comes, and lines typed by a person, with their history."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

from vjax.cli_args import add_flags, from_flags
from vjax.config import EngineConfig
from vjax.errors import VjaxError
from vjax.paths import cache_dir
from vjax.terminal.backends import Answer, Backend, Local, Server

URL = "http://localhost:8000/v1"
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
HISTORY_LINES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quick", metavar="TEXT", default=None, help="one prompt, its answer, and the end")
    parser.add_argument("--url", default=URL, help=f"the server ({URL})")
    parser.add_argument("--model-name", default=None, metavar="NAME", help="the server's first model by default")
    parser.add_argument("--api-key", default=None, metavar="KEY", help="or $VJAX_API_KEY")
    group = parser.add_argument_group("sampling", "the model's own by default")
    group.add_argument("--temperature", type=float, default=None, metavar="X")
    group.add_argument("--top-p", type=float, default=None, metavar="X")
    group.add_argument("--max-tokens", type=int, default=None, metavar="N")
    group.add_argument("--seed", type=int, default=None, metavar="N")
    parser.add_argument("--no-stats", dest="stats", action="store_false", help="no line about each answer's speed")
    add_flags(parser, EngineConfig, "engine, with --model: load it here instead of asking a server", skip=("seed",))


def open_backend(args: argparse.Namespace) -> Backend:
    """With `--model` an engine of our own, otherwise the server's client."""
    if hasattr(args, "model"):
        return Local(from_flags(EngineConfig, args, seed=args.seed or 0))
    return Server(args.url, args.model_name, args.api_key)


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    names = ("temperature", "top_p", "max_tokens", "seed")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def show(pieces: Generator[tuple[str, bool], None, None], answer: Answer, stats: bool) -> None:
    """Print an answer as it comes. Ctrl-C ends the answer, not the program."""
    colours, thinking = sys.stdout.isatty(), False
    try:
        with contextlib.closing(pieces):
            for text, thought in pieces:
                if thought != thinking:
                    thinking = thought
                    print((DIM if thought else PLAIN + "\n") if colours else "", end="")
                print(text, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    finally:
        print(PLAIN if thinking and colours else "", flush=True)
    if stats:
        print(f"{DIM}[{answer.line()}]{PLAIN}" if sys.stderr.isatty() else f"[{answer.line()}]", file=sys.stderr)


def typed_lines(history: str) -> Iterator[str]:
    """What a person types, until Ctrl-D; a line that ends in a backslash goes on. Kept for the next time in the cache
    folder's `history`. From a pipe, every line is one."""
    person = sys.stdin.isatty()
    with _history(history) if person else contextlib.nullcontext():
        while True:
            try:
                text = input("> " if person else "")
                while text.endswith("\\"):
                    text = text[:-1] + "\n" + input(". " if person else "")
            except EOFError:
                print(file=sys.stderr) if person else None
                return
            except KeyboardInterrupt:
                print(file=sys.stderr)
                continue
            if text.strip():
                yield text


@contextlib.contextmanager
def _history(name: str) -> Iterator[None]:
    try:
        import readline
    except ImportError:  # not on every platform
        yield
        return
    path = cache_dir("history", name)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        readline.set_history_length(HISTORY_LINES)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            os.chmod(path, 0o600)  # what people ask is theirs
            readline.write_history_file(path)


def report(error: VjaxError) -> None:
    print(f"vjax: error: {error}", file=sys.stderr)
