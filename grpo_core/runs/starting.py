"""Leave a note while a run prepares, so that a process that is killed meanwhile is not forgotten.

Before its first step a run has no folder. A process that the kernel kills for memory can say
nothing; the next command that trains says it instead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_core.calls.printable import printable
from grpo_core.runs.atomic import write_whole
from grpo_core.runs.documents import read_document
from grpo_core.runs.trust import state_folder

_PATH_LENGTH = 200
_NEAR = 0.8
"""Share of the free memory from which on an estimate explains that a process was killed."""
_MOST_NOTES = 100
"""How many notes are looked at; each belongs to a process that was killed."""


class Note:
    """A note of this process, in the user's state folder."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self._path, self._content = path, content
        self.add()

    def add(self, **more: Any) -> None:
        """Write the note with further fields; nothing is raised, as the run can do without it."""
        self._content |= more
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path, json.dumps(self._content) + "\n")
        except OSError as error:
            logging.getLogger(__name__).debug("%s cannot be written: %s", self._path, error)


@contextlib.contextmanager
def starting(run: Path, doing: str) -> Iterator[Note]:
    """Keep a note of what this process is doing for a run, for as long as the block lasts.

    Args:
        run: the run folder, as messages show it.
        doing: what is done, such as "loading the model".
    """
    content = {
        "run": str(run),
        "phase": doing,
        "process": os.getpid(),
        "started": _start_time(os.getpid()),
        "machine": platform.node(),
        "free": None,
        "estimate": None,
        "oom_kills": _oom_kills(),
    }
    path = _folder() / f"{os.getpid()}.json"
    try:
        yield Note(path, content)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def ended_starts() -> list[str]:
    """Return what became of runs whose process is gone, and forget them: each is told once."""
    texts = []
    try:
        paths = sorted(_folder().glob("*.json"))[:_MOST_NOTES]
    except OSError:
        return []
    for path in paths:
        try:
            note = read_document(path)
            if note["machine"] != platform.node() or _is_alive(note):
                continue
            texts.append(_text(note))
        except (OSError, ValueError, KeyError, TypeError) as error:
            logging.getLogger(__name__).debug("%s is of no use: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
    return texts


def _folder() -> Path:
    return state_folder() / "starting"


def _is_alive(note: dict[str, Any]) -> bool:
    """Return whether the process of a note still runs; its number may belong to another one now."""
    number = int(note["process"])
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is that of another user, who has no notes here
        return False
    return bool(_start_time(number) == note["started"])


def _text(note: dict[str, Any]) -> str:
    run = printable(str(note["run"]), lines=False, limit=_PATH_LENGTH)
    doing = printable(str(note["phase"]), lines=False, limit=_PATH_LENGTH)
    before, now = note["oom_kills"], _oom_kills()
    was_killed = before is not None and now is not None and now > before
    estimate, free = note["estimate"], note["free"]
    had_no_room = estimate is not None and free is not None and estimate > _NEAR * free
    if was_killed or had_no_room:
        cause = (
            "; memory was at its limit, so take a smaller model, model.quantization=4bit or a "
            "machine with more"
        )
    else:
        cause = ": its process was killed or crashed"
    return f"the run {run} ended while {doing}{cause}"


def _start_time(process: int) -> str | None:
    """Return when a process began, in ticks since the start of the machine; None if unknown."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _oom_kills() -> int | None:
    """Return how many processes the kernel has killed for memory; None if it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
