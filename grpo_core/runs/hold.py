"""Allow one writer for each run folder.

A second process that resumed a run in progress would corrupt its logs and checkpoints.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.files import UnsafeFileError, open_to_change


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
        # Some versions of the library empty the file, and follow a link to it.
        open_to_change(folder / ".lock", creates=True).close()
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"another process is writing the run {folder}; wait until it has ended, or end it, "
            "then try again"
        ) from None
    except UnsafeFileError as error:
        raise ConfigError(
            f"{folder / '.lock'} is not used: {error.strerror}; {error.advice}"
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
