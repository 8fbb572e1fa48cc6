"""`vjax chat`: a conversation."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from vjax.errors import VjaxError
from vjax.terminal import session
from vjax.terminal.backends import Answer, Backend, Message

HELP = "/clear starts anew, /system TEXT sets the system prompt, /undo forgets the last turn, /exit or Ctrl-D ends."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system-prompt", default=None, metavar="TEXT", help="goes before the conversation")
    session.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    with closing(session.open_backend(args)) as backend:
        chat = Chat(backend, session.sampling_of(args), args.system_prompt, args.stats)
        if args.quick is not None:
            chat.say(args.quick)
            return 0
        print(f"{backend.name}. {HELP}", file=sys.stderr)
        for text in session.typed_lines("chat"):
            if text.startswith("/"):
                if not chat.command(text):
                    return 0
                continue
            try:
                chat.say(text)
            except VjaxError as error:
                session.report(error)
    return 0


class Chat:
    """The messages so far."""

    def __init__(self, backend: Backend, sampling: dict[str, Any], system: str | None, stats: bool) -> None:
        self.backend, self.sampling, self.system, self.stats = backend, sampling, system, stats
        self.messages: list[Message] = []

    def say(self, text: str) -> None:
        """Ask and print. A question that fails is forgotten; an answer that was stopped is not."""
        self.messages.append({"role": "user", "content": text})
        head: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        answer = Answer()
        try:
            session.show(self.backend.chat(head + self.messages, self.sampling, answer), answer, self.stats)
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": answer.text})

    def command(self, text: str) -> bool:
        """Whether the conversation goes on."""
        name, _, rest = text.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/clear":
            self.messages.clear()
        elif name == "/undo":
            del self.messages[-2:]
        elif name == "/system":
            self.system = rest.strip() or None
        else:
            print(HELP, file=sys.stderr)
        return True
