"""Removing a folder that untrusted code has written to, however deep and whatever its modes."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
import time

_SECONDS = 5.0


def remove_folder(folder: str | os.PathLike[str], *, seconds: float = _SECONDS) -> None:
    """Remove a folder of this user with all that is in it, for a bounded time.

    What cannot be removed stays, without an error. Folders inside are moved up to the top before
    they are emptied: paths stay short and nothing is recursive, so no depth is too much.
    """
    top = os.path.abspath(folder)
    limit = time.monotonic() + seconds
    names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())
    with contextlib.suppress(OSError):
        status = os.lstat(top)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return
        waiting = [top]
        while waiting and time.monotonic() < limit:
            directory = waiting.pop()
            for inner in _emptied(directory, limit):
                place = os.path.join(top, next(names))
                with contextlib.suppress(OSError):
                    os.rename(inner, place)
                    waiting.append(place)
            if directory != top:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        os.rmdir(top)


def _emptied(directory: str, limit: float) -> list[str]:
    """Remove the files of a directory and return the paths of the directories in it."""
    inner = []
    with contextlib.suppress(OSError):
        os.chmod(directory, stat.S_IRWXU)
        with os.scandir(directory) as entries:
            for entry in entries:
                if time.monotonic() > limit:
                    break
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, stat.S_IRWXU)  # else it cannot be moved
                        inner.append(entry.path)
                    else:
                        os.unlink(entry.path)
    return inner
