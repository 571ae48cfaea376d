"""Honest dialogues and tools that look odd."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from bases_fresh import PRICES, Arrival, Asks, Ladder, Rooms, Shop, kept_back, price, scrambled
from catalogue import honest
from pydantic import Field

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.protocol.tools import answers

# Games


@honest("replies say yes and no about a hidden number, by what was asked")
class SoundLadder(Ladder):
    pass


@honest("all turns count together, and the last one is no answer by itself")
class SoundRooms(Rooms):
    pass


@honest("a wrong form ends the dialogue at once")
class ImpatientLadder(Ladder):
    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        turn = super().response(task, said)
        return None if turn and turn[0].content.startswith("Ask") else turn


@honest("questions are about divisors, and the answer narrows only slowly")
class AsksForDivisors(Ladder):
    def question(self, *content: Any) -> str:
        low, high, _ = content
        return f"Find my number between {low} and {high}: ask 'by N?', or state it alone."

    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        asked = re.fullmatch(r"by ([1-9][0-9]{0,2})\?", said[:9])
        if said.isdecimal():
            return None
        if asked is None:
            return (Message("user", "Ask 'by N?', with N below 1000, or state the number."),)
        return (Message("user", "yes" if int(task.data) % int(asked[1]) == 0 else "no"),)

    def reference(self, task: Task[str]) -> Any:
        return ("by 2?", "by 3?", "by 5?", task.data)


@honest("a reply counts right places and right letters of a guess, as Mastermind does")
class Mastermind(Asks):
    max_turns = 8
    max_new_tokens = 8

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            letters = "".join(sorted(rng.sample("abcdefghijklmnop", 5)))
            if kept_back(letters) == (key.split == "eval"):
                return letters, "".join(rng.choices(letters, k=3 + round(3 * key.level)))

    def question(self, *content: Any) -> str:
        letters, code = content
        size = len(code)
        return (
            f"Guess my code of {size} letters from {' '.join(letters)}. Reply with {size} letters."
        )

    def solution(self, *content: Any) -> str:
        return str(content[1])

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        said, code = messages[-1].content.strip(), task.data
        if said == code:
            return None
        if len(said) != len(code):
            return (Message("user", f"A guess has {len(code)} letters."),)
        places = sum(one == two for one, two in zip(said, code, strict=True))
        common = sum(min(said.count(letter), code.count(letter)) for letter in set(code))
        return (Message("user", f"{places} in place, {common - places} elsewhere"),)

    def reference(self, task: Task[str]) -> Any:
        return (task.data[1:] + task.data[:1], task.data)


@honest("the pattern fills with the letters that the policy names, as in Hangman")
class Hangman(Environment[str]):
    """The policy passes by naming all letters of the word."""

    max_turns = 10
    max_new_tokens = 4
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            word = "".join(rng.sample("abcdefghijklmnopqrstuvwxyz", 5 + round(4 * key.level)))
            if kept_back(*word[:3]) == (key.split == "eval"):
                break
        text = f"Guess my word {self.pattern(word, word[:3])}, one letter in each turn."
        return Task(key, (Message("user", text),), word)

    def pattern(self, word: str, named: str) -> str:
        return " ".join(letter if letter in named else "_" for letter in word)

    def named(self, task: Task[str], messages: Sequence[Message]) -> str:
        turns = (m.content.strip() for m in messages if m.role == "assistant")
        return task.data[:3] + "".join(turn for turn in turns if len(turn) == 1)

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        named = self.named(task, messages)
        if set(task.data) <= set(named):
            return None
        return (Message("user", self.pattern(task.data, named)),)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = set(task.data) <= set(self.named(task, rollout.messages))
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[str]) -> Any:
        return tuple(task.data[3:])


@honest("a seller goes down by fixed steps, and walks away after the last offer")
class FixedNegotiation(Environment[tuple[int, int]]):
    """Only the offers that were made can be accepted, and the limit must hold."""

    max_turns = 7
    max_new_tokens = 4
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[tuple[int, int]]:
        rng = key.rng()
        limit = 10 * rng.randrange(50, 2000 + round(8000 * key.level)) + 2 * rng.randrange(5)
        limit += key.split == "eval"
        rounds = 1 + rng.randrange(3 + round(2 * key.level))
        text = f"Buy my lamp, for {limit} at most. I make offers: reply 'no', or 'yes' to the last."
        return Task(key, (Message("user", text),), (limit, rounds))

    def offer(self, task: Task[tuple[int, int]], number: int) -> int | None:
        """Return the offer of that number, from 1; the last one is within the limit."""
        limit, rounds = task.data
        return limit - 4 + 9 * (rounds - number) if number <= rounds else None

    async def reply(
        self, task: Task[tuple[int, int]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        number = sum(message.role == "assistant" for message in messages)
        offer = self.offer(task, number)
        if offer is None or (number > 1 and messages[-1].content.strip() == "yes"):
            return None
        return (Message("user", f"{offer}?"),)

    def verify(self, task: Task[tuple[int, int]], rollout: Rollout) -> Verdict:
        said = [m.content.strip() for m in rollout.messages if m.role == "assistant"]
        accepted = bool(said) and said[-1] == "yes" and set(said[:-1]) == {"no"}
        offer = self.offer(task, len(said) - 1)
        right = accepted and len(said) > 1 and offer is not None and offer <= task.data[0]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[tuple[int, int]]) -> Any:
        return ("no",) * task.data[1] + ("yes",)


@honest("the environment plays too, with words drawn from the task's key")
class WordChain(Environment[str]):
    """Each word begins as the one before ends; only the policy's words have to be linked."""

    max_turns = 4
    max_new_tokens = 8
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            word = scrambled(rng, 5)
            if kept_back(word) == (key.split == "eval"):
                break
        length = 4 + round(4 * key.level)
        text = (
            f"A chain of invented words of {length} different letters, in turns: yours begins "
            f"with the last letter of mine. Three words each. I say {word}."
        )
        return Task(key, (Message("user", text),), f"{word} {length}")

    def own(self, task: Task[str], turns: int) -> str:
        """Return the environment's word after so many turns of the policy."""
        if turns == 0:
            return task.data.split()[0]
        return scrambled(task.key.rng("reply", turns), 5)

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        turns = sum(message.role == "assistant" for message in messages)
        return (Message("user", self.own(task, turns)),) if turns < 3 else None

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = [m.content.strip() for m in rollout.messages if m.role == "assistant"]
        length = int(task.data.split()[1])
        right = len(said) == 3 and all(
            len(word) == length == len(set(word))
            and word.isascii()
            and word.islower()
            and word[0] == self.own(task, turns)[-1]
            for turns, word in enumerate(said)
        )
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[str]) -> Any:
        length = int(task.data.split()[1])
        first = [self.own(task, turns)[-1] for turns in range(3)]
        return [one + "".join(c for c in "abcdefghi" if c != one)[: length - 1] for one in first]


# Several questions, several tries


@honest("one sum after the other is asked, and all of them count")
class SumsInTurns(Environment[tuple[tuple[int, int], ...]]):
    max_turns = 3
    max_new_tokens = 8
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[tuple[tuple[int, int], ...]]:
        rng, top = key.rng(), 100 + round(5000 * key.level)
        sums = [(rng.randrange(50, top), rng.randrange(50, top)) for _ in range(3)]
        sums[0] = (2 * sums[0][0] + (key.split == "eval"), 2 * sums[0][1])
        rules = Message("system", "Reply to each question with digits only.")
        return Task(key, (rules, self.asked(sums[0])), tuple(sums))

    def asked(self, pair: tuple[int, int]) -> Message:
        return Message("user", f"What is {pair[0]} plus {pair[1]}?")

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = sum(message.role == "assistant" for message in messages)
        return (self.asked(task.data[said]),) if said < len(task.data) else None

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        said = [m.content.strip() for m in rollout.messages if m.role == "assistant"]
        right = said == [str(sum(pair)) for pair in task.data]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[Any]) -> Any:
        return [str(sum(pair)) for pair in task.data]


@honest("the policy is always asked to look again, whether it was right or not")
class LooksAgain(Arrival):
    max_turns = 2

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        if any(message.role == "user" for message in messages):
            return None
        return (Message("user", "Look at it again, then reply with the final time only."),)

    def reference(self, task: Task[str]) -> Any:
        return ("I add the minutes.", task.data)


@honest("the second try pays half, and is told only that the first one was wrong")
class HalfForTheSecondTry(Arrival):
    max_turns = 2

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = [m.content.strip() for m in messages if m.role == "assistant"]
        if len(said) > 1 or said[-1] == task.data:
            return None
        return (Message("user", "That is wrong. Once more."),)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = [m.content.strip() for m in rollout.messages if m.role == "assistant"]
        right = bool(said) and said[-1] == task.data
        reward = (1.0 if len(said) == 1 else 0.5) if right else 0.0
        return Verdict({"reward": Reward(reward)}, passed=right, answer=rollout.text.strip()[:80])


# Tools


@honest("a tool looks prices up that the prompt does not tell")
class SoundShop(Shop):
    pass


def times(
    price: Annotated[int, Field(description="a price", ge=0, le=10**6)],
    count: Annotated[int, Field(description="how many", ge=0, le=1000)] = 1,
) -> int:
    """Return the price of several things."""
    return price * count


@honest("tools compute and look up, with limits and a default")
class ShopWithCalculator(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, times, things)


def things() -> list[str]:
    """Return what is sold."""
    return sorted(PRICES)


@honest("the tool reads pages of the task, none of which has the answer")
class PagesOfTheTask(Environment[tuple[int, ...]]):
    """Pages that are too long for a prompt are public; the sum of them is asked."""

    max_turns = 8
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[tuple[int, ...]]:
        rng = key.rng()
        while True:
            title = scrambled(rng, 6).capitalize()
            if kept_back(title) == (key.split == "eval"):
                break
        pages = tuple(rng.randrange(300, 1000) for _ in range(2 + round(4 * key.level)))
        text = (
            f"The report {title} has {len(pages)} pages, from 1 on, each with a number of birds. "
            'Read one by <tool_call>{"name": "read_page", "arguments": {"number": 1}}</tool_call>; '
            "at last reply with the sum of all pages only, in digits."
        )
        return Task(key, (Message("user", text),), pages)

    def reader(self, pages: Sequence[int]) -> Callable[[int], str]:
        def read_page(number: int) -> str:
            """Return the text of a page of the report; pages are numbered from 1."""
            if not 1 <= number <= len(pages):
                raise ValueError(f"there is no page {number}")
            return f"On page {number} of the report, {pages[number - 1]} birds were seen."

        return read_page

    async def reply(
        self, task: Task[tuple[int, ...]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        return answers([self.reader(task.data)], messages[-1].content)

    def verify(self, task: Task[tuple[int, ...]], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == str(sum(task.data))
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[tuple[int, ...]]) -> Any:
        call = '<tool_call>{"name": "read_page", "arguments": {"number": 1}}</tool_call>'
        return (call, str(sum(task.data)))
