"""An environment, a judge, a sandbox and a plugin whose every name and text is hostile: `EVIL` and `HALF`, once a test has set them."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_core import (
    Environment,
    Judgement,
    Message,
    NoConfig,
    Outcome,
    Reward,
    Spec,
    Task,
    Verdict,
    hookimpl,
)

EVIL = HALF = ""
PART = EVIL


def noise() -> None:
    """Say on every way what nobody asked for."""
    print(EVIL + HALF)
    sys.stderr.write(EVIL + HALF + "\n")
    logging.getLogger("grpo_evil").warning("%s", EVIL)


noise()


@dataclass(frozen=True)
class Config:
    fail: bool = False
    text: str = ""


class Bug(Environment[str]):
    __doc__ = EVIL + "\n\n" + EVIL
    Config = Config
    parts: ClassVar[Mapping[str, float]] = {PART: 1.0}
    max_turns = 2
    max_new_tokens = 8
    trusted = True

    def task(self, key: Any) -> Task[str]:
        noise()
        return Task(key, (Message("user", f"{EVIL} {key.index} {'x' * 100}"),), EVIL)

    def reference(self, task: Task[str]) -> str:
        return EVIL

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return [EVIL]

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message]:
        noise()
        return [Message("user", EVIL)]

    def verify(self, task: Task[str], rollout: Any) -> Verdict:
        noise()
        if self.config.fail or "crash" in rollout.text:
            raise RuntimeError(EVIL + HALF)
        share = sum(map(ord, rollout.text)) % 7 / 7
        reward = Reward(share, note=EVIL + HALF + "y" * 1_000_000 * (rollout.text == "long"))
        more = {"metrics": {EVIL: share}, "detail": {EVIL: EVIL}}
        return Verdict({PART: reward}, passed=share > 0.4, answer=EVIL + HALF, **more)


class Caged(Bug):
    """The same in a worker, which dies of some answers."""

    trusted = False

    def verify(self, task: Task[str], rollout: Any) -> Verdict:
        noise()
        if "crash" in rollout.text:
            os._exit(3)
        raise RuntimeError(EVIL + "z" * 1_000_000)


class Long(Bug):
    """The same with lines of a megabyte."""

    def task(self, key: Any) -> Task[str]:
        return Task(key, (Message("user", f"{EVIL}{'x' * 1_000_000}{EVIL}"),), EVIL)


class Judge:
    """Prefers nothing and says so."""

    Config = NoConfig

    def __init__(self, config: object) -> None:
        noise()

    async def judge(self, requests: Sequence[Any]) -> Sequence[Judgement]:
        failed = [EVIL if "fail" in request.candidate else None for request in requests]
        return [Judgement(0.5, EVIL, error=error) for error in failed]

    def fingerprint(self) -> str:
        return EVIL

    async def close(self) -> None:
        noise()


class Box:
    """A sandbox that answers every call with an error."""

    Config = NoConfig

    def __init__(self, config: object) -> None:
        noise()

    @staticmethod
    def build(origin: object, *, mirror: object, say: Any) -> None:
        say(EVIL + HALF)

    @staticmethod
    def prune(*, say: Any) -> None:
        say(EVIL + HALF)

    async def run(self, programs: Sequence[Any]) -> Sequence[Sequence[Outcome]]:
        error = Outcome("infra_error", error=EVIL)
        return [[error] * len(program.inputs) for program in programs]

    async def close(self) -> None:
        noise()


@hookimpl
def grpo_environments() -> Sequence[Spec]:
    return [
        Spec("evil", f"{__name__}:Bug", summary=EVIL, extra=None),
        Spec(f"evil/{EVIL}", f"{__name__}:{EVIL}", summary=EVIL),
    ]


@hookimpl
def grpo_judges() -> Sequence[Spec]:
    return [Spec("evil", f"{__name__}:Judge", summary=EVIL)]


@hookimpl
def grpo_sandboxes() -> Sequence[Spec]:
    return [Spec("evil", f"{__name__}:Box", summary=EVIL)]


@hookimpl
def grpo_recipes() -> Sequence[Spec]:
    return [Spec("evil", f"{__name__}:RECIPE", summary=EVIL)]


RECIPE: Mapping[str, Any] = {EVIL: EVIL}
