"""Choose what a session's jail holds under bubblewrap: the host's programs, or a root folder."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

from grpo_core import ConfigError
from grpo_sandbox.interpreter import SITES, Interpreter

LINKED = ("bin", "sbin", "lib", "lib32", "lib64")
"""Folders that are links into /usr on today's systems."""
HIDDEN = (Path("/usr/local"), Path("/usr/src"))
"""Folders of /usr in which people install what is theirs."""
ETC = (Path("/etc/alternatives"), Path("/etc/ld.so.cache"))
"""Files of /etc without which some of the host's programs do not start."""
_NOT_BOUND = ("proc", "sys", "dev", "home", "tmp", "run")
_PYTHONS = ("usr/bin/python3", "usr/local/bin/python3")


def links(root: Path = Path("/")) -> list[str]:
    """Return the options of bwrap for /lib and its like."""
    paths = [root / name for name in LINKED]
    return [
        option
        for path in paths
        if path.is_symlink()
        for option in ("--symlink", os.readlink(path), f"/{path.name}")
    ]


def root_of_host(interpreter: Interpreter) -> list[str]:
    """Return the options of bwrap that show the host's /usr without installed packages.

    Args:
        interpreter: The interpreter of the supervisor, which may be elsewhere.
    """
    folders = [path for name in LINKED if not (path := Path("/", name)).is_symlink()]
    shown = [path for path in (Path("/usr"), *folders, *ETC) if path.exists()]
    hidden = _hidden()

    def is_there(path: Path) -> bool:
        return _is_inside(path, shown) and (path in hidden or not _is_inside(path, hidden))

    return [
        *(option for path in shown for option in ("--ro-bind", str(path), str(path))),
        *links(),
        *(option for path in hidden for option in ("--tmpfs", str(path))),
        *interpreter.options(is_there),
        *(option for path in hidden for option in ("--remount-ro", str(path))),
    ]


def root_of_image(image: str) -> tuple[str, list[str]]:
    """Return the path of Python in the root folder `image`, and the options that show the folder.

    Raises:
        ConfigError: There is no such folder, or no Python in it.
    """
    root = Path(image)
    pythons = [path for path in _PYTHONS if os.path.lexists(root / path)]
    if not root.is_absolute() or not pythons:
        raise ConfigError(
            f"the image {image!r} is not the absolute path of a root folder that holds a Python "
            f"({' or '.join(_PYTHONS)}), as the sandbox bubblewrap needs it"
        )
    options = []
    for path in sorted(root.iterdir()):
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), f"/{path.name}"]
        elif path.name not in _NOT_BOUND:
            options += ["--ro-bind", str(path), f"/{path.name}"]
    return f"/{pythons[0]}", options


def _is_inside(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


@functools.cache
def _hidden() -> tuple[Path, ...]:
    """Return the folders of /usr that are hidden, none of which is inside another."""
    hidden = [path for path in HIDDEN if path.is_dir()]
    for folder, folders, _ in os.walk("/usr"):
        sites = [Path(folder, name) for name in folders if name in SITES]
        hidden += [path for path in sites if not path.is_symlink()]
        folders[:] = [
            name for name in folders if name not in SITES and Path(folder, name) not in HIDDEN
        ]
    return tuple(hidden)
