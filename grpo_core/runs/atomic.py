"""Writes files and folders that are there whole or not at all, also after a kill or a power cut."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it takes the place of `target` when the block ends well.

    Until then its name begins with a dot. A target that existed is set aside first and removed
    afterwards; if a kill comes in between, the next call puts it back (see `restore_folder`).
    Files get the permissions that the umask allows, whatever a library has set.
    """
    restore_folder(target)
    for leftover in target.parent.glob(f".{target.name}.partial-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        yield partial
        mode = _file_mode(partial)
        for path in (*partial.rglob("*"), partial):
            if path.is_file() and not path.is_symlink():
                path.chmod(mode)
            sync(path)
        if target.exists():
            target.rename(_set_aside(target))
        partial.rename(target)
        sync_folders(target.parent)
        remove_folder(_set_aside(target))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        restore_folder(target)
        raise


def restore_folder(target: Path) -> None:
    """Put back what a kill left set aside between the two renames of `whole_folder`."""
    aside = _set_aside(target)
    if aside.is_dir() and not target.exists():
        aside.rename(target)


def remove_folder(path: Path) -> None:
    """Remove a folder so that no half of it can be taken for the whole: its name changes first."""
    if not path.exists():
        return
    doomed = path.with_name(f".{path.name.lstrip('.')}.removed-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):  # what cannot be renamed cannot be removed either
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file that holds the old content or the new one at any time, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk, so that a power cut does not leave it empty."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(folder: Path) -> None:
    """Sync a folder and the one above it, which may be new, too."""
    sync(folder)
    with contextlib.suppress(PermissionError):  # a folder above that this user may not read
        sync(folder.parent)


def _set_aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.replaced")


def _file_mode(folder: Path) -> int:
    """Return the permissions that a new file gets, which follow the umask.

    A file is made to see them: reading the umask means setting it, for all threads.
    """
    probe = folder / f".mode-{secrets.token_hex(4)}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    return mode
