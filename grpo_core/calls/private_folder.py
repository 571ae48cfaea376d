"""Make temporary folders that no other user can read, fill or put another one in the place of."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from grpo_core.calls.folders import remove_folder
from grpo_core.protocol.errors import ConfigError

_UNMAPPED = 65534
"""The owner of what belongs to nobody in a container, such as its root folder."""


def make_private_folder(
    prefix: str,
    parents: Iterable[str | None],
    *,
    what_for: str,
    remedy: str,
    most_bytes: int | None = None,
    fill: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Return a new folder with a random name that only this user can enter.

    Args:
        prefix: how its name begins.
        parents: where it may be made, the first choice first; None and "" are left out.
        what_for: what needs it, for the message.
        remedy: what the user can do, for the message.
        most_bytes: longest path, as where sockets lie in it.
        fill: writes its first files; where that raises OSError, the next parent is tried.

    Raises:
        ConfigError: it can be made in none of the parents.
    """
    reasons = []
    for parent in dict.fromkeys(filter(None, parents)):
        try:
            return _make(prefix, Path(parent).resolve(), most_bytes, fill)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror or error}")
    raise ConfigError(
        f"{what_for} a private folder, and none can be made ({'; '.join(reasons)}); {remedy}"
    )


def usual_parent() -> str | None:
    """Return the folder for temporary files; None if there is none that can be used."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return None


def _make(prefix: str, parent: Path, most_bytes: int | None, fill: Callable[[Path], None]) -> Path:
    for folder in (parent, *parent.parents):
        _refuse_if_others_rule(folder)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            raise PermissionError("its file system lets others enter every folder")
        if most_bytes is not None and len(os.fsencode(path)) > most_bytes:
            raise OSError(f"{path} is longer than {most_bytes} bytes")
        fill(path)
    except BaseException:
        remove_folder(path)
        raise
    return path


def _refuse_if_others_rule(folder: Path) -> None:
    """Raise PermissionError if other users can rename what this one makes in a folder."""
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid(), _UNMAPPED):
        raise PermissionError(f"{folder} belongs to another user")
    shared = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid())
    )
    if shared and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{folder} can be written by other users and has no sticky bit")
