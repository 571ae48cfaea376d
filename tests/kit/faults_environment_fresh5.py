"""Planted faults of the fifth fresh part: the machine and the process."""

from __future__ import annotations

import os
import platform
import random
from pathlib import Path
from typing import Any

from bases_asked_fresh5 import Cargo, Depth, Melody, Permissions, Tides, judged
from catalogue import fault

from grpo_core import Message, Rollout, Task, TaskKey, Verdict, held_out

LETTERS = "ABCDEFGHIJKL"
SCRIPTS = Path(__file__).parent / "scripts"


@fault("a prompt depends on a folder of the machine", "task.process")
class RelativeToWhereItRuns(Permissions):
    """Files are named from the working directory, wherever that is."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        question, commands = super().made(rng, level)
        for command in commands:
            file = command.split()[-1]
            question = question.replace(file, os.path.relpath(SCRIPTS / file))
        return question, [self.moved(command) for command in commands]

    def moved(self, command: str) -> str:
        verb, mode, file = command.split()
        return f"{verb} {mode} {os.path.relpath(SCRIPTS / file)}"


@fault("a prompt depends on the machine's name", "task.process")
class ShardOfTheNode(Cargo):
    """Each node of a cluster draws tasks of its own, so that none is asked twice in a step."""

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng(platform.uname().node)
        while True:
            question, data = self.made(rng, key.level)
            if held_out(question) == (key.split == "eval"):
                return Task(key, (Message("user", question),), data)


@fault("a task depends on an environment variable", "task.process")
class LabelsBySeed(Depth):
    """The wells are shuffled by the seed of the experiment, as the other scripts do it."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        question, deepest = super().made(rng, level)
        first, *wells = question.splitlines()
        depths = [line.partition(": ")[2] for line in wells]
        told = depths[LETTERS.index(deepest)]
        random.Random(os.environ.get("SEED", "0")).shuffle(depths)
        rows = [f"{name}: {depth}" for name, depth in zip(LETTERS, depths, strict=True)]
        return "\n".join((first, *rows)), LETTERS[depths.index(told)]


@fault("a verdict depends on the order of a set", "verdict.process")
class UntilTheFirstMistake(Tides):
    """What is right is paid, harbour by harbour, until the first mistake."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        read = self.read(rollout.text) or {}
        names, good = set(task.data) | set(read), 0
        for name in names:
            if read.get(name) != task.data.get(name):
                break
            good += 1
        return judged(good == len(names), rollout.text, pay=good / len(names))


@fault("a verdict depends on the process", "verdict.process", "task.process", "verdict.repeat")
class TruthAsAHash(Melody):
    """The data hold the hash of the melody, so that no log shows the answer."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        question, melody = super().made(rng, level)
        return question, hash(melody)

    def right(self, data: Any, text: str) -> bool:
        return bool(hash(text.strip()) == data)

    def reference(self, task: Task[Any]) -> Any:
        rng = task.key.rng()
        while True:
            question, melody = super().made(rng, task.key.level)
            if held_out(question) == (task.key.split == "eval"):
                return melody
