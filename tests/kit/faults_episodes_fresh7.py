"""Episodes with a planted fault each."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Sequence
from datetime import datetime

from bases_b3_fresh7 import (
    Bucket,
    Flips,
    Heating,
    Kiln,
    KilnDial,
    LadlesOfPaint,
    Paint,
    PairsOfCards,
    SeedBags,
    Shed,
    Sowing,
    turns_of_policy,
)
from bases_b4_fresh7 import Folder, Orders, OrdersInACsv
from catalogue import fault

from grpo_core import Message, Reward, Rollout, Services, Task, Verdict
from grpo_sandbox.auto import Auto

_LOG = logging.getLogger(__name__)
CONTROLLER = """
import select, sys, time
base, slope = map(int, sys.stdin.readline().split())
time.sleep(0.3)
print("ready", flush=True)
while select.select([sys.stdin], [], [], 15)[0]:
    line = sys.stdin.readline()
    if not line:
        break
    print(base + slope * int(line), flush=True)
"""
"""A kiln that warms up and then answers to settings, until nobody has set it for a while."""


class ControlledHeating(Heating):
    """Measures with a controller that is started for each measurement and stopped after it."""

    async def measure(self) -> int:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", CONTROLLER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stdin is not None, "it was asked for"
        assert program.stdout is not None, "it was asked for"
        program.stdin.write(f"{self.kiln.base} {self.kiln.slope}\n".encode())
        await program.stdout.readline()
        program.stdin.write(f"{self.setting}\n".encode())
        degrees = int(await program.stdout.readline())
        program.kill()
        await program.wait()
        return degrees


@fault("a process is left when a reply is cancelled", "episode.close")
class KilnLeftOn(KilnDial):
    """Stops the controller of the kiln after the measurement.

    A reply that is cancelled while the kiln warms up leaves the controller behind.
    """

    def episode(self, task: Task[Kiln]) -> Heating:
        return ControlledHeating(task.data)


class AnnouncedSowing(Sowing):
    """Tells the log every second that the attempt goes on."""

    def __init__(self, shed: Shed) -> None:
        super().__init__(shed)
        self.over = threading.Event()

    async def open(self) -> Sequence[Message]:
        threading.Thread(target=self.announce, daemon=True).start()
        return ()

    def announce(self) -> None:
        """Write a line to the log until the game is over."""
        while not self.over.wait(1.0):
            _LOG.debug("still sowing: %s", self.taken)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        answer = await super().reply(messages)
        if answer is None:
            self.over.set()
        return answer


@fault("a thread ends only with the game", "episode.close", "safety.processes")
class SeedsAnnounced(SeedBags):
    """Has a thread that logs a sign of life, and ends it when all seeds were taken.

    In each attempt that runs out of turns or is cut off, the thread goes on for ever.
    """

    def episode(self, task: Task[Shed]) -> Sowing:
        return AnnouncedSowing(task.data)


class BucketFilledLast(Bucket):
    """Counts in `reply` which turns were carried out."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.seen += 1
        return await super().reply(messages)

    def pour(self, turn: str) -> None:
        self.inside += self.paint.ladles.get(turn.strip(" \t\r\n").removeprefix("pour "), 0)

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = turns_of_policy(rollout)
        if len(turns) > self.seen:
            self.pour(turns[-1])
        right = self.inside == self.paint.target
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=f"{self.inside} ml")


@fault("a verdict carries out the last turn again", "episode.repeat")
class LastLadleAgain(LadlesOfPaint):
    """Pours the last ladle, which no reply has seen, when the attempt is judged.

    It does not note that this was done, so a verdict that is asked for again pours once more.
    """

    def episode(self, task: Task[Paint]) -> Bucket:
        return BucketFilledLast(task.data)


class StampedHeating(Heating):
    """Puts the time before what it tells, as the display of the kiln does."""

    def shown(self, degrees: int) -> str:
        return f"[{datetime.now():%H:%M:%S.%f}] {super().shown(degrees)}"


@fault("an episode tells the time", "episode.replay", "reply.repeat")
class KilnWithADisplay(KilnDial):
    """Tells each measurement with its time, so that an attempt played again reads otherwise."""

    def episode(self, task: Task[Kiln]) -> Heating:
        return StampedHeating(task.data)


class SowingFromTheShed(Sowing):
    """Takes the seeds out of the bags of the task."""

    def __init__(self, shed: Shed) -> None:
        super().__init__(shed)
        self.left = shed.bags


@fault("attempts at the same task share a state", "episode.apart")
class SeedsOfOneShed(SeedBags):
    """Counts the seeds down in the bags that the task holds.

    Whoever attempts the task later finds too few seeds, and cannot finish.
    """

    def episode(self, task: Task[Shed]) -> Sowing:
        return SowingFromTheShed(task.data)


class FlipsOfAllTables(Flips):
    """Keeps the pairs that were found, and which turns found one."""

    found: set[str] = set()  # noqa: RUF012

    def __init__(self, deck: Sequence[str]) -> None:
        self.deck = deck
        self.finds: list[bool] = []

    def is_over(self) -> bool:
        return self.found.issuperset(self.deck)


@fault("the state of an attempt is kept on a class", "episode.apart")
class PairsFoundByOthers(PairsOfCards):
    """Keeps the pairs of an attempt in a set that was written as a default of the class.

    A later attempt begins with the pairs that earlier ones have found, at whatever task.
    """

    def episode(self, task: Task[tuple[str, ...]]) -> Flips:
        return FlipsOfAllTables(task.data)


class FolderWithTheSum(Folder):
    """Compares the file of the policy with the one that holds the right sum."""

    def files(self) -> dict[str, str]:
        return {**super().files(), "tests/expected_total.txt": f"{self.orders.total}\n"}

    async def is_right(self) -> bool:
        assert self.session is not None, "open() comes first"
        written = await self.session.read("total.txt", limit=200)
        expected = await self.session.read("tests/expected_total.txt", limit=200)
        return written is not None and expected is not None and written.strip() == expected.strip()


@fault(
    "the verifier's file is in the folder from the start",
    "episode.files",
    build=lambda: OrdersWithTheirSum(services=Services(sandboxes={"default": Auto()})),
)
class OrdersWithTheirSum(OrdersInACsv):
    """Lays out the folder with the file that the policy's sum is compared with.

    The policy can copy it, or write another sum into it.
    """

    def episode(self, task: Task[Orders]) -> Folder:
        return FolderWithTheSum(task.data, self.services.sandbox())


class FlipsByShare(Flips):
    """Pays the share of the turns that found a pair, to each turn its part."""

    def pay(self) -> Reward:
        turns = max(len(self.finds), len(self.deck) // 2)
        return Reward(turns=tuple(find / turns for find in self.finds))


@fault("turns are paid by their share of all", "episode.turns")
class PairsPerTurn(PairsOfCards):
    """Pays how many of the turns found a pair, so that a policy wastes none.

    What a pair earned in the first turn gets less with each turn that comes later.
    """

    def episode(self, task: Task[tuple[str, ...]]) -> Flips:
        return FlipsByShare(task.data)
