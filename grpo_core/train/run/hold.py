"""One writer for each run folder: a second process that resumed a run under way would tear its logs and checkpoints."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder, Unwritten
from grpo_core.train.ranks import Ranks


def hold(folder: Path) -> FileLock:
    """The right to write a run's folder, which is made if it is missing; until it is released, or the process ends in any way. It is the
    process that has it: a second trainer of the same run in a notebook is the user's own affair.

    Raises ConfigError if another process has it, or nothing can be written there.
    """
    lock = FileLock(folder / ".lock", is_singleton=True, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"another process is writing the run {folder}; wait until it has ended, or end it, then try again"
        ) from None
    except OSError as error:
        own = (
            "make it writable for this user, or copy it to a folder of your own"
            if folder.exists()
            else "choose another --out"
        )
        raise ConfigError(
            f"the run folder {folder} cannot be written: {error.strerror or error}; {own}"
        ) from None
    return lock


def refuse_held(folder: Path) -> None:
    """Raise ConfigError if another process is writing the run's folder now."""
    hold(folder).release()


def one_folder(folder: RunFolder | Path | str | None, ranks: Ranks, *, name: str) -> RunFolder:
    """The same for all processes, of which one writes. folder: as given; None: a new one in runs/, with `name` in its name."""
    if ranks.first and not isinstance(folder, RunFolder):
        folder = RunFolder.unused(folder, name=name)
    path = ranks.everywhere(folder.path if isinstance(folder, RunFolder) else Path())[0]
    return folder if isinstance(folder, RunFolder) and ranks.first else Unwritten(path)
