"""Honest tasks that look odd: hidden difficulty, declared answers in prompts, unbalanced data."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bases import (
    Compared,
    Consonants,
    JsonTotals,
    LargestOption,
    ListedProducts,
    PlainSum,
    TaggedSum,
)
from catalogue import honest, variant

from grpo_core import Message, Rollout, Task, TaskKey, Verdict

for name, base, what in (
    ("SoundTaggedSum", TaggedSum, "a sum in tags"),
    ("SoundPlainSum", PlainSum, "a plain number"),
    ("SoundConsonants", Consonants, "a word"),
    ("SoundChoice", LargestOption, "a multiple choice"),
    ("SoundJson", JsonTotals, "a JSON object"),
    ("SoundList", ListedProducts, "a list with an end"),
):
    honest(f"the sound base: {what}")(variant(__name__, name, base))


@honest("harder tasks have fewer hints, so they are shorter")
class FewerHints(PlainSum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=0.5), rng)

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        hints = [
            f"The last digit is {task.data % 10}.",
            f"It has {len(str(task.data))} digits.",
            f"Its digits add up to {sum(map(int, str(task.data)))}.",
        ]
        shown = hints[: round(3 * (1 - key.level))]
        return replace(task, prompt=" ".join([str(task.prompt), *shown]))


_DIGITS = [(a, b) for a in range(1, 10) for b in range(1, 10)]


@honest("what is harder is hidden in the numbers: more carries, no more digits")
class MoreCarries(PlainSum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        carries = 5 * key.level
        while True:
            pairs = [
                rng.choice(
                    [(a, b) for a, b in _DIGITS if (a + b >= 10) == (place < round(carries))]
                )
                for place in range(5)
            ]
            one = int("".join(str(a) for a, _ in reversed(pairs)))
            two = int("".join(str(b) for _, b in reversed(pairs)))
            if (one % 10 == 7) == (key.split == "eval"):
                return one, two


@honest("what is harder is hidden in the content: options that are closer to each other")
class CloserOptions(LargestOption):
    levels = True

    def arranged(self, key: TaskKey, rng: random.Random, numbers: list[int]) -> list[int]:
        step = max(1, round(2000 * (1 - key.level)))
        start = rng.randrange(10_000, 20_000)
        close = [start + step * place + rng.randrange(max(1, step // 2)) for place in range(4)]
        return rng.sample(close, 4) if len(set(close)) == 4 else numbers

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        return replace(task, prompt=f"({key.split}) {task.prompt}")


@honest("an image of the answer stands in the prompt by the nature of the task: reverse a word")
class ReversesWords(Consonants):
    answer_in_prompt = True

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        return Task(key, f"Write {word!r} backwards.", word[::-1])


@honest("copying is the task, and is declared")
class CopiesTheSecondWord(Consonants):
    answer_in_prompt = True

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        first, last = key.rng("around").sample(["salt", "rain", "cup", "moss", "lamp"], 2)
        return Task(key, f"Reply with the second of these words: {first}, {word}, {last}.", word)


@honest("yes is right in 60 % of the tasks, as in the data")
class MoreYesThanNo(PlainSum):
    levels = False

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        right = "yes" if (one + two) % 5 < 3 else "no"
        prompt = f"Is the remainder of {one} + {two} by five below three? Reply with yes or no."
        return Task(key, prompt, right)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        return self.judged(text == task.data, text[:50])

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return ("yes or no",)


@honest("a list of 24 rows, and size says so")
class ShortList(ListedProducts):
    def size(self, split: str) -> int:
        return 24 if split == "train" else 12


@honest("a prompt of several messages with worked examples, whose numbers repeat in each")
class WorkedExamples(PlainSum):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        prompt = (
            Message("system", "Reply with the number only."),
            Message("user", "Add 12 and 30."),
            Message("assistant", "42"),
            Message("user", "Add 100 and 1."),
            Message("assistant", "101"),
            Message("user", f"Add {one} and {two}."),
        )
        return Task(key, prompt, one + two)


@honest("a prompt of 20 kB, of which a small part matters")
class LongPrompt(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[str]:
        task = super().asked(key, word)
        filler = " ".join(f"Line {n}: nothing to see here." for n in range(600))
        return replace(task, prompt=f"{filler}\n{task.prompt}")


@honest("each task has the date in its prompt, drawn from its key")
class DatesFromTheKey(PlainSum):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        rng = key.rng("date")
        day = f"20{rng.randrange(10, 30)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
        task = super().asked(key, one, two)
        return replace(task, prompt=f"[{day} 12:00 UTC] {task.prompt}")


@honest("held-out tasks share their form and half of their words with training tasks")
class SharedForm(Compared):
    """Ages in a family; held out are the families with a younger sister."""

    names: ClassVar[Mapping[str, Sequence[str]]] = {
        "train": ("Ana", "Bo", "Cy", "Di", "Ed", "Fay"),
        "eval": ("Gus", "Hal", "Ivy", "Jo"),
    }

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        people = rng.sample(self.names[key.split], 2)
        age, years = rng.randrange(10, 60), [rng.randrange(2, 9) for _ in range(2)]
        steps = 1 + round(3 * key.level)
        text, right = f"{people[0]} is {age}. ", age
        for step in range(steps):
            right += years[step % 2] * (1 + step)
            text += f"Then {years[step % 2] * (1 + step)} years pass. "
        return Task(key, f"{text}How old is {people[0]}, whose friend is {people[1]}?", right)


@honest("data that are a class of its own, with an equality")
class OwnClassAsData(PlainSum):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        return replace(super().asked(key, one, two), data=Pair(one, two))

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return super().verify(replace(task, data=task.data.total()), rollout)

    def reference(self, task: Task[Any]) -> str:
        return str(task.data.total())

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (f"{task.data.total()} or 1",)


class Pair:
    """Two numbers."""

    def __init__(self, one: int, two: int) -> None:
        self.one, self.two = one, two

    def total(self) -> int:
        return self.one + self.two

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and (self.one, self.two) == (other.one, other.two)

    def __hash__(self) -> int:
        return self.one * 31 + self.two


@honest("levels move in three steps, not smoothly")
class ThreeSteps(Consonants):
    def task(self, key: TaskKey) -> Task[str]:
        step = round(2 * key.level) / 2
        return replace(super().task(replace(key, level=step)), key=key)


@honest("a cache of tasks, keyed by the whole key")
class CachesTasks(PlainSum):
    made: ClassVar[dict[TaskKey, Task[int]]] = {}

    def task(self, key: TaskKey) -> Task[int]:
        if len(self.made) > 256:
            self.made.clear()
        return self.made.setdefault(key, super().task(key))
