"""`vjax chat` and `vjax complete`, against a server and with an engine of their own."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest

from tests.serving.fakes import Running, fake_llm
from vjax import cli
from vjax.config import EngineConfig
from vjax.errors import VjaxError
from vjax.terminal.backends import Answer, Backend, Local, Server
from vjax.terminal.chat import Chat


@pytest.fixture(scope="module", params=["server", "local"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    one: Backend
    if request.param == "server":
        one = Server(request.getfixturevalue("server").url + "/v1", None, None)
    else:
        one = Local(EngineConfig(model="fake"), fake_llm())
    yield one
    one.close()


def test_answers(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    assert backend.name == "fake"
    chat = Chat(backend, {"max_tokens": 4}, "S", stats=True)
    chat.say("ab")
    printed = capsys.readouterr()
    assert printed.out == "Tbc?\n"  # "Sab>", each letter one further
    assert re.search(r"\[first token after \d+\.\d\d s, 4 tokens, \d+\.\d tokens/s\]", printed.err)
    assert chat.messages == [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "Tbc?"}]
    chat.sampling["max_tokens"] = 9
    chat.say("x")
    assert capsys.readouterr().out == "TbcUcd@y?\n"  # the whole conversation is asked
    answer = Answer()
    assert "".join(text for text, _ in backend.complete("12", {"max_tokens": 3}, answer)) == "232"
    assert (answer.tokens, answer.text) == (3, "232")


def test_a_bad_request_is_forgotten(backend: Backend) -> None:
    chat = Chat(backend, {"max_tokens": 4, "temperature": 0}, None, stats=False)
    chat.sampling["max_tokens"] = 5000
    with pytest.raises(VjaxError, match="max_tokens"):
        chat.say("ab")
    assert chat.messages == []


def test_stopping_an_answer(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C keeps what was said and goes on."""
    chat = Chat(backend, {"max_tokens": 50}, None, stats=False)
    take = Answer.take

    def interrupted(self: Answer, text: str, tokens: int | None = None) -> None:
        take(self, text, tokens)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Answer, "take", interrupted)
        chat.say("ab")
    assert capsys.readouterr().out.endswith(" (stopped)\n")
    assert chat.messages[1]["content"].startswith("b")
    chat.command("/clear")
    chat.sampling["max_tokens"] = 2
    chat.say("yz")
    assert capsys.readouterr().out == "z{\n"


def test_commands(backend: Backend) -> None:
    chat = Chat(backend, {"max_tokens": 1}, None, stats=False)
    chat.say("a")
    assert chat.command("/system Be brief.")
    assert chat.system == "Be brief."
    assert chat.command("/undo")
    assert chat.messages == []
    assert not chat.command("/exit")


def test_the_command_line(server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--url", f"{server.url}/v1", "--no-stats"]
    assert cli.main(["chat", "-q", "ab", "--max-tokens", "3", *url]) == 0
    assert capsys.readouterr().out == "bc?\n"
    assert cli.main(["complete", "-q", "ab", "--max-tokens", "3", *url]) == 0
    assert capsys.readouterr().out == "bcb\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\\\nc\n\n/help\n/exit\nnever\n"))
    assert cli.main(["chat", "--max-tokens", "5", *url]) == 0
    assert capsys.readouterr().out == "bc\x0bd?\n"  # a backslash goes on with the next line
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\n12\n"))
    assert cli.main(["complete", "--max-tokens", "2", *url]) == 0
    assert capsys.readouterr().out == "bc\n23\n"
    assert cli.main(["chat", "-q", "a", "--url", "http://127.0.0.1:9/v1"]) == 1
    assert "no server answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
