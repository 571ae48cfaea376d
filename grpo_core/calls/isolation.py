"""Calls into code of plugins that cannot take the caller down: what it raises or prints stays in its place."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")
MAX_TEXT = 2000
"""The most characters of an error's text; a longer one is cut."""


class ForeignError(Exception):
    """Code of a plugin failed; the message says how and the cause holds what it raised."""


def isolated(call: Callable[[], Result]) -> Result:
    """Call foreign code. Its prints go to stderr, so that they never end up inside `--json` output.

    Exceptions, sys.exit() and a KeyboardInterrupt that it raised itself become ForeignError; a Ctrl-C of the user passes through.
    """
    with contextlib.redirect_stdout(sys.stderr), _ctrl_c() as pressed:
        try:
            return call()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and pressed:
                raise
            raise ForeignError(reason(error)) from error


@contextlib.contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """A list that fills when the user presses Ctrl-C: the one way to tell that from `raise KeyboardInterrupt`."""
    pressed: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield pressed
        return

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        previous(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def reason(error: BaseException) -> str:
    """One line: what was raised, and the place in the foreign code."""
    try:
        return _text_of(error)
    except Exception:  # noqa: BLE001 - an exception of a plugin may fail in its own __str__
        return f"{type(error).__name__}, whose text cannot be had"


def clip(text: str, size: int = MAX_TEXT) -> str:
    """Return at most `size` characters that can be encoded; what was cut says how long it was."""
    if len(text) > size:
        note = f"... ({len(text):,} characters)"
        text = text[: size - len(note)] + note
    return text.encode(errors="replace").decode()


def _text_of(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed"
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = (
        ""
        if isinstance(error, SyntaxError) or not frames
        else f" ({frames[0].filename}, line {frames[0].lineno})"
    )
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"
