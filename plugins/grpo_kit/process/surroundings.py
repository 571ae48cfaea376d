"""Choose other surroundings for a process: all that a task and a verdict must not depend on.

The kit's second process (`grpo_kit.process.observer`) runs in them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core.api.calls import INHERITED

SURROUNDINGS: Mapping[str, str] = {
    "PYTHONHASHSEED": "do not iterate over sets, nor use hash()",
    "date": "do not use the date or the time",
    "time zone": "do not use the local time",
    "user": "do not use USER, LOGNAME, SHELL or TERM",
    "environment variables": "take settings from the Config instead of os.environ",
    "machine's name": "do not use the name, the address or the processors of the machine",
    "locale": "name the language and the encoding instead of using the locale",
    "terminal size": "do not use the size of the terminal",
    "home folder": "bring the data along in the package, or name their folder in the Config",
    "working directory": "bring the data along in the package, or name their folder in the Config",
}
"""Each surrounding that is changed, with the advice for what depends on it."""
FRAGILE = frozenset(
    {"home folder", "date", "time zone", "user", "environment variables", "locale", "terminal size"}
)
"""Surroundings without which an environment may fail, instead of being another one."""
HASH_SEED = "20261"
"""The changed PYTHONHASHSEED."""
_DATE_SHIFT_SECONDS = 4105 * 86_400 + 7 * 3600 + 1234.5
"""More than eleven years: another year, month, day, day of the week and hour."""
_TIME_ZONE = "KIT-13:30"
"""A time zone that no place has, as POSIX writes it."""
_LOCALES = ("de_DE.UTF-8", "fr_FR.UTF-8", "tr_TR.UTF-8", "en_GB.UTF-8", "C.UTF-8", "POSIX")
"""Locales in the order in which they are tried."""
_USER = ("USER", "LOGNAME", "SHELL", "TERM")
_LOCALE = ("LANG", "LANGUAGE")
_RANKS = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
"""What a launcher of several processes sets."""
_TERMINAL = ("COLUMNS", "LINES")
_OWN = frozenset(
    {"HOME", "TZ", "TMPDIR", "PYTHONHASHSEED", "PYTHONPATH", *_USER, *_LOCALE, *_TERMINAL}
)
_ALL_LOCALE_CATEGORIES = 0x1FBF
"""LC_ALL_MASK of glibc."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of a second process, all of them empty when it starts."""

    temporary: Path
    home: Path
    working: Path

    @classmethod
    def inside(cls, folder: Path, changed: Iterable[str]) -> Places:
        """Create the folders in `folder`."""
        working = "elsewhere" if "working directory" in changed else "work"
        places = cls(folder / "tmp", folder / "home", folder / working)
        for path in (places.temporary, places.home, places.working):
            path.mkdir(parents=True)
        if "working directory" in changed:  # as a folder in which somebody works
            for name in ("Notes.txt", "Letters.md", "Figures.csv"):
                (places.working / name).write_text("Anna\n", encoding="utf-8")
        return places


def environ_with(changed: Iterable[str], places: Places) -> dict[str, str]:
    """Return the environment variables of a second process.

    Args:
        changed: Which of `SURROUNDINGS` are other ones; hashes are then random in another way.
        places: Its folders; temporary files always go into its own.
    """
    names, system = set(changed), dict(os.environ)
    inherited = {
        name: value
        for name, value in system.items()
        if name in _OWN
        or name.startswith("LC_")
        or name in INHERITED
        or "environment variables" not in names
    }
    return {
        **inherited,
        "TMPDIR": str(places.temporary),
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        **(_RANKS if "environment variables" in names else {}),
        "PYTHONHASHSEED": HASH_SEED if "PYTHONHASHSEED" in names else "1",
        **({"TZ": _TIME_ZONE} if "time zone" in names else {}),
        **({"HOME": str(places.home), **_caches(system)} if "home folder" in names else {}),
        **(_other_user(system) if "user" in names else {}),
        **(_other_locale(system) if "locale" in names else {}),
        **({"COLUMNS": "47", "LINES": "13"} if "terminal size" in names else {}),
        **({"HOSTNAME": machine_name(names)} if "machine's name" in names else {}),
    }


def date_shift(changed: Iterable[str]) -> float:
    """Return by how many seconds the process moves the date."""
    return _DATE_SHIFT_SECONDS if "date" in changed else 0.0


def machine_name(changed: Iterable[str]) -> str:
    """Return the name that the process gives the machine; "" leaves it as it is."""
    return "kit-machine" if "machine's name" in changed else ""


def _caches(system: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which libraries find their data and packages although home is new."""
    home = Path(system.get("HOME") or "~").expanduser()
    folders = {
        "XDG_CACHE_HOME": home / ".cache",
        "XDG_CONFIG_HOME": home / ".config",
        "XDG_DATA_HOME": home / ".local" / "share",
        "NLTK_DATA": home / "nltk_data",
        "PYTHONUSERBASE": home / ".local",
    }
    return {name: str(path) for name, path in folders.items() if name not in system}


def _other_user(system: Mapping[str, str]) -> dict[str, str]:
    """Return variables of another user at another terminal."""
    other = {"USER": "kit", "LOGNAME": "kit", "SHELL": "/bin/false", "TERM": "vt52"}
    return {
        name: f"{value}-2" if system.get(name) == value else value for name, value in other.items()
    }


def _other_locale(system: Mapping[str, str]) -> dict[str, str]:
    """Return variables of another language, and of a locale that exists here.

    LC_ALL decides what Python does; code that reads LANG itself finds a language that need not be
    installed. Text stays UTF-8, since a process that cannot read its files shows nothing.
    """
    now = system.get("LC_ALL") or system.get("LC_CTYPE") or system.get("LANG") or "C.UTF-8"
    spelled = now.casefold().replace("-", "")
    language = "fr" if spelled.startswith("de") else "de"
    told = {"LANG": f"{language}_{language.upper()}.UTF-8", "LANGUAGE": language, "PYTHONUTF8": "1"}
    for name in _LOCALES:
        if name.casefold().replace("-", "") != spelled and _locale_exists(name):
            return {"LC_ALL": name, **told}
    return {"LC_ALL": now, **told}


def _locale_exists(name: str) -> bool:
    """Return whether this system has the locale; it is not set."""
    if name == "POSIX" or sys.platform != "linux":
        return name == "POSIX"
    libc = ctypes.CDLL(None)
    libc.newlocale.restype, libc.freelocale.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    libc.newlocale.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
    found = libc.newlocale(_ALL_LOCALE_CATEGORIES, name.encode(), None)
    if found:
        libc.freelocale(found)
    return bool(found)
