"""Watch what a process leaves behind: files, folders, processes, threads and open files.

Files are seen by an audit hook, wherever Python opens them for writing, and by listing the folders
that belong to this process alone. The rest is read from /proc on Linux, and not known elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.api.calls import IDLE

_PR_SET_CHILD_SUBREAPER = 36
_MOST = 50
"""The most leftovers of each kind in the report."""
_MOST_LISTED = 20_000
"""The most entries of a folder that are listed."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_IGNORED = ("/dev/", "/proc/", "/sys/")
_TARGETS = {
    "os.mkdir": 0,
    "os.rename": 1,
    "os.link": 1,
    "os.symlink": 1,
    "sqlite3.connect": 0,
}
"""Audit events that create a file or folder: which argument names it."""


class FileWatch:
    """Which files appear or grow between `begin` and `report`.

    Args:
        folders: Folders that are listed, since nobody else writes into them.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._sizes: dict[str, int | None] = {}
        """The size of each written path before, or None where it did not exist."""
        self._writes = Counter[str]()
        self._judging = False
        self._middle: dict[str, int] = {}

    def record(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an audit event, if it opens a file for writing or creates an entry."""
        if event == "open":
            name, flags = arguments[0], arguments[2]
            if not isinstance(flags, int) or not flags & _WRITING:
                return
        elif event in _TARGETS:
            name = arguments[_TARGETS[event]]
        else:
            return
        if not isinstance(name, str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(name))
        if path.startswith(_IGNORED) or "__pycache__" in path:
            return
        self._sizes.setdefault(path, _size(path))
        self._writes[path] += self._judging

    def begin(self) -> None:
        """Take what exists now as what was there before judging."""
        for path in [*self._sizes, *self._entries(), *_open_for_writing()]:
            self._sizes[path] = _size(path)
        self._judging = True

    def mark(self) -> None:
        """Note what was left so far, to see whether more follows."""
        self._middle = {path: size for path, size, _ in self._leftovers()}

    def report(self) -> dict[str, Any]:
        """Return the number of leftovers and the first of them."""
        leftovers = [
            {
                "path": path,
                "kind": kind,
                "late": self._middle.get(path, -1) != size,
                "writes": self._writes[path],
            }
            for path, size, kind in self._leftovers()
        ]
        leftovers.sort(key=lambda item: not item["late"])
        return {"count": len(leftovers), "first": leftovers[:_MOST]}

    def _leftovers(self) -> list[tuple[str, int, str]]:
        """Return path, size and kind of each entry that is new or has grown."""
        leftovers = []
        for path in dict.fromkeys([*self._sizes, *self._entries()]):
            before, after = self._sizes.get(path), _size(path)
            if after is None or before == after or (before is not None and os.path.isdir(path)):
                continue
            folder = "folder" if os.path.isdir(path) else "file"
            kind = f"new {folder}" if before is None else "grown file"
            if before is None or after > before:
                leftovers.append((path, 0 if folder == "folder" else after, kind))
        return leftovers

    def _entries(self) -> Iterator[str]:
        """Yield the files and folders inside the listed folders."""
        count = 0
        for folder in self._folders:
            for root, folders, files in os.walk(folder):
                if "__pycache__" in root:
                    continue
                for name in [*folders, *files]:
                    count += 1
                    if count <= _MOST_LISTED and name != "__pycache__":
                        yield os.path.join(root, name)


def _size(path: str) -> int | None:
    """Return the size of a file or folder, or None if it does not exist."""
    try:
        return os.lstat(path).st_size
    except (OSError, ValueError):
        return None


def _open_for_writing() -> list[str]:
    """Return the files that this process holds open, by which logs grow."""
    if not os.path.isdir("/proc/self/fd"):
        return []
    paths = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(entry.path)
            if os.path.isfile(path):
                paths.append(path)
    return paths


UNFINISHED = "unfinished tasks of the event loop"
"""What the coroutines are called in messages that the event loop has to finish."""


def adopt_orphans() -> None:
    """Make this process, on Linux, the parent of descendants whose own parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_resources() -> dict[str, list[str]] | None:
    """Return the open files, threads and child processes, or None where /proc is missing."""
    if not Path("/proc/self/fd").is_dir():
        return None
    files = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            files.append(os.readlink(entry.path))
    children = list[str]()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel has no such file
            children += filter(_is_running, (task / "children").read_text().split())
    return {
        "processes": [f"{child} {_command(child)}" for child in children],
        "threads": [thread.name for thread in threading.enumerate() if thread.name != IDLE],
        UNFINISHED: _pending(),
        "open files": files,
    }


def _pending() -> list[str]:
    """Return the coroutines that the running loop has to finish, without the one that asks."""
    try:
        current = asyncio.current_task()
    except RuntimeError:  # there is no loop
        return []
    return [str(task.get_coro()) for task in asyncio.all_tasks() if task is not current]


def _is_running(pid: str) -> bool:
    """Return whether a process has not ended; an orphan that has ended waits here to be reaped."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] != "Z"


def _command(pid: str) -> str:
    """Return the command line of a process."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return "(gone)"


def new_resources(
    before: Mapping[str, list[str]] | None,
    middle: Mapping[str, list[str]] | None,
    after: Mapping[str, list[str]] | None,
) -> dict[str, dict[str, Any]] | None:
    """Return the resources in `after` that are not in `before`, counting equal ones.

    Returns:
        For each kind the number of all, the number of those that came after `middle`, and examples.
    """
    if before is None or middle is None or after is None:
        return None
    report = {}
    for kind, names in after.items():
        new = Counter(names) - Counter(before[kind])
        late = new - (Counter(middle[kind]) - Counter(before[kind]))
        examples = [*late.elements(), *new.elements()][:_MOST]
        report[kind] = {"count": new.total(), "late": late.total(), "first": examples}
    return report
