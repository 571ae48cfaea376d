"""Environments some of whose tasks cannot be asked of a model with a context of 1024 tokens."""

from collections.abc import Collection, Mapping
from typing import ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.protocol.types import Split

LONG = "x" * 1100


class Rows(Environment[str]):
    """A finite set: reward is the share of characters that are an "a"; rows in `bad` are long."""

    parts: ClassVar[Mapping[str, float]] = {"share": 1.0}
    max_new_tokens = 6
    trusted = True
    levels = False
    sizes: ClassVar[Mapping[Split, int | None]] = {"train": 12, "eval": 6}
    bad: ClassVar[Mapping[Split, Collection[int]]] = {"train": {2, 7}, "eval": {4}}

    def size(self, split: Split) -> int | None:
        return self.sizes[split]

    def is_bad(self, key: TaskKey) -> bool:
        return key.index in self.bad[key.split]

    def task(self, key: TaskKey) -> Task[str]:
        text = f"{key.split} row {key.index}: "
        return Task(key, text + LONG if self.is_bad(key) else text, "a")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        share = rollout.text.count(task.data) / max(1, len(rollout.text))
        return Verdict({"share": Reward(share)}, passed=share >= 0.0, answer=rollout.text)


class Many(Rows):
    """More rows than one message names."""

    sizes: ClassVar[Mapping[Split, int | None]] = {"train": 40, "eval": 6}
    bad: ClassVar[Mapping[Split, Collection[int]]] = {"train": range(0, 40, 2), "eval": ()}


class Generated(Rows):
    """Tasks without end, of which about a third are long."""

    sizes: ClassVar[Mapping[Split, int | None]] = {"train": None, "eval": None}

    def is_bad(self, key: TaskKey) -> bool:
        return key.rng("long").random() < 0.35


class Harder(Generated):
    """The same, whose tasks become longer with the level, so that more cannot be asked."""

    levels = True

    def is_bad(self, key: TaskKey) -> bool:
        if key.split == "eval":
            return key.index == 1
        return key.rng("long").random() < 0.2 + 0.5 * key.level


class Never(Generated):
    """No task can be asked."""

    def is_bad(self, key: TaskKey) -> bool:
        return True


class NoRow(Rows):
    """No row can be asked."""

    bad: ClassVar[Mapping[Split, Collection[int]]] = {"train": range(12), "eval": ()}


class NoHeldOut(Rows):
    """No held-out row can be asked."""

    bad: ClassVar[Mapping[Split, Collection[int]]] = {"train": (), "eval": range(6)}


class Odd(Rows):
    """Chats, of which one is refused by a template that wants the user to speak."""

    bad: ClassVar[Mapping[Split, Collection[int]]] = {"train": {3}, "eval": {1}}

    def task(self, key: TaskKey) -> Task[str]:
        role = "system" if self.is_bad(key) else "user"
        return Task(key, (Message(role, f"{key.split} row {key.index}:"),), "a")

    def reference(self, task: Task[str]) -> str:
        return "aaa"


class Repeated(Rows):
    """The first two held-out prompts are training prompts, one of them in other letters."""

    bad: ClassVar[Mapping[Split, Collection[int]]] = {"train": (), "eval": ()}

    def task(self, key: TaskKey) -> Task[str]:
        if key.split == "eval" and key.index < 2:
            text = f"train row {key.index}:"
            return Task(key, text.upper() if key.index else text, "a")
        return super().task(key)


class Ambiguous(Repeated):
    """Held-out prompts that are training prompts with another answer."""

    def reference(self, task: Task[str]) -> str:
        return "a" if task.key.split == "train" else "aa"


class Sentences(Rows):
    """Prompts that end with a full stop."""

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, f"{key.split} row {key.index}.", "a")


class Broken(Rows):
    """The last held-out row cannot be made, and no evaluation of few tasks needs it."""

    broken: Split = "eval"

    def task(self, key: TaskKey) -> Task[str]:
        if key.split == self.broken and key.index == 5:
            raise ValueError("row 5 is broken")
        return super().task(key)


class BrokenRow(Broken):
    """A training row cannot be made."""

    broken = "train"
