"""Files and folders that are there whole or not at all, whoever is killed and whenever the power goes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `target` when the body is done. Until then its name begins with a dot."""
    for leftover in target.parent.glob(f".{target.name}.partial-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        yield partial
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """The old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    """On disk before the rename: a power cut must not leave a complete-looking folder of empty files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
