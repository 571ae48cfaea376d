"""Open the files of a folder that may come from a stranger; no file of a run is opened elsewhere.

A folder that somebody handed over can hold a link, a pipe, a device or a sparse file under any name
that this package reads or writes. So a file is opened relative to its folder, its last name is
never followed if it is a link, opening never waits, and only a regular file is used; one that is
changed in place must have no second name (a hard link) either. What replaces a file is written
under a random name first. Links that lead to the folder itself are the user's, and are followed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LINE_BYTES = 64 << 20
"""The most bytes of a line."""
FLOOR_BYTES = 64 << 20
"""Content up to this size is read whatever its ratio: a small file of one repeated word."""
RATIO = 100
"""How many bytes beyond the floor may stand for one byte on the disk."""

_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnsafeFileError(OSError):
    """Report a file that is not used, because a run writes none like it.

    Args:
        reason: what is wrong with it.
        advice: what the user can do.
    """

    def __init__(self, reason: str, advice: str = "remove it") -> None:
        super().__init__(errno.EINVAL, reason)
        self.advice = advice


def open_to_read(path: Path, *, below: Path | None = None) -> io.BufferedReader:
    """Open a regular file for reading.

    Args:
        path: the file.
        below: the folder below which no name of the path may be a link; by default the parent.

    Raises:
        FileNotFoundError: there is nothing under this name.
        UnsafeFileError: it is not a regular file, or almost nothing but holes.
        OSError: it cannot be opened.
    """
    descriptor = _open(path, os.O_RDONLY, below)
    with _closing_on_error(descriptor) as status:
        _refuse_holes(descriptor, status)
    return os.fdopen(descriptor, "rb")


def open_to_change(path: Path, *, creates: bool = False) -> io.FileIO:
    """Open a regular file for writing at its end; a file with a second name is refused.

    Args:
        path: the file.
        creates: whether it is created if there is none.

    Raises:
        UnsafeFileError: it is not a regular file, or has a second name.
        OSError: it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT if creates else 0)
    descriptor = _open(path, flags, None)
    with _closing_on_error(descriptor) as status:
        if status.st_nlink > 1:
            raise UnsafeFileError("another name leads to the same file (a hard link)")
    return os.fdopen(descriptor, "ab", buffering=0)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[io.BufferedWriter]:
    """Yield a new file, which replaces what has the name of `path` if the block raises nothing.

    The file is on the disk before it gets that name, and so is the name before this returns. A link
    of that name is replaced, and what it leads to is not touched.

    Raises:
        OSError: it cannot be written.
    """
    with _folder_of(path, None) as folder:
        temporary = f".{path.name[:200]}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def read_whole(path: Path, *, most_bytes: int, below: Path | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: the file.
        most_bytes: a larger file is refused.
        below: as for `open_to_read`.

    Raises:
        UnsafeFileError: it is not a regular file, or is larger.
        OSError: it cannot be read.
    """
    with open_to_read(path, below=below) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most_bytes else file.read(most_bytes + 1)
    if size > most_bytes or len(content) > most_bytes:
        found = f"{size:,} bytes" if size > most_bytes else "more"
        raise UnsafeFileError(f"it has {found}, and at most {most_bytes:,} are read")
    return content


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of an open file; the last may lack its line feed.

    Raises:
        UnsafeFileError: a line is too long.
    """
    number = 0
    while line := file.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise UnsafeFileError(
                f"its line {number:,} has more than {LINE_BYTES >> 20} MB", "remove the line"
            )
        yield line


def names_in(folder: Path) -> Iterator[str]:
    """Yield the names in a folder, one at a time, as there may be a million; none if it is absent.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name
    except FileNotFoundError:
        return


def is_folder(path: Path) -> bool:
    """Return whether there is a folder of this name.

    Raises:
        UnsafeFileError: there is a link, which may lead to the files of something else.
        OSError: it cannot be looked for.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISLNK(mode):
        raise UnsafeFileError(
            "it is a symbolic link, which could lead to the files of another run",
            "move the run folder as a whole, and link that",
        )
    return stat.S_ISDIR(mode)


def sync_file(path: Path) -> None:
    """Flush a file to disk (fsync), so that a power cut does not leave it empty."""
    descriptor = _open(path, os.O_RDONLY, None)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_ratio(packed: int, unpacked: int) -> None:
    """Refuse compressed content of which a few bytes stand for very many.

    Args:
        packed: bytes as they are on the disk.
        unpacked: bytes that they stand for.

    Raises:
        UnsafeFileError: the ratio is too high, and the content is not small.
    """
    if unpacked > max(FLOOR_BYTES, RATIO * packed):
        raise UnsafeFileError(
            f"{packed:,} compressed bytes stand for {unpacked:,} or more, over {RATIO} times as "
            "many",
            "if it is yours, decompress it (gunzip)",
        )


def _open(path: Path, flags: int, below: Path | None) -> int:
    """Open a file relative to its folder, and return its descriptor, or say what else it is."""
    with _folder_of(path, below) as folder:
        try:
            descriptor = os.open(path.name, flags | _SAFELY, 0o666, dir_fd=folder)
        except OSError:
            # Its kind says more than "too many levels of symbolic links" or "no such device".
            _refuse_other_kinds(os.lstat(path.name, dir_fd=folder))
            raise
    return descriptor


@contextlib.contextmanager
def _closing_on_error(descriptor: int) -> Iterator[os.stat_result]:
    """Yield what an open file is if it is a regular one; close it if it is refused."""
    try:
        status = os.fstat(descriptor)
        _refuse_other_kinds(status)
        yield status
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def _folder_of(path: Path, below: Path | None) -> Iterator[int]:
    """Yield a descriptor of the folder of a file.

    Args:
        path: the file.
        below: the folder from which on each name must be a folder and not a link.

    Raises:
        UnsafeFileError: a name is ".." or a link, or the path is not below that folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(path.parent if below is None else below, flags)
    try:
        for name in () if below is None else _names_below(path, below):
            try:
                inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError:
                _refuse_other_kinds(os.lstat(name, dir_fd=descriptor), f"its folder {name} is ")
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _names_below(path: Path, below: Path) -> tuple[str, ...]:
    if not path.is_relative_to(below) or ".." in path.parts[len(below.parts) :]:
        raise UnsafeFileError("it is outside the folder")
    return path.relative_to(below).parts[:-1]


def _refuse_other_kinds(status: os.stat_result, words: str = "it is ") -> None:
    if (kind := stat.S_IFMT(status.st_mode)) != stat.S_IFREG:
        raise UnsafeFileError(
            f"{words}{_KINDS.get(kind, 'of an unknown kind')} and not a regular file"
        )


def _refuse_holes(descriptor: int, status: os.stat_result) -> None:
    """Refuse a sparse file, of which next to nothing is on the disk.

    Both signs are needed: some file systems do not count blocks, and some make holes of zeros.
    """
    size, on_disk = status.st_size, status.st_blocks * 512
    if size <= max(FLOOR_BYTES, RATIO * on_disk):
        return
    if os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
        raise UnsafeFileError(f"it is sparse: {size:,} bytes, of which the disk holds {on_disk:,}")
    os.lseek(descriptor, 0, os.SEEK_SET)
