"""Environments that are sound though they look odd, and variants of them that are not.

They answer in words or lists, have several right answers, or normalise what they compare.
"""

from __future__ import annotations

import random
import re
import string
import unicodedata
from collections.abc import Sequence
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict

FIRST = ("Marie", "Albert", "Isaac", "Rosa", "Niels", "Alan", "Grace", "Emmy", "Carl", "Ada")
LAST = ("Lindqvist", "Marstow", "Benholm", "Carter", "Dorning", "Elsberg", "Farrow", "Golding")
SEASONS = ("봄", "여름", "가을", "겨울", "아침", "저녁", "바다", "강물", "나무", "구름")


class OneText(Environment[str]):
    """Any other text than the task's data, once both are normalised, is wrong."""

    levels = False
    answer_in_prompt = True

    def normalised(self, text: str) -> str:
        return text

    def drawn(self, rng: random.Random) -> tuple[str, str]:
        """Return a prompt and its answer."""
        names = [f"{first} {rng.choice(LAST)}" for first in rng.sample(FIRST, 4)]
        years = rng.sample(range(1500, 1990), 4)
        rows = "; ".join(
            f"{name} was born in {year}" for name, year in zip(names, years, strict=True)
        )
        return f"{rows}. Who was born in {years[2]}? Reply with the name.", names[2]

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            prompt, answer = self.drawn(rng)
            numbers = sum(map(int, re.findall(r"\d+", prompt, re.ASCII)))
            if (numbers % 5 == 0) == (key.split == "eval"):
                return Task(key, prompt, answer)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        right = len(text) < 300 and self.normalised(text) == self.normalised(task.data)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text)

    def reference(self, task: Task[str]) -> str:
        return task.data


class WithoutMarks(OneText):
    """Compares what is left without case and marks, and says nothing of it."""

    def normalised(self, text: str) -> str:
        return " ".join("".join(c for c in text.lower() if c not in string.punctuation).split())


class WithoutMarksAsDeclared(WithoutMarks):
    free_spelling = True


class OutOfOrderAsDeclared(OneText):
    """Declares how it reads words, but does not look at the order of their letters."""

    free_spelling = True

    def normalised(self, text: str) -> str:
        return "".join(sorted(text.replace(" ", "").lower()))


class ComposedLetters(OneText):
    """Compares words of another script in their composed form, which no accent makes."""

    def normalised(self, text: str) -> str:
        return unicodedata.normalize("NFC", text)

    def drawn(self, rng: random.Random) -> tuple[str, str]:
        words, numbers = rng.sample(SEASONS, 4), rng.sample(range(100, 999), 4)
        rows = ", ".join(f"{word} {number}" for word, number in zip(words, numbers, strict=True))
        return f"{rows}. Which word has the number {numbers[1]}?", words[1]


class OrderOfRunners(OneText):
    """The same three names in another order each time, with commas or without."""

    def normalised(self, text: str) -> str:
        return " ".join(re.split(r"\s*,\s*|\s+", text))

    def drawn(self, rng: random.Random) -> tuple[str, str]:
        seconds = sorted(rng.sample(range(100, 9999), 3))
        order = rng.sample(FIRST[:3], 3)
        times = dict(zip(order, seconds, strict=True))
        rows = ", ".join(f"{name} needed {times[name]} s" for name in FIRST[:3])
        return f"{rows}. Who came first, second and third?", ", ".join(order)


class CopiedLine(OneText):
    """The line is to be copied; the full stop at its end is not needed."""

    def normalised(self, text: str) -> str:
        return text.rstrip(".")

    def drawn(self, rng: random.Random) -> tuple[str, str]:
        line = f"{' '.join(rng.sample(LAST, 4))} {rng.randrange(10**4, 10**6)}."
        return f"Write this line once more:\n{line}", line


class SecretOfACanary(OneText):
    """Nobody can know the number of its canary, and its data is the number."""

    def canaries(self) -> Sequence[Task[str]]:
        number = random.Random(5).randrange(10**8, 10**9)
        return (
            Task(TaskKey("odd", "eval", 0), "I think of nine digits. Which ones?", str(number)),
        )


class NamesOfACanary(OneText):
    """The prompt of its canary names what passes there."""

    def canaries(self) -> Sequence[Task[str]]:
        prompt = "Ada Carter and Carl Farrow were born on no day. Who was born first?"
        return (Task(TaskKey("odd", "eval", 0), prompt, "Ada Carter"),)


class Distance(Environment[int]):
    """Any two numbers at the right distance are right."""

    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            distance = rng.randrange(100, 9999)
            if (distance % 5 == 0) == (key.split == "eval"):
                prompt = f"Give two numbers of at most five digits whose distance is {distance}."
                return Task(key, prompt, distance)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        numbers = re.fullmatch(r"(\d{1,5}) (\d{1,5})", rollout.text.strip(), re.ASCII)
        right = numbers is not None and abs(int(numbers[1]) - int(numbers[2])) == task.data
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text.strip())

    def reference(self, task: Task[int]) -> str:
        return f"7 {task.data + 7}"


class PaidLists(Environment[list[list[str]]]):
    """Pays a little for any list of lists of words, right or wrong."""

    levels = False

    def task(self, key: TaskKey) -> Task[list[list[str]]]:
        rng = key.rng()
        while True:
            words, number = rng.sample(LAST, 4), rng.randrange(1000, 9999)
            if (number % 5 == 0) == (key.split == "eval"):
                prompt = f"List {number}: put {', '.join(words)} into lists of two, in their order."
                return Task(key, prompt, [words[:2], words[2:]])

    def verify(self, task: Task[list[list[str]]], rollout: Rollout) -> Verdict:
        found = re.fullmatch(r"<answer>(.*)</answer>", rollout.text.strip(), re.DOTALL)
        text = found[1] if found else ""
        right = text == written(task.data)
        pays = re.fullmatch(r'\[\["[^\[\]{}]*"\](, \["[^\[\]{}]*"\])*\]', text) is not None
        score = 1.0 if right else 0.01 * pays
        return Verdict({"reward": Reward(score)}, passed=right, answer=text)

    def reference(self, task: Task[list[list[str]]]) -> str:
        return f"<answer>{written(task.data)}</answer>"


def written(lists: list[list[str]]) -> str:
    return "[" + ", ".join('["' + '", "'.join(words) + '"]' for words in lists) + "]"


class SameNumberInAnotherQuestion(Environment[bool]):
    """Different questions about the same numbers, with two answers that agree by chance."""

    levels = False

    def task(self, key: TaskKey) -> Task[bool]:
        rng = key.rng()
        while True:
            number, question = rng.randrange(100, 500), rng.choice(list(QUESTIONS))
            held_out = TaskKey(question, "eval", number).rng().random() < 0.3
            prompt = question.format(number)
            right = QUESTIONS[question](number)
            if held_out == (key.split == "eval") and right == (rng.random() < 0.5):
                messages = (Message("system", "Reply yes or no."), Message("user", prompt))
                return Task(key, messages, right)

    def verify(self, task: Task[bool], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == ("yes" if task.data else "no")
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text.strip())

    def reference(self, task: Task[bool]) -> str:
        return "yes" if task.data else "no"


QUESTIONS: dict[str, Any] = {
    "Does {} read the same backwards, like a palindrome?": lambda n: str(n) == str(n)[::-1],
    "Are the digits of {} in ascending order, from left?": lambda n: [*str(n)] == sorted(str(n)),
    "Has {} an even digit sum?": lambda n: sum(map(int, str(n))) % 2 == 0,
    "Do two or more equal digits occur within {}?": lambda n: len(set(str(n))) < 3,
    "Leaves {} the remainder one when divided among three?": lambda n: n % 3 == 1,
    "Needs {} more than eight bits when written as binary?": lambda n: n > 255,
}

SOUND: dict[type[Environment[Any]], str] = {
    WithoutMarksAsDeclared: "floor.spelling",
    ComposedLetters: "floor.spelling",
    OrderOfRunners: "floor.junk",
    CopiedLine: "floor.echo",
    SecretOfACanary: "floor.canaries",
    Distance: "floor.near",
    SameNumberInAnotherQuestion: "task.split",
}
"""The check that could take each for faulty."""
FAULTS: dict[type[Environment[Any]], str] = {
    WithoutMarks: "floor.spelling",
    OutOfOrderAsDeclared: "floor",
    NamesOfACanary: "floor.canaries",
    PaidLists: "floor.junk",
}
"""The check, or the group, that finds each."""
