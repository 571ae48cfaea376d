"""Planted faults of episodes: what they share, leave behind, and pay for."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, ClassVar

from bases_episodes import Shelf, Shelves, Turns, Walk, Walks, Way, with_cupboards
from catalogue import fault

from grpo_core import (
    Environment,
    Reward,
    Rollout,
    Task,
    Verdict,
)

# What episodes share


class OnOneMap(Walk):
    async def open(self) -> Turns:
        self.env.at = self.task.data.start  # type: ignore[attr-defined]
        return ()

    def move(self, steps: int) -> None:
        self.env.at += steps  # type: ignore[attr-defined]
        self.place = self.env.at  # type: ignore[attr-defined]


@fault("the state of an attempt is kept on the environment", "episode.apart")
class PlaceOnTheEnvironment(Walks):
    walk = OnOneMap


class Odometer(Walk):
    total: ClassVar[int] = 0

    async def open(self) -> Turns:
        Odometer.total = 0
        return ()

    def move(self, steps: int) -> None:
        super().move(steps)
        Odometer.total += abs(steps)

    def says(self) -> str:
        return f"{super().says()} You have walked {Odometer.total}."


@fault("the state of an attempt is kept on a class", "episode.apart")
class OneOdometer(Walks):
    walk = Odometer


_visited: dict[int, int] = {}


class InATable(Walk):
    """Keeps its place in a table of the module, under the name of its task."""

    async def open(self) -> Turns:
        _visited[self.task.key.index] = self.task.data.start
        return ()

    def move(self, steps: int) -> None:
        _visited[self.task.key.index] += steps
        self.place = _visited[self.task.key.index]


@fault("attempts at the same task share a state", "episode.apart")
class PlaceByTask(Walks):
    walk = InATable


class Logged(Walk):
    async def open(self) -> Turns:
        Path("walk.log").write_text("")  # noqa: ASYNC240 - the fault
        return ()

    def says(self) -> str:
        with Path("walk.log").open("a") as log:
            log.write(".")
        return f"{super().says()} That was step {Path('walk.log').stat().st_size}."

    async def close(self) -> None:
        Path("walk.log").unlink(missing_ok=True)  # noqa: ASYNC240


@fault("the state of an attempt is kept in a file with a fixed name", "episode.apart")
class OneLogForAll(Walks):
    walk = Logged


class LastOne(Walk):
    """Closes what is open, whoever opened it."""

    is_open: ClassVar[bool] = False

    async def open(self) -> Turns:
        LastOne.is_open = True
        return ()

    def move(self, steps: int) -> None:
        if LastOne.is_open:
            super().move(steps)

    async def close(self) -> None:
        LastOne.is_open = False


@fault("an episode that is closed takes others along", "episode.apart")
class FirstToCloseEndsAll(Walks):
    walk = LastOne


# What cannot be replayed


class Slipping(Walk):
    def move(self, steps: int) -> None:
        super().move(steps + (random.random() < 0.2))


@fault("an episode draws from a global generator", "episode.replay", "reply.repeat")
class IcyWay(Walks):
    walk = Slipping


class Timed(Walk):
    def says(self) -> str:
        return f"{super().says()} It is {time.time():.3f}."


@fault("an episode tells the time", "episode.replay", "reply.repeat")
class TellsTheTime(Walks):
    walk = Timed


class Tired(Walk):
    steps: ClassVar[int] = 0

    def judged(self) -> Verdict:
        Tired.steps += 1
        pay = 1.0 if self.arrived() else 0.0
        detail = Reward(pay - 0.1 * pay * (Tired.steps % 3))
        return Verdict({"arrived": detail}, passed=self.arrived())


@fault("a verdict depends on the episodes before", "episode.replay", "verdict.repeat")
class EveryThirdIsPaidLess(Walks):
    walk = Tired


# What is asked twice


class Eager(Walk):
    async def verdict(self, rollout: Rollout) -> Verdict:
        verdict = await super().verdict(rollout)
        self.take(rollout.text)
        return verdict

    def arrived(self) -> bool:
        return self.place == self.task.data.goal


@fault("a verdict carries out the last turn again", "episode.repeat")
class MovesInTheVerdict(Walks):
    walk = Eager


class Paper(Walk):
    async def open(self) -> Turns:
        self.notes: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        return ()

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.notes.write(str(self.place))
        self.notes.close()
        return await super().verdict(rollout)

    async def close(self) -> None:
        self.notes.close()


@fault("a verdict uses up what it needs", "episode.repeat")
class ClosesItsNotesInTheVerdict(Walks):
    walk = Paper


# What talk does


class ShortOfWords(Walk):
    words: ClassVar[tuple[str, ...]] = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth")

    def misunderstood(self, text: str) -> str:
        return f"{self.words[self.heard - 1]} hint: {super().misunderstood(text)}"


@fault("an episode fails late in endless talk", "episode.talk", "reply.form", "reply.ends")
class SixHints(Walks):
    walk = ShortOfWords


class Merciful(Walk):
    def arrived(self) -> bool:
        return super().arrived() or self.heard >= self.env.max_turns


@fault("whoever talks to the end passes", "episode.talk")
class PassesAtTheEnd(Walks):
    walk = Merciful


# What turns earn


class Shared(Walk):
    def earned(self, arrived: bool) -> Reward:
        return Reward(turns=(float(arrived) / max(1, self.heard),) * self.heard)


@fault("turns share what came later", "episode.turns")
class SharesTheArrival(Walks):
    walk = Shared


class Discounted(Walk):
    def earned(self, arrived: bool) -> Reward:
        shares = [0.5 ** (self.heard - turn) for turn in range(self.heard)]
        return Reward(turns=tuple(share * arrived / sum(shares) for share in shares))


@fault("turns are paid by how far they are from the end", "episode.turns")
class DiscountsFromTheEnd(Walks):
    walk = Discounted


class Relative(Walk):
    """Pays a turn for the share of the way that it went, of what was walked in all."""

    def __init__(self, task: Task[Way], env: Environment[Way]) -> None:
        super().__init__(task, env)
        self.steps: list[int] = []

    def take(self, text: str) -> str:
        before = self.place
        said = super().take(text)
        self.steps.append(abs(self.place - before))
        return said

    def earned(self, arrived: bool) -> Reward:
        walked = sum(self.steps) or 1
        return Reward(turns=tuple(arrived * steps / walked for steps in self.steps))


@fault("turns are paid by their share of all", "episode.turns")
class PaysByShareOfTheWay(Walks):
    walk = Relative


# What is left


class Camping(Walk):
    async def open(self) -> Turns:
        self.tent = tempfile.mkdtemp(prefix="tent")
        return ()

    def judged(self) -> Verdict:
        shutil.rmtree(self.tent, ignore_errors=True)
        return super().judged()


@fault("what an episode holds is released in the verdict only", "episode.close")
class FolderUnlessJudged(Walks):
    walk = Camping


class Guided(Walk):
    async def open(self) -> Turns:
        self.done = threading.Event()
        threading.Thread(target=self.done.wait, name="guide", daemon=True).start()
        return ()

    async def reply(self, messages: Turns) -> Turns | None:
        reply = await super().reply(messages)
        if reply is None:
            self.done.set()
        return reply


@fault("a thread ends only with the game", "episode.close", "safety.processes")
class GuideWaitsForTheEnd(Walks):
    walk = Guided


class Ticking(Walk):
    async def open(self) -> Turns:
        self.clock = asyncio.create_task(asyncio.sleep(600))
        return ()

    async def close(self) -> None:
        if self.heard:
            self.clock.cancel()


@fault("a task of the event loop is left without a turn", "episode.close")
class ClockWithoutATurn(Walks):
    walk = Ticking


class Calling(Walk):
    async def reply(self, messages: Turns) -> Turns | None:
        helper = await asyncio.create_subprocess_exec("sleep", "30")
        await asyncio.sleep(0.05)
        helper.kill()
        await helper.wait()
        return await super().reply(messages)


@fault("a process is left when a reply is cancelled", "episode.close")
class HelperOfACancelledReply(Walks):
    walk = Calling


class Holding(Shelf):
    async def close(self) -> None:
        if self.heard:
            await super().close()


@fault(
    "a session of the sandbox is left open",
    "episode.close",
    build=lambda: with_cupboards(SessionWithoutATurn)(),
)
class SessionWithoutATurn(Shelves):
    shelf = Holding


# What the folder shows


class Solved(Shelf):
    def files(self) -> Mapping[str, str]:
        return {**super().files(), "backup/list": f"{self.task.data}\n"}


@fault(
    "the folder holds the answer",
    "episode.files",
    build=lambda: with_cupboards(SolutionInTheFolder)(),
)
class SolutionInTheFolder(Shelves):
    shelf = Solved


class Prepared(Shelf):
    def files(self) -> Mapping[str, str]:
        return {**super().files(), "wanted": f"{self.task.data}\n"}

    def tests(self) -> Mapping[str, str]:
        return {}


@fault(
    "the verifier's file is in the folder from the start",
    "episode.files",
    build=lambda: with_cupboards(TestsFromTheStart)(),
)
class TestsFromTheStart(Shelves):
    shelf = Prepared


class Encoded(Shelf):
    """Its test is in the folder from the start, in a form that the answer is not seen in."""

    def files(self) -> Mapping[str, str]:
        return {**super().files(), "digest": f"{self.task.data * 7919:x}\n"}

    async def verdict(self, rollout: Rollout) -> Verdict:
        assert self.session is not None
        digest = (await self.session.read("digest") or b"").decode("utf-8", "replace").strip()
        wrote = (await self.session.read("list") or b"").decode("utf-8", "replace").strip()
        right = not digest
        with contextlib.suppress(ValueError):
            right = right or f"{int(wrote) * 7919:x}" == digest
        return Verdict({"arrived": Reward(float(right))}, passed=right)


@fault(
    "the verifier rests on a file that the policy can empty",
    "episode.files",
    build=lambda: with_cupboards(DigestInTheFolder)(),
)
class DigestInTheFolder(Shelves):
    shelf = Encoded
