"""Builds a folder exactly once: whole or not there, whoever is killed and however many processes want it."""

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
    """`target`, filled by `build` unless `is_ready` says that it is there.

    Only the holder of the lock builds; the kernel frees the lock of a killed process. `on_wait` is called once when another process builds.
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
