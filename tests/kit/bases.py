"""Sound environments from which faults and honest designs are made by changing one thing."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from grpo_core import (
    Environment,
    Judgement,
    JudgeRequest,
    Message,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import parse_integer, parse_json, xml_tag
from grpo_core.testing import FakeJudge

CONSONANTS = "bcdfghklmnprst"
VOWELS = "aeiou"


def syllables(rng: random.Random, count: int) -> str:
    """Return an invented word of `count` syllables, such as "bamito"."""
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(count))


def held_out(text: str) -> bool:
    """Return whether a text belongs to the held-out split: its content decides."""
    return sum(map(ord, text)) % 5 == 0


class TaggedSum(Environment[int]):
    """Add two numbers, larger ones at higher levels, and answer in a block."""

    parts: ClassVar[Mapping[str, float]] = {"format": 0.2, "exact": 0.8}
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, *self.drawn(key, key.rng()))

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        top = 10 ** (3 + round(3 * key.level))
        while True:
            one, two = rng.randrange(100, top), rng.randrange(100, top)
            if (one % 10 == 7) == (key.split == "eval"):
                return one, two

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"What is {one} + {two}? Write <answer>N</answer>.", one + two)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(task, self.extracted(rollout.text))

    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer")
        return None if block is None or text[block.end :].strip() else parse_integer(block.content)

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        right = answer == task.data
        rewards = {"format": Reward(float(answer is not None)), "exact": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=None if answer is None else str(answer))

    def reference(self, task: Task[int]) -> str:
        return f"<answer>{task.data}</answer>"

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data), f"<answer>{task.data}")


class PlainSum(TaggedSum):
    """Add two numbers; the reply is the number and nothing else."""

    parts: ClassVar[Mapping[str, float]] = {"exact": 1.0}

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"Add {one} and {two}. Reply with the number only.", one + two)

    def extracted(self, text: str) -> int | None:
        return parse_integer(text)

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        right = answer is not None and self.fits(answer, task.data)
        return self.judged(right, None if answer is None else str(answer))

    def fits(self, answer: int, right: int) -> bool:
        return answer == right

    def judged(self, right: bool, answer: str | None) -> Verdict:
        return Verdict({"exact": Reward(float(right))}, passed=right, answer=answer)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (f"{task.data} or {task.data + 1}",)


def paid(right: bool, answer: str | None) -> Verdict:
    """Return a verdict with the one part `reward`."""
    return Verdict({"reward": Reward(float(right))}, passed=right, answer=answer)


class Compared(Environment[Any]):
    """The reply is compared with the data of the task, and is right as a whole or not at all."""

    timeout_seconds = 2.0

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return self.judged(self.accepts(task.data, rollout.text), rollout.text)

    def accepts(self, right: Any, text: str) -> bool:
        return text.strip() == self.written(right)

    def judged(self, right: bool, text: str) -> Verdict:
        return paid(right, text.strip()[:100])

    def reference(self, task: Task[Any]) -> Any:
        return self.written(task.data)

    def written(self, right: Any) -> str:
        """Return the right answer as it is written."""
        return str(right)


class Consonants(Compared):
    """Remove the vowels from an invented word; the reply is the rest and nothing else."""

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            word = syllables(rng, 4 + round(4 * key.level))
            if held_out(word) == (key.split == "eval"):
                return self.asked(key, word)

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        return Task(key, f"Remove the vowels from {word!r}. Reply with the rest.", self.rest(word))

    def rest(self, word: str) -> str:
        return "".join(letter for letter in word if letter not in VOWELS)


class LargestOption(Compared):
    """Multiple choice: which of four options is the largest number? The reply is a letter."""

    levels = False
    answer_in_prompt = True
    letters: ClassVar[str] = "ABCD"

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            numbers = rng.sample(range(100, 10_000), len(self.letters))
            if (sum(numbers) % 5 == 0) == (key.split == "eval"):
                return self.asked(key, self.arranged(key, rng, numbers))

    def arranged(self, key: TaskKey, rng: random.Random, numbers: list[int]) -> list[int]:
        return numbers

    def asked(self, key: TaskKey, numbers: list[int]) -> Task[str]:
        options = "\n".join(
            f"{letter}) {number}" for letter, number in zip(self.letters, numbers, strict=True)
        )
        right = self.letters[numbers.index(max(numbers))]
        return Task(key, f"Which is the largest?\n{options}\nReply with its letter only.", right)


class WordsWith(Compared):
    """Which of the listed words have a certain letter in them? The reply lists them with commas."""

    levels = False
    answer_in_prompt = True
    letter: ClassVar[str] = "a"

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        rng = key.rng()
        while True:
            words = [syllables(rng, 2) for _ in range(7)]
            right = tuple(word for word in words if self.letter in word)
            in_split = held_out(words[0]) == (key.split == "eval")
            if in_split and len(set(words)) == 7 and 2 <= len(right) <= 5:
                prompt = f"Which words have an {self.letter} in them: {', '.join(words)}?"
                return Task(key, f"{prompt} Reply with them, with commas between.", right)

    def given(self, text: str) -> list[str]:
        return [word.strip() for word in text[:2000].split(",") if word.strip()]

    def accepts(self, right: Sequence[str], text: str) -> bool:
        return sorted(self.given(text)) == sorted(right)

    def written(self, right: Sequence[str]) -> str:
        return ", ".join(right)


class JsonTotals(Compared):
    """Give sum and difference of two numbers as a JSON object."""

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        rng, top = key.rng(), 10 ** (3 + round(3 * key.level))
        while True:
            one, two = rng.randrange(100, top), rng.randrange(100, top)
            if one > two and (one % 10 == 7) == (key.split == "eval"):
                return self.asked(key, one, two)

    def asked(self, key: TaskKey, one: int, two: int) -> Task[dict[str, int]]:
        prompt = f'For {one} and {two}, reply with JSON: {{"sum": ..., "difference": ...}}'
        return Task(key, prompt, {"sum": one + two, "difference": one - two})

    def verify(self, task: Task[dict[str, int]], rollout: Rollout) -> Verdict:
        value = self.parsed(rollout.text)
        return self.judged(self.accepts(task.data, value), rollout.text)

    def parsed(self, text: str) -> Any:
        value = parse_json(text, max_chars=1000)
        return None if value is None else value.value

    def accepts(self, right: Any, value: Any) -> bool:
        return json.dumps(value, sort_keys=True) == json.dumps(right, sort_keys=True)

    def written(self, right: dict[str, int]) -> str:
        return json.dumps(right)


def product_rows(count: int) -> list[tuple[int, int]]:
    """Return different pairs of factors."""
    pairs = [(one, two) for one in range(12, 60) for two in range(one, 60)]
    random.Random("rows").shuffle(pairs)
    return pairs[:count]


class ListedProducts(Environment[int]):
    """A list with an end, as data sets are: 300 products to train on, 60 held out."""

    levels = False
    timeout_seconds = 2.0
    rows: ClassVar[list[tuple[int, int]]] = product_rows(360)

    def size(self, split: str) -> int:
        return 300 if split == "train" else 60

    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, *self.row(key))

    def row(self, key: TaskKey) -> tuple[int, int]:
        return self.rows[key.index + (300 if key.split == "eval" else 0)]

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"{one} times {two} is? Reply with the number only.", one * two)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=12)
        return self.judged(answer == task.data, None if answer is None else str(answer))

    def judged(self, right: bool, answer: str | None) -> Verdict:
        return paid(right, answer)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


class Hunt(Environment[int]):
    """A dialogue: find a number from 1 to 50; the environment says higher or lower."""

    max_turns = 6
    max_new_tokens = 8
    levels = False
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        prompt = "I think of a number from 1 to 50. Guess it: reply with one number."
        return Task(key, (Message("user", prompt),), key.rng().randint(1, 50))

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        guess = self.guessed(messages[-1].content)
        if guess == task.data:
            return None
        return (Message("user", self.hint(task, guess)),)

    def guessed(self, text: str) -> int | None:
        return parse_integer(text, max_digits=2)

    def hint(self, task: Task[int], guess: int | None) -> str:
        if guess is None:
            return "Reply with one number."
        return "higher" if guess < task.data else "lower"

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return paid(self.found(task, rollout), rollout.text[:20])

    def found(self, task: Task[int], rollout: Rollout) -> bool:
        return self.guessed(rollout.text) == task.data

    def reference(self, task: Task[int]) -> Any:
        """Return the turns of a bisection."""
        low, high, turns = 1, 50, list[str]()
        while True:
            turns.append(str((low + high) // 2))
            if int(turns[-1]) == task.data:
                return tuple(turns)
            if int(turns[-1]) < task.data:
                low = int(turns[-1]) + 1
            else:
                high = int(turns[-1]) - 1


class Sure(TaggedSum):
    """A dialogue of two turns, of which the last one counts."""

    max_turns = 2

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = sum(message.role == "assistant" for message in messages)
        return (Message("user", "Are you sure?"),) if said == 1 else None


WEIGHTS: Mapping[str, int] = {
    name: 3 + number * number * 7
    for number, name in enumerate(("pear", "plum", "fig", "kiwi", "lime", "date", "melon", "apple"))
}


class Scales(Environment[int]):
    """A task with tools: the weights of the fruits are known to a tool only."""

    max_turns = 4
    levels = False
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            many, few = rng.randint(2, 99), rng.randint(2, 99)
            if ((many + few) % 5 == 0) == (key.split == "eval"):
                return self.asked(key, many, few, *rng.sample(list(WEIGHTS), 2))

    def asked(self, key: TaskKey, many: int, few: int, one: str, two: str) -> Task[int]:
        prompt = f"What do {many} of {one} and {few} of {two} weigh? Reply with the number only."
        return Task(key, (Message("user", prompt),), many * WEIGHTS[one] + few * WEIGHTS[two])

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.weigh,)

    def weigh(self, fruit: str) -> int:
        """Return the weight of one fruit, in grams."""
        return WEIGHTS[fruit]

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=9)
        return paid(answer == task.data, None if answer is None else str(answer))

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


def moved(task: Task[Any], key: TaskKey) -> Task[Any]:
    """Return the task under another key."""
    return replace(task, key=key)


class Marked(Environment[str]):
    """A judge compares a text with the word that was asked for."""

    needs = frozenset({"judge"})
    levels = False
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[str]:
        word = f"{key.split}{key.rng().randrange(10**6)}"
        return Task(key, f"Write {word} and nothing else.", word)

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        judgement = await self.judgement(task, rollout)
        if judgement.error:
            return Verdict.failed(judgement.error)
        return self.marked(judgement.score, rollout.text)

    async def judgement(self, task: Task[str], rollout: Rollout) -> Judgement:
        request = JudgeRequest(rollout.text, reference=task.data)
        (judgement,) = await self.services.judge().judge([request])
        return judgement

    def marked(self, score: float, text: str) -> Verdict:
        return Verdict({"reward": Reward(score)}, passed=score > 0.9, answer=text[:90])

    def reference(self, task: Task[str]) -> str:
        return task.data


def judged_by(score: Callable[[JudgeRequest], float]) -> Callable[..., Environment[Any]]:
    """Return what makes an environment with a judge that scores like this."""
    return lambda env: env(None, Services(judges={"default": FakeJudge(score)}))
