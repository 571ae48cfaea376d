"""Honest dialogues, tools and data sets that look odd."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from bases import WEIGHTS, Hunt, Scales, Sure
from catalogue import honest, variant
from faults_dataset import REWARDS, Rows

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer, xml_tag

Turns = Sequence[Message]


for name, base, what in (
    ("SoundHunt", Hunt, "a dialogue of several turns"),
    ("SoundSure", Sure, "a dialogue of two turns, of which the last counts"),
    ("SoundScales", Scales, "a task with a tool"),
):
    honest(f"the sound base: {what}")(variant(__name__, name, base))


@honest("all prompts are alike, and earlier guesses lower the reward, as in the example")
class GuessQuickly(Environment[int]):
    """Guess a number from 1 to 9, as examples/04_dialogue.py has it."""

    parts: ClassVar[Mapping[str, float]] = {"found": 0.8, "numbers": 0.2}
    max_turns = 4
    max_new_tokens = 4
    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        rules = "I think of a number from 1 to 9. You guess; I say higher or lower."
        prompt = (Message("system", rules), Message("user", "First guess?"))
        return Task(key, prompt, key.rng().randint(1, 9))

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        guess = parse_guess(messages[-1].content)
        if guess == task.data:
            return None
        hint = "one number" if guess is None else "higher" if guess < task.data else "lower"
        return (Message("user", hint),)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        said = [parse_guess(m.content) for m in rollout.messages if m.role == "assistant"]
        found = task.data in said
        speed = 1 - (len(said) - 1) / self.max_turns if said else 0.0
        valid = sum(guess is not None for guess in said) / max(1, len(said))
        rewards = {"found": Reward(speed if found else 0.0), "numbers": Reward(valid)}
        return Verdict(rewards, passed=found, answer=str(said[-1]) if said else None)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


def parse_guess(text: str) -> int | None:
    """Return the number from 1 to 9 that the text consists of, or None."""
    value = parse_integer(text.strip(), max_digits=1)
    return value if value is not None and 1 <= value <= 9 else None


@honest("a second chance is worth half, and the environment says only that it was wrong")
class SecondChance(Environment[int]):
    max_turns = 2
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        rng, top = key.rng(), 10 ** (2 + round(2 * key.level))
        one, two = rng.randrange(11, top), rng.randrange(11, top) * 2 + (key.split == "eval")
        return Task(key, (Message("user", f"{one} * {two} = ? The number only."),), one * two)

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        said = [message for message in messages if message.role == "assistant"]
        if len(said) > 1 or parse_integer(said[-1].content) == task.data:
            return None
        return (Message("user", "No. Try once more."),)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        said = [m.content for m in rollout.messages if m.role == "assistant"]
        right = [parse_integer(text) == task.data for text in said]
        value = 0.0 if not any(right) else 1.0 if right[0] else 0.5
        answer = said[-1].strip()[:30] if said else None
        return Verdict({"reward": Reward(value)}, passed=any(right), answer=answer)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


@honest("three questions in a row, each of which must be answered; the reference has three turns")
class ThreeQuestions(Environment[tuple[tuple[int, int], ...]]):
    max_turns = 3
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[tuple[tuple[int, int], ...]]:
        rng, top = key.rng(), 10 ** (2 + round(3 * key.level))
        pairs = [(rng.randrange(11, top), rng.randrange(11, top)) for _ in range(3)]
        pairs[0] = (pairs[0][0] * 2 + (key.split == "eval"), pairs[0][1])
        return Task(key, (Message("user", self.question(pairs[0])),), tuple(pairs))

    def question(self, pair: tuple[int, int]) -> str:
        return f"{pair[0]} + {pair[1]}? The number only."

    async def reply(self, task: Task[Any], messages: Turns) -> Turns | None:
        said = sum(message.role == "assistant" for message in messages)
        return (Message("user", self.question(task.data[said])),) if said < 3 else None

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        said = [parse_integer(m.content) for m in rollout.messages if m.role == "assistant"]
        wanted = [one + two for one, two in task.data]
        right = sum(a == b for a, b in zip(said, wanted, strict=False))
        return Verdict(
            {"reward": Reward(right / 3)},
            passed=right == 3,
            answer=None if not said else str(said[-1]),
        )

    def reference(self, task: Task[Any]) -> Any:
        return tuple(str(one + two) for one, two in task.data)


@honest("the environment repeats what the policy said, and the verifier reads the policy only")
class RepeatsTheGuess(Hunt):
    def hint(self, task: Task[int], guess: int | None) -> str:
        if guess is None:
            return super().hint(task, guess)
        return f"You said {guess}: {super().hint(task, guess)}."


@honest("a number that was guessed at any turn counts, since each turn is one guess")
class AnyTurnCounts(Hunt):
    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        if any(self.guessed(m.content) == task.data for m in messages if m.role == "assistant"):
            return None
        return await super().reply(task, messages)

    def found(self, task: Task[int], rollout: Rollout) -> bool:
        said = [self.guessed(m.content) for m in rollout.messages if m.role == "assistant"]
        return task.data in said


@honest("replies vary, by a generator of the task's key")
class VariesByItsKey(Hunt):
    words: ClassVar[Sequence[str]] = ("Hm", "Well", "So", "Now")

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        replies = await super().reply(task, messages)
        word = task.key.rng("words", len(messages)).choice(self.words)
        return replies and (Message("user", f"{word}, {replies[0].content}"),)


@honest("a dialogue ends at the first word that is not a number, with nothing")
class EndsAtNonsense(Hunt):
    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        if self.guessed(messages[-1].content) is None:
            return None
        return await super().reply(task, messages)


@honest("two messages are said at once")
class TwoMessagesAtOnce(Hunt):
    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        replies = await super().reply(task, messages)
        return replies and (Message("user", "I have looked at it."), *replies)


@honest("the policy may think in tags before each guess")
class ThinksFirst(Hunt):
    max_new_tokens = 64

    def guessed(self, text: str) -> int | None:
        block = xml_tag(text, tag="guess")
        if block is None or text[block.end :].strip():
            return None
        return parse_integer(block.content, max_digits=2)

    def reference(self, task: Task[int]) -> Any:
        turns = super().reference(task)
        return tuple(f"I halve what is left. <guess>{turn}</guess>" for turn in turns)


@honest("tools with options that are left out, and a list as argument")
class ToolsWithOptions(Scales):
    def tools(self) -> Sequence[Callable[..., object]]:
        def weigh(fruits: list[str], unit: str = "g") -> str:
            """Return the weights of some fruits, in g or kg."""
            total = sum(WEIGHTS[fruit] for fruit in fruits)
            return f"{total / 1000} kg" if unit == "kg" else f"{total} g"

        def add(numbers: list[int]) -> int:
            """Return the sum of at most 20 numbers."""
            return sum(numbers[:20])

        return (weigh, add)


@honest("a tool refuses what it does not know, in words")
class RefusingTool(Scales):
    def tools(self) -> Sequence[Callable[..., object]]:
        def weigh(fruit: str) -> str:
            """Return the weight of one fruit, in grams."""
            return f"{WEIGHTS[fruit]} g" if fruit in WEIGHTS else "there is no such fruit"

        return (weigh,)


@honest("a tool computes, with a parser of its own")
class OwnCalculator(Scales):
    def tools(self) -> Sequence[Callable[..., object]]:
        def multiply(one: int, two: int) -> str:
            """Return the product of two numbers below a billion."""
            if max(abs(one), abs(two)) >= 10**9:
                return "too large"
            return str(one * two)

        return (self.weigh, multiply)


for name, why, settings in (
    ("RowsByNumber", "rows with a number as their answer", {"reward": "number"}),
    ("RowsByText", "rows with the same text as their answer, whatever its case", {}),
    (
        "RowsByFunction",
        "rows with a reward function of the user's that is strict",
        {"reward": f"{REWARDS}:in_tags"},
    ),
):
    honest(why)(variant(__name__, name, Rows, settings=settings))
