"""Write files and folders atomically: complete or absent, even after a kill or a power cut."""

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
    """Yield an empty folder to fill; it replaces `target` if the block raises nothing.

    Until then its name begins with a dot. An existing target is renamed first and removed
    afterwards; after a kill in between, the next call restores it (see `restore_folder`).
    Files get the permissions that the umask allows, whatever permissions a library has set.
    """
    restore_folder(target)
    for leftover in target.parent.glob(f".{target.name}.partial-*"):  # left by a killed process
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
            target.rename(_replaced_path(target))
        partial.rename(target)
        sync_folders(target.parent)
        remove_folder(_replaced_path(target))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        restore_folder(target)
        raise


def restore_folder(target: Path) -> None:
    """Rename the old folder back if a kill came between the two renames of `whole_folder`."""
    replaced = _replaced_path(target)
    if replaced.is_dir() and not target.exists():
        replaced.rename(target)


def remove_folder(path: Path) -> None:
    """Rename a folder, then remove it, so that a kill cannot leave part of it under its name."""
    if not path.exists():
        return
    renamed = path.with_name(f".{path.name.lstrip('.')}.removed-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):  # a folder that cannot be renamed cannot be removed either
        path.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: at any time it holds its old content or all of the new one."""
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
    """Flush a file or folder to disk (fsync), so that a power cut does not leave it empty."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(folder: Path) -> None:
    """Sync a folder and its parent, because the folder's own entry there may be new too."""
    sync(folder)
    with contextlib.suppress(PermissionError):  # the user may not be allowed to read the parent
        sync(folder.parent)


def _replaced_path(target: Path) -> Path:
    """Return the name that the old folder has while a new one replaces it."""
    return target.with_name(f".{target.name}.replaced")


def _file_mode(folder: Path) -> int:
    """Return the permissions that the umask gives to a new file.

    They are read from a file made for that purpose: the only way to read the umask is to set it,
    which would affect all threads.
    """
    probe = folder / f".mode-{secrets.token_hex(4)}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    return mode
