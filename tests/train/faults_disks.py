"""Disks that can be filled, cut off, made read-only and mended: file systems in memory or in a file, for root on Linux."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import ClassVar

KB = 1024
IMAGE_BYTES = 48 << 20


class Disk:
    """A mounted file system. A fault changes it, `heal` makes it good again."""

    mounted: ClassVar[set[Path]] = set()  # of all disks, to unmount whatever happens

    def __init__(self, place: Path) -> None:
        self.place = place

    def heal(self) -> None:
        """Do what "make room" or "make it writable" asks for."""

    def close(self) -> None:
        """Unmount it, also if a process still uses it."""
        if self.place in self.mounted:
            if _run("umount", self.place, check=False):
                _run("umount", "-l", self.place)
            self.mounted.discard(self.place)

    @classmethod
    def close_all(cls) -> None:
        """Unmount what is left."""
        for place in list(cls.mounted):
            cls(place).close()

    def _mount(self, *arguments: object) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        _run("mount", *arguments, self.place)
        self.mounted.add(self.place)


class Memory(Disk):
    """A tmpfs with a limit of its size in bytes, or of inodes; to heal it lifts them."""

    def __init__(self, place: Path, **limits: int) -> None:
        super().__init__(place)
        options = ["mode=755", *(f"{name}={value}" for name, value in limits.items())]
        self._mount("-t", "tmpfs", "-o", ",".join(options), "tmpfs")

    def heal(self) -> None:
        _run("mount", "-o", f"remount,size={IMAGE_BYTES},nr_inodes=100000", self.place)


class Image(Disk):
    """An ext4 file system in a file."""

    def __init__(self, place: Path, image: Path, *, options: str = "data=ordered") -> None:
        super().__init__(place)
        self.image = image
        self._options = options
        self._filler = place / ".filler"  # takes the room; is removed to heal
        self._filled = self._failed = False
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", image)
        self._mount("-o", f"loop,{options}", image)

    def leave(self, free: int) -> None:
        """Fill it up until so many bytes are free."""
        stat = os.statvfs(self.place)
        size = max(1, stat.f_bavail * stat.f_frsize - free)
        with self._filler.open("wb") as file:
            while size > 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
                except OSError:  # the file system needs some of it for its own lists
                    size -= 64 * KB
        self._filled = True

    def snapshot(self, to: Path) -> None:
        """Copy what a power cut would leave now: what has reached the device."""
        _run("cp", "--sparse=always", self.image, to)

    def cut_to(self, image: Path) -> None:
        """Put the copy in the place of the disk."""
        self.close()
        self.image = image
        self._mount("-o", f"loop,{self._options}", image)

    def fail(self) -> None:
        """Let the file system become read-only, as it does after an error of the device."""
        self._failed = True
        _run("mount", "-o", "remount,abort", self.place)

    def heal(self) -> None:
        if self._filled:
            self._filler.unlink(missing_ok=True)
        _run("chattr", "-R", "-i", self.place, check=False)
        if self._failed:
            self._failed = False
            self.close()
            _run("e2fsck", "-p", "-f", self.image, check=False)
            self._mount("-o", f"loop,{self._options}", self.image)


def immutable(path: Path) -> None:
    """Let nobody change a file or the names in a folder, not even root."""
    _run("chattr", "+i", path)


def available() -> bool:
    """Return whether this user may mount."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists()


def _run(*command: object, check: bool = True) -> int:
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.returncode
