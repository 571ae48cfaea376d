"""Show this process another date, machine and locale, before an environment is imported.

Only Python's own functions are replaced, those that environments call. Clocks that measure
durations stay as they are.
"""

from __future__ import annotations

import datetime
import locale
import os
import platform
import re
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

_DAYS = ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag")
_MONTHS = (
    *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September"),
    *("Oktober", "November", "Dezember"),
)
_german: set[int] = set()
"""The categories of the locale, for dates and numbers, that are those of the user now."""


def shift_date(seconds: float) -> None:
    """Move the date that `time` and `datetime` tell by `seconds`."""
    real_time, real_time_ns, real_clock = time.time, time.time_ns, time.clock_gettime
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + int(seconds * 10**9)
    time.clock_gettime = lambda clock: (
        real_clock(clock) + (seconds if clock == time.CLOCK_REALTIME else 0.0)
    )
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _with_default_time(getattr(time, name)))
    real_strftime, real_asctime = time.strftime, time.asctime
    time.strftime = lambda text, *moment: real_strftime(text, *(moment or (time.localtime(),)))
    time.asctime = lambda *moment: real_asctime(*(moment or (time.localtime(),)))
    # date.today() and datetime.today() ask time.time(); these two ask the system
    datetime.datetime = _make_datetime()  # type: ignore[misc]


def _with_default_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `time` that takes the moved time where it is given none."""
    return lambda moment=None: function(time.time() if moment is None else moment)


def _make_datetime() -> type[datetime.datetime]:
    """Return a class that stands for `datetime.datetime` and asks `time.time()`."""
    real = datetime.datetime

    class Meta(type):
        """Counts instances of the real class as instances of its stand-in."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

    class Moved(real, metaclass=Meta):  # type: ignore[misc, valid-type]
        """Tells the moved time."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(time.time(), tz)  # type: ignore[no-any-return]

        @classmethod
        def utcnow(cls) -> Self:
            return cls.utcfromtimestamp(time.time())  # type: ignore[no-any-return]

    Moved.__module__ = Moved.__qualname__ = "datetime"  # where pickle looks for it
    Moved.__name__ = "datetime.datetime"  # what repr() shows
    return Moved


def change_locale() -> None:
    """Make Python compare, sort and encode as in a locale that need not be installed.

    Words are in the order of a dictionary, where case does not count, and the preferred encoding is
    Latin-1. Files and streams keep their encoding. Numbers, and the names of days and months, are
    in German while the user's locale is set for them, since nothing depends on the locale before
    that.
    """
    real_setlocale, real_strftime = locale.setlocale, time.strftime
    real_conventions: Any = locale.localeconv
    numbers: Any = {"decimal_point": ",", "thousands_sep": ".", "grouping": [3, 3, 0]}

    def setlocale(category: int, locale: Any = None) -> str:
        told = real_setlocale(category, locale)
        if locale is not None:
            _note_language(category, is_german=locale == "")
        return told

    def strftime(text: str, *moment: Any) -> str:
        if locale.LC_TIME in _german:
            text = _translated(text, *(moment or (time.localtime(),)))
        return real_strftime(text, *moment)

    # these stay in place, as code that sets the locale must not seem to replace functions
    locale.setlocale = setlocale
    locale.localeconv = lambda: (
        real_conventions() | (numbers if locale.LC_NUMERIC in _german else {})
    )
    time.strftime = strftime  # `datetime` and `calendar` ask this function, too
    locale.strxfrm = str.casefold
    locale.strcoll = lambda a, b: (a.casefold() > b.casefold()) - (a.casefold() < b.casefold())
    locale.getpreferredencoding = lambda do_setlocale=True: "iso8859-1"
    locale.getencoding = lambda: "iso8859-1"


def _note_language(category: int, *, is_german: bool) -> None:
    """Note in which language numbers and dates are written once the locale of `category` is set."""
    for governed in (locale.LC_TIME, locale.LC_NUMERIC):
        if category in (governed, locale.LC_ALL):
            (_german.add if is_german else _german.discard)(governed)


def _translated(format: str, moment: Any) -> str:
    """Return a format of `strftime` in which German stands for what depends on the language."""
    day, month = _DAYS[moment[6]], _MONTHS[moment[1] - 1]
    german = {"A": day, "a": day[:2], "B": month, "b": month[:3]}
    german |= {"p": "", "x": "%d.%m.%Y", "X": "%H.%M.%S"}
    return re.sub("%(.)", lambda code: german.get(code[1], code[0]), format)


def rename_machine(name: str) -> None:
    """Make Python report `name` as this machine's name, another address and one more processor."""
    socket.gethostname = lambda: name
    socket.getfqdn = lambda *_: name
    if hasattr(os, "uname"):
        system = os.uname()
        renamed = os.uname_result((system[0], name, *system[2:]))
        os.uname = lambda: renamed
    platform.node = lambda: name
    told = platform.uname()._replace(node=name)
    platform.uname = lambda: told
    uuid.getnode = lambda: 0x0242AC110002
    processors = 1 + (os.cpu_count() or 1)
    os.cpu_count = lambda: processors
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        os.sched_getaffinity = lambda pid: set(range(processors))
