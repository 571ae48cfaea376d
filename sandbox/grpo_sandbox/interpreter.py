"""Lists the files of a Python interpreter and its standard library.

A jail of bubblewrap gets these files and no others.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_core import ConfigError

QUERY_SECONDS = 30
_QUERY = (
    "import json, os, sys, sysconfig; "
    "paths = [sysconfig.get_path('stdlib'), sysconfig.get_path('platstdlib'), "
    "sysconfig.get_config_var('DESTSHARED')]; "
    "print(json.dumps([os.path.realpath(sys.executable), "
    "[path for path in paths if path and os.path.isdir(path)]]))"
)
_LIBRARY = re.compile(r"^\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
SITES = ("site-packages", "dist-packages")
"""Names of folders that contain installed packages."""
ZONES = Path("/usr/share/zoneinfo")
"""The data of the standard module zoneinfo, if the system has them."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The paths of an interpreter's files on this machine."""

    executable: Path
    """The interpreter itself."""
    folders: tuple[Path, ...]
    """Folders of the standard library, none of which is inside another."""
    hidden: tuple[Path, ...]
    """Folders inside `folders` that contain installed packages."""
    libraries: tuple[Path, ...]
    """Shared libraries, each by the path under which the loader looks for it."""

    @classmethod
    def of(cls, python: str) -> Interpreter:
        """Ask the interpreter `python` for its files.

        Raises:
            ConfigError: It cannot be run, or its shared libraries cannot be listed.
        """
        executable, paths = json.loads(_output([python, "-I", "-S", "-c", _QUERY], python))
        folders = _outermost([Path(path).resolve() for path in paths])
        extensions = sorted(
            {str(file) for folder in folders for file in folder.glob("lib-dynload/*.so")}
        )
        listing = _output(["ldd", executable, *extensions], python)
        libraries = sorted({_canonical(Path(path)) for path in _LIBRARY.findall(listing)})
        return cls(Path(executable), folders, tuple(_hidden(folders)), tuple(libraries))

    def options(self, is_there: Callable[[Path], bool] = lambda path: False) -> list[str]:
        """Return the options of bwrap that put these files, and no others, at their places.

        Args:
            is_there: Returns whether earlier options show a path, without installed packages.
        """
        binds = [self.executable, *self.folders, *self.libraries]
        if ZONES.is_dir():
            binds.append(ZONES)
        missing = [str(path) for path in binds if not is_there(path)]
        options = [option for path in missing for option in ("--ro-bind", path, path)]
        for path in self.hidden:
            if not is_there(path):
                options += ["--tmpfs", str(path), "--remount-ro", str(path)]
        return options


def _output(command: list[str], python: str) -> str:
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=QUERY_SECONDS,
            check=False,
            env={},
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(_message(python, str(error))) from None
    if result.returncode != 0:
        raise ConfigError(_message(python, (result.stderr or result.stdout).strip()[-300:]))
    return result.stdout


def _message(python: str, reason: str) -> str:
    return (
        f"the sandbox bubblewrap cannot use the Python {python}: {reason}; "
        "set sandbox.settings.python to the path of another one"
    )


def _outermost(folders: list[Path]) -> tuple[Path, ...]:
    return tuple(
        folder
        for folder in dict.fromkeys(folders)
        if not any(other in folder.parents for other in folders)
    )


def _hidden(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from (path for name in SITES if (path := folder / name).is_dir())


def _canonical(path: Path) -> Path:
    """Return the path with its folder resolved; the loader looks for the file by its name."""
    return path.parent.resolve() / path.name
