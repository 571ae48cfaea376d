"""Build a folder exactly once, even if processes are killed or several want the same folder.

The folder is either complete or absent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_core.runs.atomic import whole_folder


def build_once(
    target: Path,
    build: Callable[[Path], None],
    *,
    is_ready: Callable[[Path], bool],
    on_wait: Callable[[], None],
) -> Path:
    """Return `target`; fill it with `build` unless `is_ready` reports that it is complete.

    Only the process that holds the lock builds; the kernel frees the lock of a killed process.

    Args:
        build: fills the folder that it is given.
        is_ready: returns whether a folder is complete.
        on_wait: is called once if another process is building.
    """
    if is_ready(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        if not is_ready(target):
            with whole_folder(target) as partial:
                build(partial)
    finally:
        lock.release()
    return target
