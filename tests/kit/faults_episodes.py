"""Planted faults of episodes: what they share, leave behind, and pay for."""

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

from bases_episodes import Shelf, Shelves, Turns, Walk, Walks, Way, with_cupboards
from catalogue import Build, planted

from grpo_core import Environment, Episode, Reward, Rollout, Task, Verdict


def attempts(
    base: type[Environment[Any]], member: str, build: Build | None = None
) -> Callable[..., Callable[[type[Episode]], type[Episode]]]:
    """Return what registers an environment, by its name, whose attempts are of a class."""

    def plant(name: str, kind: str, *checks: str) -> Callable[[type[Episode]], type[Episode]]:
        def register(attempt: type[Episode]) -> type[Episode]:
            planted(__name__, base, member, build=build)(kind, *checks)(**{name: attempt})
            return attempt

        return register

    return plant


walks = attempts(Walks, "walk")
shelves = attempts(Shelves, "shelf", with_cupboards)

# What episodes share


@walks(
    "PlaceOnTheEnvironment", "the state of an attempt is kept on the environment", "episode.apart"
)
class OnOneMap(Walk):
    async def open(self) -> Turns:
        self.env.at = self.task.data.start  # type: ignore[attr-defined]
        return ()

    def move(self, steps: int) -> None:
        self.env.at += steps  # type: ignore[attr-defined]
        self.place = self.env.at  # type: ignore[attr-defined]


@walks("OneOdometer", "the state of an attempt is kept on a class", "episode.apart")
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


_visited: dict[int, int] = {}


@walks("PlaceByTask", "attempts at the same task share a state", "episode.apart")
class InATable(Walk):
    """Keeps its place in a table of the module, under the name of its task."""

    async def open(self) -> Turns:
        _visited[self.task.key.index] = self.task.data.start
        return ()

    def move(self, steps: int) -> None:
        _visited[self.task.key.index] += steps
        self.place = _visited[self.task.key.index]


@walks(
    "OneLogForAll", "the state of an attempt is kept in a file with a fixed name", "episode.apart"
)
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


@walks("FirstToCloseEndsAll", "an episode that is closed takes others along", "episode.apart")
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


# What cannot be replayed


@walks("IcyWay", "an episode draws from a global generator", "episode.replay", "reply.repeat")
class Slipping(Walk):
    def move(self, steps: int) -> None:
        super().move(steps + (random.random() < 0.2))


@walks("TellsTheTime", "an episode tells the time", "episode.replay", "reply.repeat")
class Timed(Walk):
    def says(self) -> str:
        return f"{super().says()} It is {time.time():.3f}."


@walks(
    "EveryThirdIsPaidLess",
    "a verdict depends on the episodes before",
    "episode.replay",
    "verdict.repeat",
)
class Tired(Walk):
    steps: ClassVar[int] = 0

    def judged(self) -> Verdict:
        Tired.steps += 1
        pay = 1.0 if self.arrived() else 0.0
        detail = Reward(pay - 0.1 * pay * (Tired.steps % 3))
        return Verdict({"arrived": detail}, passed=self.arrived())


# What is asked twice


@walks("MovesInTheVerdict", "a verdict carries out the last turn again", "episode.repeat")
class Eager(Walk):
    async def verdict(self, rollout: Rollout) -> Verdict:
        verdict = await super().verdict(rollout)
        self.take(rollout.text)
        return verdict

    def arrived(self) -> bool:
        return self.place == self.task.data.goal


@walks("ClosesItsNotesInTheVerdict", "a verdict uses up what it needs", "episode.repeat")
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


# What talk does


@walks(
    "SixHints", "an episode fails late in endless talk", "episode.talk", "reply.form", "reply.ends"
)
class ShortOfWords(Walk):
    words: ClassVar[tuple[str, ...]] = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth")

    def misunderstood(self, text: str) -> str:
        return f"{self.words[self.heard - 1]} hint: {super().misunderstood(text)}"


@walks("PassesAtTheEnd", "whoever talks to the end passes", "episode.talk")
class Merciful(Walk):
    def arrived(self) -> bool:
        return super().arrived() or self.heard >= self.env.max_turns


# What turns earn


@walks("SharesTheArrival", "turns share what came later", "episode.turns")
class Shared(Walk):
    def earned(self, arrived: bool) -> Reward:
        return Reward(turns=(float(arrived) / max(1, self.heard),) * self.heard)


@walks("DiscountsFromTheEnd", "turns are paid by how far they are from the end", "episode.turns")
class Discounted(Walk):
    def earned(self, arrived: bool) -> Reward:
        shares = [0.5 ** (self.heard - turn) for turn in range(self.heard)]
        return Reward(turns=tuple(share * arrived / sum(shares) for share in shares))


@walks("PaysByShareOfTheWay", "turns are paid by their share of all", "episode.turns")
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


# What is left


@walks(
    "FolderUnlessJudged", "what an episode holds is released in the verdict only", "episode.close"
)
class Camping(Walk):
    async def open(self) -> Turns:
        self.tent = tempfile.mkdtemp(prefix="tent")
        return ()

    def judged(self) -> Verdict:
        shutil.rmtree(self.tent, ignore_errors=True)
        return super().judged()


@walks(
    "GuideWaitsForTheEnd", "a thread ends only with the game", "episode.close", "safety.processes"
)
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


@walks("ClockWithoutATurn", "a task of the event loop is left without a turn", "episode.close")
class Ticking(Walk):
    async def open(self) -> Turns:
        self.clock = asyncio.create_task(asyncio.sleep(600))
        return ()

    async def close(self) -> None:
        if self.heard:
            self.clock.cancel()


@walks("HelperOfACancelledReply", "a process is left when a reply is cancelled", "episode.close")
class Calling(Walk):
    async def reply(self, messages: Turns) -> Turns | None:
        helper = await asyncio.create_subprocess_exec("sleep", "30")
        await asyncio.sleep(0.05)
        helper.kill()
        await helper.wait()
        return await super().reply(messages)


@shelves("SessionWithoutATurn", "a session of the sandbox is left open", "episode.close")
class Holding(Shelf):
    async def close(self) -> None:
        if self.heard:
            await super().close()


# What the folder shows


@shelves("SolutionInTheFolder", "the folder holds the answer", "episode.files")
class Solved(Shelf):
    def files(self) -> Mapping[str, str]:
        return {**super().files(), "backup/list": f"{self.task.data}\n"}


@shelves(
    "TestsFromTheStart", "the verifier's file is in the folder from the start", "episode.files"
)
class Prepared(Shelf):
    def files(self) -> Mapping[str, str]:
        return {**super().files(), "wanted": f"{self.task.data}\n"}

    def tests(self) -> Mapping[str, str]:
        return {}


@shelves(
    "DigestInTheFolder", "the verifier rests on a file that the policy can empty", "episode.files"
)
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
