"""Environments for the tests of bridges; in a file of their own, so that workers and other trainers can load them."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from grpo_core import MASK, Environment, Message, Reward, Rollout, Task, TaskKey, Verdict


@dataclass(frozen=True, slots=True)
class Config:
    """shout: asks for capital letters; log: file to which every verdict adds a line; fail_on: the verifier fails for answers that begin so."""

    shout: bool = False
    log: str = ""
    fail_on: str = ""


class Spelling(Environment[str]):
    """Repeat a word. An answer that begins with an order makes the verifier fail in the way it names."""

    Config = Config
    parts = MappingProxyType({"letters": 0.25, "exact": 0.75})
    timeout_seconds = 2.0
    max_new_tokens = 8
    levels = False
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[str]:
        word = "".join(key.rng().choices("abcdefgh", k=4))
        word = word.upper() if self.config.shout else word
        return Task(key, (Message("user", f"Repeat {word}"),), word)

    def size(self, split: str) -> int | None:
        return None if split == "train" else 12

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        if self.config.log:
            with Path(self.config.log).open("a") as log:
                log.write(f"{task.key.index} {task.draw} {rollout.finish}\n")
        text = rollout.text
        if text.startswith("raise") or text[:1] in [*self.config.fail_on]:
            raise ValueError("the dictionary is missing")
        if text.startswith("die"):
            os._exit(7)
        if text.startswith("sleep"):
            time.sleep(3600)
        letters = sum(character in task.data for character in text) / max(1, len(text))
        exact = text == task.data and rollout.finish == "stop"
        return Verdict({"letters": Reward(letters), "exact": Reward(exact)}, passed=exact)

    def reference(self, task: Task[str]) -> str:
        return task.data


class RawSpelling(Spelling):
    """The same after a prompt of raw text."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        return Task(key, f"{task.data} ", task.data)


class Gaps(Spelling):
    """The word is to be filled in by a masked language model."""

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, f"The word is {MASK}", "word")


class Talking(Spelling):
    """Repeat the word until it is right; the environment says how many letters fit."""

    max_turns = 3
    max_new_tokens = 40

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        text = messages[-1].content
        if text.startswith("silence"):
            raise RuntimeError("the dialogue partner broke")
        fits = sum(character in task.data for character in text)
        return None if text == task.data else (Message("user", f"{fits} fit"),)


class RawTalking(Talking):
    """Dialogues after a prompt of raw text."""

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, "word: ", "word")


class Toolbox(Spelling):
    """The policy may look letters up."""

    max_turns = 3
    max_new_tokens = 100

    def tools(self) -> Sequence[object]:
        return (look_up,)


def look_up(letter: str) -> str:
    """Say whether a letter is used."""
    return f"{letter} is used"


class Single(Toolbox):
    """Tools, but no turn in which they could be called."""

    max_turns = 1
