"""Call the code of plugins so that nothing it raises or prints affects the caller."""

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
"""The most characters of an error's text; longer text is cut."""


class ForeignError(Exception):
    """The code of a plugin failed; the message says how, and the cause is what it raised."""


def isolated(call: Callable[[], Result]) -> Result:
    """Call code of a plugin and return its result.

    What it prints goes to stderr, so that it never ends up inside `--json` output.

    Raises:
        ForeignError: the code raised an exception, called sys.exit() or raised KeyboardInterrupt.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    with contextlib.redirect_stdout(sys.stderr), _ctrl_c_signals() as ctrl_c_signals:
        try:
            return call()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and ctrl_c_signals:
                raise
            raise ForeignError(reason(error)) from error


@contextlib.contextmanager
def _ctrl_c_signals() -> Iterator[list[int]]:
    """Yield a list that gets an entry whenever the user presses Ctrl-C.

    This is the only way to tell a Ctrl-C from `raise KeyboardInterrupt`.
    """
    signals: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield signals
        return

    def record(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        previous(number, frame)

    signal.signal(signal.SIGINT, record)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, previous)


def reason(error: BaseException) -> str:
    """Return one line that says what was raised, and where in the code of the plugin."""
    try:
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
    except Exception:  # noqa: BLE001 - a plugin's exception may fail in its own __str__
        return f"{type(error).__name__}, whose message cannot be read"


def clip(text: str, size: int = MAX_TEXT) -> str:
    """Return at most `size` characters that can be encoded; a cut text ends with its length."""
    if len(text) > size:
        note = f"... ({len(text):,} characters)"
        text = text[: size - len(note)] + note
    return text.encode(errors="replace").decode()
