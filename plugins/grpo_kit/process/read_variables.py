"""Find the environment variables on which an environment depends."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_OTHER_VALUES = ("7", "1", "true")
"""The values that a variable gets that was not set: most are numbers or switches."""
_LANGUAGES = ("en_US.UTF-8", "de_DE.UTF-8", "ja_JP.UTF-8")
"""The values that the variables of the locale get, whether they were set or not."""
_LOCALE = ("LC_ALL", "LC_TIME", "LC_NUMERIC", "LC_CTYPE", "LANG", "LANGUAGE")
_MOST = 3
"""Variables of the locale, and other ones, that are tried."""
_SECONDS = 10.0
"""No further value is tried after this time, in which all results are made."""
_STDLIB = sysconfig.get_paths()["stdlib"]
_INSTALLED = ("site-packages", "dist-packages")


class ReadVariables:
    """Notes the variables that the code of an environment reads: unset ones, and of the locale.

    A fixed list of names would not contain the one that this author uses. Those that are set have
    other values in the second process, but the second process has only one language.
    """

    def __init__(self, env: object) -> None:
        self._package = type(env).__module__.partition(".")[0]
        self.names: dict[str, None] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the variables that are read inside the `with` block."""
        kind: Any = type(os.environ)
        original = kind.__getitem__

        def getitem(environ: Any, name: str) -> str:
            try:
                value: str = original(environ, name)
            except KeyError:
                if self._is_asked_by_environment():
                    self.names[name] = None
                raise
            if name in _LOCALE and self._is_asked_by_environment():
                self.names[name] = None
            return value

        kind.__getitem__ = getitem
        try:
            yield
        finally:
            kind.__getitem__ = original

    def _is_asked_by_environment(self) -> bool:
        """Return whether the first frame outside the standard library is the environment's code."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(("<frozen", _STDLIB)):
            if any(folder in frame.f_code.co_filename for folder in _INSTALLED):
                break
            frame = frame.f_back
        if frame is None:
            return False
        name, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        return name.partition(".")[0] == self._package or not any(
            folder in file for folder in (*_INSTALLED, "grpo_core")
        )

    async def that_matters(self, results: Callable[[float], Awaitable[Sequence[Any]]]) -> str:
        """Return a variable and its value, as in SEED=7, that change results; "" if none does.

        Args:
            results: Returns as many results as it makes in so many seconds, in the same order.
        """
        trials = self._trials()
        if not trials:
            return ""
        started, seconds = time.monotonic(), _SECONDS / (1 + len(trials))
        before = await results(seconds)
        for name, value in trials:
            if time.monotonic() - started > _SECONDS:
                break
            value_before = os.environ.get(name)
            os.environ[name] = value
            try:
                after = await results(seconds)
            finally:
                os.environ.pop(name, None)  # the environment may have taken it away
                if value_before is not None:
                    os.environ[name] = value_before
            if any(old != new for old, new in zip(before, after, strict=False)):
                return f"{name}={value}"
        return ""

    def _trials(self) -> list[tuple[str, str]]:
        """Return names and values, one of each variable first, and those of the locale last."""
        languages = [name for name in self.names if name in _LOCALE][:_MOST]
        others = [name for name in self.names if name not in _LOCALE][:_MOST]
        return [
            *((name, value) for value in _OTHER_VALUES for name in others),
            *((name, value) for value in _LANGUAGES for name in languages),
        ]
