"""Environments with a shortcut each, and sound ones."""

import os
import re
import signal
from collections.abc import Mapping
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict

WORDS = [
    *("amber", "basin", "cedar", "delta", "ember", "fjord"),
    *("grove", "haven", "islet", "jetty", "knoll", "ledge"),
]


class Sum(Environment[str]):
    """Asks for a sum of two numbers, between tags; nothing cheap is right."""

    levels = False
    trusted = True

    def task(self, key: TaskKey) -> Task[Any]:
        question, answer = self.ask(key.rng())
        return Task(key, (Message("user", question),), answer)

    def ask(self, rng: Any) -> tuple[str, str]:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        return f"What is {a} plus {b}? Write <answer>N</answer>.", str(a + b)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        match = re.fullmatch(r"<answer>(.*)</answer>", rollout.text, re.DOTALL)
        right = match is not None and self.is_right(match[1], task.data)
        return Verdict({"reward": Reward(right)}, passed=right)

    def is_right(self, answer: str, right: str) -> bool:
        return answer == right

    def reference(self, task: Task[Any]) -> str:
        return f"<answer>{task.data}</answer>"


class Even(Sum):
    """A word that is yes as often as no: half of all guesses pass, and that is no shortcut."""

    def ask(self, rng: Any) -> tuple[str, str]:
        number = rng.randint(100, 999)
        return f"Is {number} a good number, by my secret?", rng.choice(["yes", "no"])


class Constant(Sum):
    """A count that is mostly 1."""

    def ask(self, rng: Any) -> tuple[str, str]:
        lines = [rng.choice(WORDS) for _ in range(6)]
        word = rng.choice(lines)
        return f"How often is {word} in this: {', '.join(lines)}?", str(lines.count(word))


class Majority(Sum):
    """A word of four, one of them mostly."""

    def ask(self, rng: Any) -> tuple[str, str]:
        answer = rng.choices(WORDS[:4], weights=[6, 1, 1, 1])[0]
        return f"Which word do I think of, by number {rng.randint(0, 10**6)}?", answer


class ByWording(Sum):
    """What is asked for tells the answer: a rule of the wording, and of no single word."""

    def ask(self, rng: Any) -> tuple[str, str]:
        kind, answer = rng.choice([("smaller", "no"), ("larger", "yes"), ("equal", "unknown")])
        return f"Is {rng.randint(1, 99)} {kind} than my number {rng.randint(1, 99)}?", answer


class Choices(Sum):
    """Of four choices the longest is the right one."""

    def ask(self, rng: Any) -> tuple[str, str]:
        texts = [" ".join(rng.choices(WORDS, k=2)) for _ in range(4)]
        right = rng.randrange(4)
        texts[right] += " and all that follows from it"
        lines = [f"{letter}) {text}" for letter, text in zip("ABCD", texts, strict=True)]
        return "Which one holds?\n" + "\n".join(lines), "ABCD"[right]


class Echo(Sum):
    """A verifier that looks for words of the answer in the reply."""

    def ask(self, rng: Any) -> tuple[str, str]:
        words = rng.sample(WORDS, 5)
        return f"Sort these words: {' '.join(words)}", " ".join(sorted(words))

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = set(task.data.split()) <= set(rollout.text.split())
        return Verdict({"reward": Reward(right)}, passed=right)

    def reference(self, task: Task[Any]) -> str:
        answer: str = task.data
        return answer


class Empty(Sum):
    """A verifier that accepts an empty answer: all that is said is right."""

    def is_right(self, answer: str, right: str) -> bool:
        return right.startswith(answer)


class Superset(Sum):
    """A verifier that looks for the answer anywhere."""

    def ask(self, rng: Any) -> tuple[str, str]:
        return f"Which number is the secret of {rng.choice(WORDS)}?", str(rng.randint(0, 60))

    def is_right(self, answer: str, right: str) -> bool:
        return right in answer.split()


class Length(Sum):
    """Pays for length, and passes nothing that is wrong."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = rollout.text == self.reference(task)
        pay = 1.0 if right else min(0.9, len(rollout.text) / 100)
        return Verdict({"reward": Reward(pay)}, passed=right)


class Programs(Environment[Any]):
    """Asks for a function, and tries it on the examples of the prompt alone."""

    levels = False
    trusted = True

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        name, step = f"step_{rng.randint(0, 999)}", rng.randint(2, 9)
        cases = [(n, n * step + 7) for n in rng.sample(range(50), 2)]
        examples = "\n".join(f"{name}({n}) == {value}" for n, value in cases)
        question = (
            f"Write `{name}(n)`, n times {step} and 7 more.\n\nExamples:\n{examples}\n\n"
            "Answer with one ```python block."
        )
        return Task(key, (Message("user", question),), (name, step, cases))

    def cases(self, task: Task[Any]) -> list[tuple[int, int]]:
        cases: list[tuple[int, int]] = task.data[2]
        return cases

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        match = re.fullmatch(r"```python\n(.*)\n```", rollout.text, re.DOTALL)
        names: dict[str, Any] = {}
        try:
            exec(match[1] if match else "", names)
            right = all(names[task.data[0]](n) == value for n, value in self.cases(task))
        except Exception:  # noqa: BLE001 - a program may raise anything
            right = False
        return Verdict({"reward": Reward(right)}, passed=right)

    def reference(self, task: Task[Any]) -> str:
        name, step, _ = task.data
        return f"```python\ndef {name}(n):\n    return n * {step} + 7\n```"


class SoundPrograms(Programs):
    """Tries inputs that the prompt does not show."""

    def cases(self, task: Task[Any]) -> list[tuple[int, int]]:
        return [(n, n * task.data[1] + 7) for n in (0, 1, 2, 50, 77, 1000)]


class Bounds(SoundPrograms):
    """Never tries the upper bound of its rule."""

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        name, low = f"within_{rng.randint(0, 999)}", rng.randint(10, 20)
        question = f"Write `{name}(n)`: whether n is from {low} to {low + 9}, both included."
        return Task(key, (Message("user", question),), (name, low, []))

    def cases(self, task: Task[Any]) -> list[tuple[int, bool]]:  # type: ignore[override]
        low = task.data[1]
        tried = (0, low - 1, low, low + 1, low + 8, low + 11, 99)
        return [(n, low <= n <= low + 9) for n in tried]

    def reference(self, task: Task[Any]) -> str:
        name, low, _ = task.data
        return f"```python\ndef {name}(n):\n    return {low} <= n <= {low + 9}\n```"


class Mutants(Sum):
    """Says which answers must not pass, and lets one of them pass."""

    def mutants(self, task: Task[Any]) -> Mapping[str, str]:
        near = int(task.data) + 1
        return {"one more": f"<answer>{near}</answer>", "a sign": f"<answer>-{task.data}</answer>"}

    def is_right(self, answer: str, right: str) -> bool:
        return answer.removeprefix("-") == right


class Candidates(Environment[str]):
    """A secret word among three that the prompt lists, and three guesses at it."""

    levels = False
    max_turns = 3

    def task(self, key: TaskKey) -> Task[str]:
        words = key.rng().sample(WORDS, 3)
        question = f"It is one of: {', '.join(words)}. First guess?"
        return Task(key, (Message("user", question),), key.rng("secret").choice(words))

    async def reply(self, task: Task[str], messages: Any) -> Any:
        return None if messages[-1].content == task.data else (Message("user", "No. Next?"),)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.messages[-1].content == task.data
        return Verdict({"reward": Reward(right)}, passed=right)

    def reference(self, task: Task[str]) -> str:
        return task.data


class Failing(Sum):
    """A verifier that fails for the answers of some tasks."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        if rollout.text == "<answer>0</answer>":
            raise RuntimeError("the verifier has a bug")
        return super().verify(task, rollout)


class Interrupted(Sum):
    """Receives Ctrl-C in the middle."""

    verdicts = 0

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        self.verdicts += 1
        if self.verdicts == 100:
            os.kill(os.getpid(), signal.SIGINT)
        return super().verify(task, rollout)


class AllFailing(Sum):
    """Fails for every answer."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        raise RuntimeError("the verifier has a bug")


class NoReferences(Sum):
    """Knows no answers."""

    def reference(self, task: Task[Any]) -> None:  # type: ignore[override]
        return None


class Rows(Sum):
    """Has six training tasks, and no held-out ones."""

    def size(self, split: str) -> int:
        return 6 if split == "train" else 0
