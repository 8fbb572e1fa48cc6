from __future__ import annotations

import time

import pytest

from vjax.tokenizing.chat_template import render_chat
from vjax.tokenizing.time_limit import within

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_does_not_end() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        within(0.1, lambda: render_chat(LOOPS, [{"role": "user", "content": "a"}]))
    assert time.monotonic() - started < 5
    assert within(0.1, lambda: render_chat("a", [])) == "a"


def test_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"):
        within(1, lambda: int("x") if False else (_ for _ in ()).throw(ValueError("mine")))
