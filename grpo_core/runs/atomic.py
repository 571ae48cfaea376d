"""Write files and folders atomically: complete or absent, even after a kill or a power cut."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from grpo_core.runs.files import names_in, replacing


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it replaces `target` if the block raises nothing.

    Until then its name begins with a dot. An existing target is renamed first and removed
    afterwards; after a kill in between, the next call restores it (see `restore_folder`).
    Files get the permissions that the umask allows, whatever permissions a library has set.
    """
    restore_folder(target)
    remove_leftovers(target.parent, f".{target.name}.partial-")
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        yield partial
        mode = _file_mode(partial)
        for path in (*partial.rglob("*"), partial):
            if path.is_file() and not path.is_symlink():
                path.chmod(mode)
            sync(path)
        if os.path.lexists(target):
            remove_folder(_replaced_path(target))
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
    if replaced.is_dir() and not replaced.is_symlink() and not os.path.lexists(target):
        replaced.rename(target)


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove the folders in `folder` whose names begin with `prefix`, left by a killed process."""
    for name in names_in(folder):
        if name.startswith(prefix):
            shutil.rmtree(folder / name, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Rename a folder, then remove it, so that a kill cannot leave part of it under its name.

    A link or a file in its place is removed, and what a link leads to is left as it is.
    """
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    renamed = path.with_name(f".{path.name.lstrip('.')}.removed-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):  # a folder that cannot be renamed cannot be removed either
        path.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: at any time it holds its old content or all of the new one."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Flush a folder, or a file that this process has just made, to disk (fsync).

    A power cut then does not leave it empty.
    """
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
