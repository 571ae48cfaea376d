"""Allow one writer for each run folder.

A second process that resumed a run in progress would corrupt its logs and checkpoints.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder, Unwritten
from grpo_core.train.ranks import Ranks


def hold(folder: Path) -> FileLock:
    """Lock the folder of a run for writing; create it if it is missing.

    The lock holds until it is released, or the process ends in any way. It belongs to the process:
    a second trainer of the same run in one notebook is not prevented.

    Raises:
        ConfigError: another process holds the lock, or nothing can be written there.
    """
    lock = FileLock(folder / ".lock", is_singleton=True, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"another process is writing the run {folder}; wait until it has ended, or end it, "
            "then try again"
        ) from None
    except OSError as error:
        remedy = (
            "make it writable for this user, or copy it to a folder of your own"
            if folder.exists()
            else "choose another --out"
        )
        raise ConfigError(
            f"the run folder {folder} cannot be written: {error.strerror or error}; {remedy}"
        ) from None
    return lock


def shared_run_folder(
    folder: RunFolder | Path | str | None, ranks: Ranks, *, name: str
) -> RunFolder:
    """Return the run folder, the same one for all processes, of which the first writes.

    Args:
        folder: as the caller gave it; None chooses an unused path in runs/.
        name: part of the name of a new folder.
    """
    if ranks.first and not isinstance(folder, RunFolder):
        folder = RunFolder.unused(folder, name=name)
    path = ranks.gather_values(folder.path if isinstance(folder, RunFolder) else Path())[0]
    return folder if isinstance(folder, RunFolder) and ranks.first else Unwritten(path)
