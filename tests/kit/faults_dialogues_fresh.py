"""Faults of dialogues: replies that raise, hang, never end, tell, forget whose words they read."""

from __future__ import annotations

import difflib
import hashlib
import json
import random
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bases_fresh import Arrival, Asks, Ladder, Rooms, Shifted, kept_back, scrambled
from catalogue import fault

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict

# Whatever the policy says


@fault("an unknown word is looked up in a dictionary", "reply.form")
class UnknownDirections(Rooms):
    def step(self, text: str) -> tuple[int, int]:
        return self.steps[text.strip().lower()]


@fault("the first letter of silence is asked for", "reply.form")
class FirstLetterOfSilence(Rooms):
    def news(self, said: str, x: int, y: int) -> str:
        capital = " Do not shout." if said.strip()[0].isupper() else ""
        return super().news(said, x, y) + capital


@fault("a reply has to be split in two", "reply.form")
class WantsACommand(Ladder):
    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        if said.isdecimal():
            return None
        _command, number = said.split()
        if not number.removesuffix("?").isdecimal():
            return (Message("user", "That is no number."),)
        above = int(task.data) > int(number.removesuffix("?")[:9])
        return (Message("user", "yes" if above else "no"),)


@fault("a reply is parsed as JSON, which it need not be", "reply.form", "reply.hostile")
class ExpectsJsonMoves(Ladder):
    def question(self, *content: Any) -> str:
        low, high, _ = content
        return f'Find my number between {low} and {high}: {{"above": N}}, or state it alone.'

    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        if said.isdecimal():
            return None
        move = json.loads(said)
        return (Message("user", "yes" if int(task.data) > move["above"] else "no"),)

    def reference(self, task: Task[str]) -> Any:
        return (json.dumps({"above": int(task.data) - 1}), task.data)


# Types of replies


@fault("a reply has no messages", "reply.form")
class AnswersWithNothing(Rooms):
    """An empty list where the author means that there is nothing to say."""

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        if messages[-1].content.strip() in self.steps:
            return await super().reply(task, messages)
        return ()


@fault("a reply's content is a number", "reply.form")
class CountsAsContent(Shifted):
    """How many letters are right so far: a number, not a text."""

    max_turns = 3

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Any:
        said = messages[-1].content.strip()
        if said == task.data:
            return None
        count = sum(one == two for one, two in zip(said, task.data, strict=False))
        return [Message("user", count)]  # type: ignore[arg-type]


@fault("a reply consists of pairs", "reply.form")
class PairsOfRoleAndText(Arrival):
    max_turns = 2

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Any:
        if any(message.role == "user" for message in messages):
            return None
        return [("user", "Check it once more, then reply with hh:mm only.")]


@fault("a reply is a system message", "reply.form")
class NewRulesInTheMiddle(Ladder):
    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        turn = super().response(task, said)
        return turn and (Message("system", "Stay polite."), *turn)


# Ends


@fault("the dialogue goes on when it is over", "reply.ends")
class PlaysAnotherRound(Ladder):
    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        if said == task.data:
            return (Message("user", "You found it! That was fun."),)
        return super().response(task, said)


@fault("the dialogue goes on when it is over", "reply.ends")
class StaysAtTheGoal(Rooms):
    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        x, y = self.place(task, messages)
        return (Message("user", self.news(messages[-1].content, x, y)),)


@fault("the limit of turns is none", "reply.ends")
class ThousandsOfTurns(Ladder):
    max_turns = 100_000


# The same again


@fault("the environment throws global dice", "reply.repeat")
class ThrowsDice(Environment[int]):
    """Adds up what the environment throws, to a first number that the prompt tells."""

    max_turns = 4
    max_new_tokens = 8
    levels = False
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        first = 2 * key.rng().randrange(100, 5000) + (key.split == "eval")
        text = f"Add what I throw to {first}. Say 'more' twice, then the sum in digits."
        return Task(key, (Message("user", text),), first)

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content.strip() != "more":
            return None
        return (Message("user", str(random.randint(100, 999))),)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        thrown = [int(message.content) for message in rollout.messages if message.role == "user"]
        right = len(thrown) == 2 and rollout.text.strip() == str(task.data + sum(thrown))
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])


@fault("replies use up the task's data", "reply.repeat")
class UsesUpItsQuestions(Environment[list[tuple[str, str]]]):
    """Asks three sums one after the other, and takes each from the task's list."""

    max_turns = 3
    max_new_tokens = 8
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[list[tuple[str, str]]]:
        rng, top = key.rng(), 100 + round(5000 * key.level)
        sums = [(rng.randrange(50, top), rng.randrange(50, top)) for _ in range(3)]
        sums[0] = (2 * sums[0][0] + (key.split == "eval"), 2 * sums[0][1])
        texts = [(f"{one} + {two} = ?", str(one + two)) for one, two in sums]
        rules = Message("system", "Reply to each question with digits only.")
        return Task(key, (rules, Message("user", texts[0][0])), texts)

    async def reply(
        self, task: Task[list[tuple[str, str]]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        if len(task.data) < 2:
            return None
        task.data.pop(0)
        return (Message("user", task.data[0][0]),)

    def verify(self, task: Task[list[tuple[str, str]]], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == task.data[-1][1]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[list[tuple[str, str]]]) -> Any:
        return [right for _, right in task.data]


@fault("an environment keeps its own board", "reply.repeat")
class OwnBoard(Rooms):
    """Keeps where the policy is on itself, for each task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places: dict[TaskKey, tuple[int, int]] = {}

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        x, y = self.places.get(task.key, task.data["start"])
        east, north = self.step(messages[-1].content)
        self.places[task.key] = (x + east, y + north)
        if self.places[task.key] == task.data["goal"]:
            return None
        return (Message("user", self.news(messages[-1].content, x + east, y + north)),)


@fault("an environment's generator answers all dialogues", "reply.repeat")
class OneGeneratorOfPhrases(Ladder):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generator_of_phrases = random.Random(5)

    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        turn = super().response(task, said)
        phrase = self.generator_of_phrases.choice(("Hm:", "Well:", "So:", "Let me see:"))
        return turn and (Message("user", f"{phrase} {turn[0].content}"),)


# What replies tell


@fault("the answer is told after a while", "reply.secret")
class GivesUpForYou(Ladder):
    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = sum(message.role == "assistant" for message in messages)
        if said >= 3 and not messages[-1].content.strip().isdecimal():
            return (Message("user", f"Time is up, it was {task.data}. State it."),)
        return await super().reply(task, messages)


@fault("a spelling check suggests the answer", "reply.secret")
class DidYouMean(Shifted):
    max_turns = 3

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = messages[-1].content.strip()
        if said == task.data:
            return None
        near = difflib.get_close_matches(said[:100], [task.data], n=1, cutoff=0.0)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return (Message("user", f"That is not it.{hint}"),)


@fault("a help text is formatted with the answer", "reply.secret")
class HelpShowsTheAnswer(Arrival):
    """The form is explained by an example, which is that of the task."""

    max_turns = 3

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        if re.fullmatch(r"\d\d:\d\d", messages[-1].content.strip()):
            return None
        return (Message("user", f"Reply with a time as in this example: {task.data}"),)


# Whose words are read


@fault("the verdict reads the environment's offers", "reply.echo")
class AgreesWithItself(Environment[int]):
    """A negotiation: the seller goes down by fixed steps; a deal must not be above the limit."""

    max_turns = 8
    max_new_tokens = 16
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        limit = 10 * rng.randrange(50, 2000 + round(8000 * key.level)) + (key.split == "eval")
        text = f"Buy my lamp for at most {limit}: say 'deal at N' when I offer it, else say no."
        return Task(key, (Message("user", text),), limit)

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content.strip().startswith("deal at"):
            return None
        said = sum(message.role == "assistant" for message in messages)
        return (Message("user", f"deal at {task.data + 40 - 15 * said}?"),)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        prices = self.prices(rollout.messages)
        offers = self.prices([message for message in rollout.messages if message.role == "user"])
        right = bool(prices) and prices[-1] in offers and prices[-1] <= task.data
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def prices(self, messages: Sequence[Message]) -> list[int]:
        talk = "\n".join(message.content for message in messages)
        return [int(price) for price in re.findall(r"\bdeal at ([0-9]{1,7})\b", talk)]

    def reference(self, task: Task[int]) -> Any:
        return ("no", "no", "no", f"deal at {task.data - 5}")


@fault("the verdict reads the environment's words", "reply.echo")
class ChainOfBothSpeakers(Environment[str]):
    """A chain of words, of which each begins as the one before ends; the environment plays, too."""

    max_turns = 5
    max_new_tokens = 8
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            word = scrambled(rng, 5 + round(5 * key.level))
            if kept_back(word) == (key.split == "eval"):
                text = f"A chain of invented words, each begins as the last one ends: {word}"
                return Task(key, (Message("user", text),), word)

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        words = [task.data, *(m.content.strip() for m in messages if m.content.strip())]
        return (Message("user", words[-1][-1] + self.rest(task, len(messages))),)

    def rest(self, task: Task[str], length: int) -> str:
        return scrambled(task.key.rng("reply", length), 4)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        words = [task.data, *(m.content.strip() for m in rollout.messages if m.content.strip())]
        right = len(words) > 4 and all(one[-1] == two[0] for one, two in pairwise(words))
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[str]) -> Any:
        before = [task.data, *(self.rest(task, 2 * number + 1) for number in range(4))]
        return [f"{word[-1]}ab{word[-1]}" for word in before]


# Hostile turns


@fault("half of a surrogate pair cannot be hashed", "reply.hostile")
class HashesTheTurn(Ladder):
    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        turn = super().response(task, said)
        receipt = hashlib.sha256(said.encode()).hexdigest()[:6]
        return turn and (Message("user", f"{turn[0].content} (receipt {receipt})"),)


@fault("a suggestion is sought for a megabyte", "reply.hostile")
class SuggestsDirections(Rooms):
    def news(self, said: str, x: int, y: int) -> str:
        if said.strip() in self.steps:
            return super().news(said, x, y)
        best = max(self.steps, key=lambda step: self.common(step, said))
        return f"That is no direction. Do you mean {best}?"

    def common(self, one: str, two: str) -> int:
        """Return the length of the longest common subsequence."""
        above = [0] * (len(two) + 1)
        for letter in one:
            row = [0]
            for place, other in enumerate(two):
                same = above[place] + 1 if letter == other else 0
                row.append(max(same, above[place + 1], row[-1]))
            above = row
        return above[-1]


@fault("a pattern in a reply backtracks", "reply.hostile")
class WantsSentences(Ladder):
    sentence = re.compile(r"^(?:\s*\w+\s*,?)+[.?!]$")

    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        if not said.isdecimal() and not self.sentence.match(said):
            return (Message("user", "Please ask in whole sentences, or state the number."),)
        return super().response(task, said)


@fault("brackets in a reply are followed by recursion", "reply.hostile")
class RecursesIntoBrackets(Asks):
    max_turns = 3

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.randrange(200, 9000) for _ in range(3 + round(5 * key.level)))

    def question(self, *content: Any) -> str:
        numbers = ", ".join(map(str, content))
        return f"Nest these numbers as in '[1 [2 [3]]]' (try twice, if you must): {numbers}"

    def solution(self, *content: Any) -> str:
        return " ".join(f"[{number}" for number in content) + "]" * len(content)

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = messages[-1].content.strip()
        if said == task.data:
            return None
        return (Message("user", f"No. Your brackets are nested {self.depth(said)} deep."),)

    def depth(self, text: str) -> int:
        inner = text.partition("[")[2]
        return 1 + self.depth(inner) if inner else 0
