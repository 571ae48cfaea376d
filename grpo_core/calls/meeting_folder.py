"""Make the private folder in which the processes of one command meet on this machine.

The launcher makes it and tells its children alone where it is. Nobody else can read it, so its
files need no password: they say where each process listens, who has arrived, and the secret that
the processes show each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_core.calls.folders import remove_folder
from grpo_core.calls.private_folder import make_private_folder, usual_parent

VARIABLE = "GRPO_MEETING"
"""The environment variable with the folder's path, for the children of the launcher."""
_PREFIX = "grpo-meeting-"
_OTHER_PARENTS = ("/dev/shm", "/tmp")
"""Where the folder is made if it cannot be among the user's temporary files."""
_NEW_SECONDS = 60.0
"""A folder that is not locked may be one that is being made for so long."""
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class MeetingFolder:
    """A folder that only this user can read."""

    path: Path

    @classmethod
    def of_this_process(cls) -> MeetingFolder | None:
        """Return the folder that the launcher named, once; None if there is none.

        Programs that this process starts do not learn of it.
        """
        name = os.environ.pop(VARIABLE, None)
        return None if name is None else cls(Path(name))

    @property
    def store(self) -> Path:
        """Return the file in which the processes tell each other their addresses."""
        return self.path / "store"

    @property
    def arrivals(self) -> Path:
        """Return the file with one byte for each process: the number of its last meeting."""
        return self.path / "arrivals"

    @property
    def secret(self) -> Path:
        """Return the file with what only the processes of this command know."""
        return self.path / "secret"


@contextlib.contextmanager
def meeting_folder(processes: int) -> Iterator[MeetingFolder]:
    """Make the folder for so many processes, and remove it at the end.

    It is locked while the block runs, so that a later command knows which folders were left behind
    by one that was killed, and removes them.

    Raises:
        ConfigError: no folder can be made that is private and can be locked.
    """
    with contextlib.ExitStack() as stack:

        def fill(path: Path) -> None:
            folder = MeetingFolder(path)
            _write(folder.secret, secrets.token_bytes(_SECRET_BYTES))
            _write(folder.arrivals, bytes(processes))
            stack.callback(os.close, _locked(path))

        path = make_private_folder(
            _PREFIX,
            (usual_parent(), *_OTHER_PARENTS),
            what_for="several processes need",
            remedy="set TMPDIR to a folder of your own on a local disk with room",
            fill=fill,
        )
        stack.callback(remove_folder, path)
        _remove_leftovers(path.parent)
        yield MeetingFolder(path)


def _write(path: Path, data: bytes) -> None:
    """Write a new file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the lock of a folder.

    Raises:
        OSError: another process holds it, or there are no locks here.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_leftovers(parent: Path) -> None:
    """Remove the folders of this user whose launcher was killed: nobody holds their lock."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_new = abs(time.time() - status.st_mtime) < _NEW_SECONDS
            if status.st_uid == os.geteuid() and not is_new:
                lock = _locked(path)
                remove_folder(path)
                os.close(lock)
