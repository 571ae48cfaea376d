"""Builds a folder exactly once: whole or not there, whoever is killed and however many processes want it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout


def build_once(target: Path, build: Callable[[Path], None], *, is_ready: Callable[[Path], bool], on_wait: Callable[[], None]) -> Path:
    """`target`, filled by `build` unless `is_ready` says that it is there.

    Only the holder of the lock builds; the kernel frees the lock of a killed process, so any partial folder found under the
    lock is a leftover and is removed. `on_wait` is called once when another process builds.
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
            _build(target, build)
    finally:
        lock.release()
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    for leftover in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)  # its downloader may have outlived it and still write
    if target.exists():  # not ready: files of it were deleted by hand
        shutil.rmtree(target)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    partial.mkdir()
    try:
        build(partial)
        _sync(partial)
        partial.rename(target)
        _sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _sync(folder: Path) -> None:
    """Everything on disk before the rename: a power cut must not leave a complete-looking folder of empty files."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
