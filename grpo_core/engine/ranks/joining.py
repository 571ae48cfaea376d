"""Join the other processes of a run, and refuse whoever is none of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import torch.distributed as dist

from grpo_core.calls.meeting_folder import MeetingFolder
from grpo_core.engine.ranks.exchange import prove_membership
from grpo_core.engine.ranks.meetings import Meetings, MeetingsInFile, MeetingsInStore
from grpo_core.protocol.errors import ConfigError, RunStoppedError

SECRET = "GRPO_SECRET"
"""The environment variable with the secret of processes that another launcher starts."""
_LEAST_SECRET = 16
"""Fewest characters of it, so that it cannot be guessed from what is sent."""
_POLL_SECONDS = (0.001, 0.05)
"""Least and most time between two checks for processes that have not arrived."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The processes of a run, seen from one of them."""

    rank: int
    size: int
    meetings: Meetings

    def wait_for_all(self, seconds: float) -> Iterator[float]:
        """Yield until all processes have arrived how long the caller has to sleep.

        Raises:
            RunStoppedError: a process did not arrive within `seconds`.
        """
        deadline = time.monotonic() + seconds
        pause, most = _POLL_SECONDS
        self.meetings.begin()
        while (late := self.meetings.missing()) is not None:
            if time.monotonic() > deadline:
                raise RunStoppedError(
                    f"process {late} of {self.size} did not arrive within {seconds:g} s;"
                    " look at its output, then use --resume"
                )
            yield pause
            pause = min(2 * pause, most)
        self.meetings.end()


class _Joined:
    """Hold what a process has only once: its place among the others."""

    group: RankGroup | None = None


def join(*, seconds: float, on_cpu: bool) -> RankGroup | None:
    """Return the group of processes that this one belongs to; None if it is alone.

    Args:
        seconds: how long to wait for the last process.
        on_cpu: True if the model is on the CPU, even where an accelerator is present.

    Raises:
        ConfigError: the secret or the machine's network cannot be used.
        RunStoppedError: a process did not come, or does not have the secret.
    """
    is_ready = dist.is_available() and dist.is_initialized()
    if not is_ready and int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return None
    if _Joined.group is None:
        folder = None if is_ready else MeetingFolder.of_this_process()
        secret = _given_secret() if folder is None else folder.secret.read_bytes()
        if folder is not None:
            group = _join_in(folder, seconds=seconds, on_cpu=on_cpu)
        elif is_ready or _join_by_environment(on_cpu=on_cpu):
            rank, size = dist.get_rank(), dist.get_world_size()
            group = RankGroup(rank, size, MeetingsInStore(rank, size))
            _wait(group, seconds)  # NCCL itself does not, and the proof has a deadline
        else:
            return None
        prove_membership(secret)
        if folder is not None and group.rank == 0:
            folder.secret.unlink(missing_ok=True)
        _Joined.group = group
    return _Joined.group


def _join_in(folder: MeetingFolder, *, seconds: float, on_cpu: bool) -> RankGroup:
    """Join the processes that `--processes` has started."""
    from accelerate import PartialState

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = RankGroup(rank, size, MeetingsInFile(folder.arrivals, rank, size))
    # Ports are opened when all are there, so that little time is left to connect to one of them.
    _wait(group, seconds)
    _listen_on_this_machine_only()
    store = dist.FileStore(str(folder.store), size)  # type: ignore[attr-defined]
    PartialState(cpu=on_cpu, store=store, rank=rank, world_size=size)
    return group


def _wait(group: RankGroup, seconds: float) -> None:
    for pause in group.wait_for_all(seconds):
        time.sleep(pause)


def _join_by_environment(*, on_cpu: bool) -> bool:
    """Join the processes that torchrun or accelerate has started; return whether there are any."""
    from accelerate import PartialState

    PartialState(cpu=on_cpu)
    return dist.is_available() and dist.is_initialized()


def _given_secret() -> bytes:
    """Return the secret that the user gave all processes; empty if there is none.

    Programs that this process starts do not get it.

    Raises:
        ConfigError: it is too short.
    """
    secret = os.environ.pop(SECRET, "")
    if secret and len(secret) < _LEAST_SECRET:
        raise ConfigError(
            f"{SECRET} has {len(secret)} characters, which others on the network could guess; give "
            f"it at least {_LEAST_SECRET}, as `openssl rand -hex 32` prints them"
        )
    return secret.encode(errors="surrogateescape")


def _listen_on_this_machine_only() -> None:
    """Make torch's libraries use the loopback interface, whatever the user's settings are.

    Raises:
        ConfigError: there is none, or it is down.
    """
    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        is_loopback = any(address.address.startswith("127.") for address in addresses)
        if is_loopback and name in states and states[name].isup:
            os.environ["GLOO_SOCKET_IFNAME"] = name
            os.environ["NCCL_SOCKET_IFNAME"] = f"={name}"
            os.environ["NCCL_RAS_ENABLE"] = "0"  # a port on which anybody may ask for its state
            return
    raise ConfigError(
        "the processes talk to each other through 127.0.0.1, which this machine does not have; "
        "bring its loopback interface up, on Linux by `ip link set lo up`"
    )
