"""Tell the other processes of a run how far this one has come, without a collective."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch.distributed as dist

from grpo_core.protocol.errors import RunStoppedError


class Meetings(ABC):
    """The meetings of this process with the others, which are numbered from 1.

    No process begins one before all have arrived at the one before.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._number = 0

    def begin(self) -> None:
        """Say that this process has arrived at the next meeting."""
        self._number += 1
        self._announce(self._number)

    def missing(self) -> int | None:
        """Return the rank of a process that has not arrived; None if all have."""
        others = (other for other in range(self._size) if other != self._rank)
        return next((other for other in others if not self._is_here(other, self._number)), None)

    def end(self) -> None:  # noqa: B027 - most have nothing to remove
        """Remove what nobody needs any more, once all have arrived."""

    @abstractmethod
    def _announce(self, number: int) -> None:
        """Say that this process has arrived at a meeting."""

    @abstractmethod
    def _is_here(self, other: int, number: int) -> bool:
        """Return whether another process has arrived at a meeting."""


class MeetingsInFile(Meetings):
    """Meetings of processes on one machine, in a file with one byte for each process.

    The byte is the number of the last meeting modulo 256: nobody is more than one ahead.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _announce(self, number: int) -> None:
        try:
            os.pwrite(self._file, bytes([number % 256]), self._rank)
        except OSError as error:
            raise RunStoppedError(
                f"the folder in which the processes meet cannot be written: {error.strerror}"
            ) from None

    def _is_here(self, other: int, number: int) -> bool:
        return (os.pread(self._file, 1, other)[0] - number) % 256 in (0, 1)


class MeetingsInStore(Meetings):
    """Meetings of processes that another launcher has started, in the store that it gave them."""

    def _announce(self, number: int) -> None:
        self._store().set(self._key(self._rank, number), "here")

    def _is_here(self, other: int, number: int) -> bool:
        return bool(self._store().check([self._key(other, number)]))

    def end(self) -> None:
        if self._number > 1:  # all processes have left the previous meeting
            self._store().delete_key(self._key(self._rank, self._number - 1))

    def _store(self) -> Any:
        return dist.distributed_c10d._get_default_store()

    def _key(self, rank: int, number: int) -> str:
        return f"grpo meeting {number} {rank}"
