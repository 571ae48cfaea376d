"""Let this process see another date, machine and locale, before code is imported.

Only Python's own functions are replaced, those that environments call. Clocks that measure
durations stay as they are.
"""

from __future__ import annotations

import calendar
import datetime
import locale
import os
import platform
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
_language: list[str] = []
"""What names are written in once the user's locale was asked for."""


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
    """Let Python compare, sort and encode as in a locale that need not be installed.

    Words are in the order of a dictionary, where case does not count, and the preferred encoding is
    Latin-1. Files and streams keep their encoding. Numbers, and the names of days and months, are
    written in German once the user's locale is asked for, as before that nothing depends on it.
    """
    real_setlocale = locale.setlocale

    def setlocale(category: int, *name: Any) -> str:
        told = real_setlocale(category, *name)
        if name == ("",):
            _write_german()
        return told

    locale.setlocale = setlocale  # type: ignore[assignment]
    locale.strxfrm = str.casefold
    locale.strcoll = lambda a, b: (a.casefold() > b.casefold()) - (a.casefold() < b.casefold())
    locale.getpreferredencoding = lambda do_setlocale=True: "iso8859-1"
    locale.getencoding = lambda: "iso8859-1"


def _write_german() -> None:
    """Write numbers, and the names of days and months, as in German."""
    if _language:
        return
    _language.append("German")
    real_conventions, real_strftime = locale.localeconv, time.strftime
    numbers: Any = {"decimal_point": ",", "thousands_sep": ".", "grouping": [3, 3, 0]}
    locale.localeconv = lambda: real_conventions() | numbers
    # dates and times of `datetime` ask this function, too
    time.strftime = lambda text, *moment: real_strftime(_translated(text), *moment)
    calendar.day_name = list(_DAYS)  # type: ignore[assignment]
    calendar.month_name = ["", *_MONTHS]  # type: ignore[assignment]


def _translated(format: str) -> str:
    """Return a format of `strftime` by which names of days and months are other ones."""
    for code in ("%A", "%a", "%B", "%b"):
        format = format.replace(code, f"{code}ig")
    return format.replace("%p", "").replace("%x", "%d.%m.%Y").replace("%X", "%H.%M.%S")


def rename_machine(name: str) -> None:
    """Let Python tell `name` as the name of this machine, and another address and size of it."""
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
    os.sched_getaffinity = lambda pid: set(range(processors))
