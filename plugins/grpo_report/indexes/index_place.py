"""Choose where the index of a run's rollouts is kept: in the cache of this user, never in the run.

A run folder may come from a stranger, and SQLite believes what lies beside a database: a journal
there can make it delete or overwrite other files. An index that an older version left in a run
folder is neither opened nor removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
import time
from pathlib import Path

from grpo_core.api.runs import names_in, read_whole, write_whole

_UNUSED_SECONDS = 30 * 24 * 3600
"""An index that nobody has opened for so long is removed."""
_MOST_EXAMINED = 200
"""How many indexes are looked at when another one begins."""
_NOTE = ".run"
"""The suffix of the file beside an index that names its run; its time is that of the last use."""
_LONGEST_PATH = 1 << 16


def indexes_folder() -> Path:
    """Return the folder of the indexes, which need not exist.

    It is $GRPO_INDEXES, else $XDG_CACHE_HOME/grpo/indexes, else ~/.cache/grpo/indexes. (The cache
    of models, $GRPO_CACHE, may be one that several users share.)

    Raises:
        RuntimeError: this user has no home folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("GRPO_INDEXES") or f"{cache}/grpo/indexes"
    return Path(folder).expanduser().absolute()


def index_path(run: Path) -> Path:
    """Return the file of the index of a run, which need not exist.

    Args:
        run: the run folder, which a link may lead to; another folder that takes its place has
            another index.
    """
    place = os.path.realpath(run)
    try:
        status = os.stat(place)
        inode = status.st_ino  # and not the device, whose number may change when it is mounted
    except OSError:
        inode = 0
    digest = hashlib.sha256(os.fsencode(f"{place}\0{inode}")).hexdigest()
    return indexes_folder() / f"{digest[:32]}.sqlite"


def prepare_index(run: Path) -> Path | None:
    """Return the file of the index of a run in a folder that only this user can write.

    A file is not made. The use is noted, and indexes that nobody needs any more are removed.

    Returns:
        None if there is no such folder and none can be made.
    """
    try:
        path = index_path(run)
        folder, note = path.parent, path.with_suffix(_NOTE)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        if stat.S_IMODE(status.st_mode) != 0o700:
            folder.chmod(0o700)
        if note.exists():
            os.utime(note)
        else:
            write_whole(note, os.fsencode(os.path.realpath(run)))
            _remove_unused(folder)
    except (OSError, RuntimeError):
        return None
    return path


def _remove_unused(folder: Path) -> None:
    """Remove indexes whose run is gone, or that were not used for long; look at some of them."""
    notes = [name for name in names_in(folder) if name.endswith(_NOTE) and name[0] != "."]
    own = random.SystemRandom()  # the global generator belongs to the run's environment
    for name in own.sample(notes, min(len(notes), _MOST_EXAMINED)):
        note = folder / name
        with contextlib.suppress(OSError):
            run = os.fsdecode(read_whole(note, most_bytes=_LONGEST_PATH))
            is_old = time.time() - note.stat().st_mtime > _UNUSED_SECONDS
            if is_old or not os.path.lexists(run):
                remove_index(note.with_suffix(".sqlite"))
                note.unlink(missing_ok=True)


def remove_index(path: Path) -> None:
    """Remove the file of an index with what SQLite may have left beside it; raise nothing."""
    for suffix in ("-journal", "-wal", "-shm", ""):
        with contextlib.suppress(OSError):
            path.with_name(f"{path.name}{suffix}").unlink()
