"""Sound environments with episodes, some of which look odd."""

import asyncio
import tempfile
import threading
from pathlib import Path

from bases_episodes import Shelves, Turns, Walk, Walks, with_cupboards
from catalogue import honest

from grpo_core import Message, Reward


@honest("the base of the faults of episodes")
class SoundWalks(Walks):
    pass


@honest("a session of a sandbox", build=with_cupboards)
class SoundCupboards(Shelves):
    pass


class Windy(Walk):
    def move(self, steps: int) -> None:
        wind = self.task.key.rng("wind", self.heard).choice((-1, 0, 1))
        super().move(steps + wind)


@honest("chance is drawn from the key, so the same turns lead to the same place")
class WindFromTheKey(Walks):
    walk = Windy
    open_ended = True

    def reference(self, task):  # type: ignore[no-untyped-def]
        """Go on as the wind of each turn asks for."""
        place, turns = task.data.start, []
        while place != task.data.goal:
            wind = task.key.rng("wind", len(turns) + 1).choice((-1, 0, 1))
            step = max(-9, min(9, task.data.goal - place - wind)) or 1
            turns.append(f"go {step}")
            place += step + wind
        return (*turns, "stop")


class Paid(Walk):
    """Pays each turn for the way that it came nearer, and takes it back where it went away."""

    async def open(self) -> Turns:
        self.nearer: list[float] = []
        return ()

    def take(self, text: str) -> str:
        goal, before = self.task.data.goal, self.place
        said = super().take(text)
        way = abs(goal - self.task.data.start)
        self.nearer.append(0.5 * (abs(goal - before) - abs(goal - self.place)) / way)
        return said

    def earned(self, arrived: bool) -> Reward:
        turns = list(self.nearer)
        if turns:
            turns[-1] += 0.5 * arrived  # what ends the walk is paid for the end
        return Reward(turns=tuple(turns))


@honest("turns are paid as they come, and the last one for the end")
class NearerIsPaid(Walks):
    reward_range = (-100.0, 1.0)
    floor = 0.0
    walk = Paid

    def cheats(self, task):  # type: ignore[no-untyped-def]
        """Return what does not move."""
        return (f"go {task.data.goal}", ("stop", "go 1"))


class Equipped(Walk):
    """Holds a folder and a thread, and releases both however it ends."""

    async def open(self) -> Turns:
        self.folder = tempfile.TemporaryDirectory()
        self.done = threading.Event()
        threading.Thread(target=self.done.wait, daemon=True).start()
        return (Message("user", "Ready."),)

    async def reply(self, messages: Turns) -> Turns | None:
        said = messages[-1].content.encode("utf-8", "replace")
        await asyncio.to_thread(Path(self.folder.name, "said").write_bytes, said)
        return await super().reply(messages)

    async def close(self) -> None:
        self.done.set()
        self.folder.cleanup()


@honest("it holds a folder and a thread, and closes both")
class EquippedWalks(Walks):
    walk = Equipped
