"""An episode whose verdict runs a command in the session of the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_core import (
    Environment,
    Episode,
    Limits,
    Message,
    Reward,
    Rollout,
    Session,
    Task,
    TaskKey,
    Verdict,
)

LIMITS = Limits(wall_seconds=10, cpu_seconds=5, memory_mb=256, processes=16, file_mb=2)
CHECK = "import json\nprint(json.loads(open('out').read()) == {})\n"


@dataclass(frozen=True)
class Config:
    command: Any = ""
    of_policy: bool = False


class Desk(Episode):
    def __init__(self, task: Task[int], env: Desks) -> None:
        self.task, self.env = task, env
        self.session: Session | None = None

    async def open(self) -> Sequence[Message]:
        self.session = await self.env.services.sandbox().session(limits=LIMITS)
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        assert self.session is not None
        if not messages[-1].content.startswith("echo "):
            return None
        await self.session.exec(messages[-1].content)
        return (Message("user", "ok"),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        assert self.session is not None
        await self.session.write({"check.py": CHECK.format(self.task.data)})
        config = self.env.config
        result = await self.session.exec(config.command, of_policy=config.of_policy)
        right = result.stdout.strip() == "True"
        return Verdict({"right": Reward(float(right))}, passed=right)

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


class Desks(Environment[int]):
    Config = Config
    parts: ClassVar[Mapping[str, float]] = {"right": 1.0}
    needs = frozenset({"sandbox"})
    timeout_seconds = 60.0
    max_turns = 3
    replayable = True

    def task(self, key: TaskKey) -> Task[int]:
        number = key.rng().randrange(100, 5000)
        return Task(key, (Message("user", f"Put twice {number} into the file out."),), 2 * number)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (f"echo {task.data} > out", "done")

    def episode(self, task: Task[int]) -> Episode:
        return Desk(task, self)
