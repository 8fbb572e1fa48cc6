"""`vjax complete`: continues texts, each for itself."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from vjax.errors import VjaxError
from vjax.terminal import session
from vjax.terminal.backends import Answer, Backend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    sampling = {"max_tokens": 128, **session.sampling_of(args)}
    with closing(session.open_backend(args)) as backend:

        def continued(backend: Backend, text: str) -> None:
            answer = Answer()
            session.show(backend.complete(text, sampling, answer), answer, args.stats)

        if args.quick is not None:
            continued(backend, args.quick)
            return 0
        print(f"{backend.name}. Type the beginning of a text; Ctrl-D ends.", file=sys.stderr)
        for text in session.typed_lines("complete"):
            try:
                continued(backend, text)
            except VjaxError as error:
                session.report(error)
    return 0
