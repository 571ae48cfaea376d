"""Remove folders that untrusted code has written to, whatever their depth and file modes."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
import time

_MAX_SECONDS = 5.0


def remove_folder(folder: str | os.PathLike[str], *, seconds: float = _MAX_SECONDS) -> None:
    """Remove a folder of this user and its contents, within `seconds`.

    Whatever cannot be removed stays, without an error. Inner folders are moved to the top before
    they are emptied: paths stay short and nothing is recursive, so no depth is too much.
    """
    top = os.path.abspath(folder)
    deadline = time.monotonic() + seconds
    new_names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())
    with contextlib.suppress(OSError):
        status = os.lstat(top)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return
        folders = [top]
        while folders and time.monotonic() < deadline:
            directory = folders.pop()
            for inner_folder in _remove_files(directory, deadline):
                new_path = os.path.join(top, next(new_names))
                with contextlib.suppress(OSError):
                    os.rename(inner_folder, new_path)
                    folders.append(new_path)
            if directory != top:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        os.rmdir(top)


def _remove_files(directory: str, deadline: float) -> list[str]:
    """Remove the files in a directory and return the paths of the directories in it."""
    inner_folders = []
    with contextlib.suppress(OSError):
        os.chmod(directory, stat.S_IRWXU)
        with os.scandir(directory) as entries:
            for entry in entries:
                if time.monotonic() > deadline:
                    break
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, stat.S_IRWXU)  # otherwise it cannot be moved
                        inner_folders.append(entry.path)
                    else:
                        os.unlink(entry.path)
    return inner_folders
