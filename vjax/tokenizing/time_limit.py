"""A time limit for Python code that cannot be trusted to end, such as a template."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _TimeIsUp(BaseException):
    """Not an `Exception`, so that nothing on the way takes it for one of its own."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work()` gives, or `TimeoutError` after so many seconds. It is interrupted between two instructions of
    Python: a single call into C runs to its end."""
    thread, lock, done = threading.get_ident(), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TimeIsUp))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        try:
            return work()
        finally:
            with lock:
                done = True
            timer.cancel()
            for _ in range(100):  # an interruption that was sent arrives here at the latest
                pass
    except _TimeIsUp:
        raise TimeoutError(f"it took more than {seconds:g} seconds") from None
