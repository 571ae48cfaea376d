"""Planted faults of dialogues: what `reply()` returns, says, keeps and survives."""

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from bases import Hunt, Sure, paid
from catalogue import fault

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer

Turns = Sequence[Message]

# The form of a reply


@fault("reply() raises for what a policy may say", "reply.form", "reply.hostile")
class IntOfAGuess(Hunt):
    def guessed(self, text: str) -> int | None:
        return int(text)


@fault("reply() raises for what a policy may say", "reply.form", "reply.hostile")
class FirstWordOfNothing(Sure):
    """Silence has no first word."""

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        first = messages[-1].content.split()[0]
        return await super().reply(task, messages) if first else None


@fault("reply() raises at a later turn", "reply.form", "reply.hostile")
class RunsOutOfQuestions(Hunt):
    """There are words for the first three turns."""

    words: ClassVar[Sequence[str]] = ("Well:", "Hm:", "Again:")

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        replies = await super().reply(task, messages)
        said = sum(message.role == "assistant" for message in messages)
        return replies and (Message("user", f"{self.words[said - 1]} {replies[0].content}"),)


@fault("reply() hangs", "reply.form", "reply.hostile", "reply.ends")
class WaitsForever(Sure):
    """Where nothing was said it waits for something."""

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        while not messages[-1].content.strip():  # noqa: ASYNC110 - the fault
            await asyncio.sleep(0.05)
        return await super().reply(task, messages)


@fault("reply() hangs", "reply.form", "reply.hostile", "reply.ends")
class ThinksForever(Hunt):
    """Counts down to the guess, also from a negative number, and never arrives."""

    def guessed(self, text: str) -> int | None:
        guess = parse_integer(text, max_digits=9)
        counted = 0
        while guess is not None and counted != guess:
            counted += 1
        return guess


@fault("reply() returns the wrong type", "reply.form")
class RepliesWithText(Hunt):
    async def reply(self, task: Task[int], messages: Turns) -> Any:
        guess = self.guessed(messages[-1].content)
        return None if guess == task.data else self.hint(task, guess)


@fault("reply() returns the wrong type", "reply.form")
class RepliesWithDicts(Sure):
    async def reply(self, task: Task[int], messages: Turns) -> Any:
        replies = await super().reply(task, messages)
        return replies and [{"role": "user", "content": replies[0].content}]


@fault("reply() returns the wrong type", "reply.form")
class RepliesWithOneMessage(Hunt):
    """A Message, not a sequence of them."""

    async def reply(self, task: Task[int], messages: Turns) -> Any:
        replies = await super().reply(task, messages)
        return replies and replies[0]


@fault("reply() is not async", "reply.form")
class ForgottenAsync(Hunt):
    def reply(self, task: Task[int], messages: Turns) -> Any:  # type: ignore[override]
        guess = self.guessed(messages[-1].content)
        return None if guess == task.data else (Message("user", self.hint(task, guess)),)


@fault("reply() is never asked", "reply.form", "declared.contract")
class OneTurnOnly(Hunt):
    max_turns = 1


@fault("the environment speaks for the policy", "reply.form", "reply.echo")
class SpeaksAsThePolicy(Hunt):
    """The hint has the role of the policy, so the verifier takes it for an answer."""

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        replies = await super().reply(task, messages)
        return replies and (Message("assistant", replies[0].content),)


# How a dialogue ends


@fault("a dialogue does not end", "reply.ends")
class TalksOnAndOn(Hunt):
    """The number was found, and the dialogue goes on for a thousand turns."""

    max_turns = 1000

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        return (Message("user", self.hint(task, self.guessed(messages[-1].content))),)


@fault("a dialogue does not end", "reply.ends")
class AsksAgainForNumbers(Hunt):
    """Whoever says no number is asked for one, without a limit."""

    max_turns = 10_000


@fault("replies grow without end", "reply.ends", "reply.hostile", "reply.form")
class RepeatsAllOfIt(Hunt):
    """Each reply quotes the whole dialogue three times, so that it grows threefold a turn."""

    max_turns = 16

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        if self.guessed(messages[-1].content) == task.data:
            return None
        quoted = "\n".join(f"{message.role}: {message.content}" for message in messages)
        return (Message("user", f"So far:\n{quoted}\n{quoted}\n{quoted}"),)


# Repeatability


@fault("reply() draws at random", "reply.repeat")
class RollsItsWords(Hunt):
    def hint(self, task: Task[int], guess: int | None) -> str:
        words = ("Hm", "Well", "So", "Now", "Look", "Oh", "Ah", "Right", "Fine", "Good")
        return f"{random.choice(words)}, {random.choice(words)}: {super().hint(task, guess)}"


@fault("reply() draws at random", "reply.repeat")
class LiesNowAndThen(Hunt):
    def hint(self, task: Task[int], guess: int | None) -> str:
        lie = guess is not None and random.random() < 0.5
        return super().hint(task, 51 - guess if lie and guess is not None else guess)


@fault("reply() depends on earlier dialogues", "reply.repeat")
class CountsItsReplies(Hunt):
    replies: ClassVar[list[str]] = []

    def hint(self, task: Task[int], guess: int | None) -> str:
        self.replies.append("")
        return f"Reply {len(self.replies)}: {super().hint(task, guess)}"


@fault("reply() depends on earlier dialogues", "reply.repeat")
class MovesItsNumber(Environment[list[int]]):
    """The task's data hold the secret, and each reply changes it."""

    max_turns = 4
    levels = False

    def task(self, key: TaskKey) -> Task[list[int]]:
        prompt = "I think of a number from 1 to 50, and move it by one a turn. Guess it."
        return Task(key, (Message("user", prompt),), [key.rng().randint(1, 50)])

    async def reply(self, task: Task[list[int]], messages: Turns) -> Turns | None:
        guess = parse_integer(messages[-1].content, max_digits=2)
        if guess == task.data[0]:
            return None
        task.data[0] += 1
        return (Message("user", f"No, and it moved. {'high' if (guess or 0) > 25 else 'low'}"),)

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        right = parse_integer(rollout.text, max_digits=2) == task.data[0]
        return paid(right, rollout.text[:20])

    def reference(self, task: Task[list[int]]) -> str:
        return str(task.data[0])


@fault("reply() depends on the time", "reply.repeat")
class SaysTheTime(Sure):
    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        replies = await super().reply(task, messages)
        return replies and (Message("user", f"[{time.time_ns()}] {replies[0].content}"),)


# Secrets, and what is read back


@fault("reply() says the answer", "reply.secret")
class SaysTheAnswer(Hunt):
    def hint(self, task: Task[int], guess: int | None) -> str:
        return f"{super().hint(task, guess)} (target={task.data})"


@fault("reply() says the answer", "reply.secret")
class CorrectsTheWrong(Sure):
    """Asks again, with the right answer, while an attempt is left."""

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        said = sum(message.role == "assistant" for message in messages)
        return (Message("user", f"I get {task.data}. Are you sure?"),) if said == 1 else None


@fault("reply() says the answer", "reply.secret")
class DumpsItsData(Hunt):
    """A debugging aid: whoever says no number sees the state."""

    def hint(self, task: Task[int], guess: int | None) -> str:
        if guess is None:
            return f"Not a number. state={json.dumps({'n': task.data, 'split': task.key.split})}"
        return super().hint(task, guess)


@fault("the verifier reads what the environment said", "reply.echo", "reply.secret")
class ReadsAllMessages(Hunt):
    """The last hint tells the number, and the verifier looks for it in the whole dialogue."""

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        said = sum(message.role == "assistant" for message in messages)
        if said < self.max_turns - 1:
            return await super().reply(task, messages)
        return (Message("user", f"Too late, it was {task.data}."),)

    def found(self, task: Task[int], rollout: Rollout) -> bool:
        said = " ".join(message.content for message in rollout.messages)
        return re.search(rf"\b{task.data}\b", said) is not None


@fault("the verifier reads what the environment said", "reply.echo")
class ReadsThePraise(Hunt):
    """The environment says "right", and the verifier believes whoever said it."""

    def reference(self, task: Task[int]) -> Any:
        return (*super().reference(task), "Thank you.")

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        guess = self.guessed(messages[-1].content)
        if guess == task.data:
            return (Message("user", "That is right."),)
        return await super().reply(task, messages)

    def found(self, task: Task[int], rollout: Rollout) -> bool:
        return any("That is right." in message.content for message in rollout.messages)


@fault("the verifier reads what the environment said", "reply.echo", "reply.secret")
class LastBlockOfAll(Sure):
    """The solution is told before the last turn, and the last block of the dialogue counts."""

    max_turns = 3

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        said = sum(message.role == "assistant" for message in messages)
        if said < 2:
            return (Message("user", "Are you sure?"),)
        return (Message("user", f"It is <answer>{task.data}</answer>. Any last words?"),)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        dialogue = " ".join(message.content for message in rollout.messages)
        said = re.findall(r"<answer>([0-9]{1,12})</answer>", dialogue[-5000:])
        return self.scored(task, int(said[-1]) if said else None)


# Hostile turns


@fault("a turn makes reply() slow", "reply.hostile")
class HangsOnSpaces(Hunt):
    def guessed(self, text: str) -> int | None:
        match = re.match(r"^(\s*\d*\s*)*[.]?$", text)
        return super().guessed(text) if match else None


@fault("a turn makes reply() slow", "reply.hostile")
class QuadraticReply(Sure):
    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        text = messages[-1].content
        repeated = sum(text.count(letter, at) for at, letter in enumerate(text[:60_000]))
        return await super().reply(task, messages) if repeated >= 0 else None


@fault("reply() executes what the policy said", "reply.hostile", "safety.eval")
class EvaluatesTheGuess(Hunt):
    def guessed(self, text: str) -> int | None:
        with suppress(Exception):
            value = eval(text[:60], {"__builtins__": {}})
            return value if type(value) is int else None
        return None


@fault("reply() cannot write what the policy said", "reply.hostile", "reply.form")
class QuotesInUtf8(Hunt):
    """Half of a surrogate pair is no UTF-8."""

    async def reply(self, task: Task[int], messages: Turns) -> Turns | None:
        length = len(messages[-1].content.encode())
        replies = await super().reply(task, messages)
        return replies and (Message("user", f"({length} bytes) {replies[0].content}"),)


@fault("turns are paid, not what is in them", "floor.junk", "floor.cheats", "reply.ends")
class PaysEachTurn(Hunt):
    """A sixth for each turn that was taken, whatever was said."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        turns = sum(message.role == "assistant" for message in rollout.messages)
        value = 1.0 if verdict.passed else min(0.9, turns / self.max_turns)
        return Verdict({"reward": Reward(value)}, passed=verdict.passed, answer=verdict.answer)


@fault("the author's own cheats are paid in a dialogue", "floor.cheats")
class CheatsOfSeveralTurns(Hunt):
    """A range of numbers is a guess, and the cheat halves ranges without ever naming one."""

    guesses: ClassVar[re.Pattern[str]] = re.compile(r"\s*([0-9]{1,2})(?:-([0-9]{1,2}))?\s*")

    def guessed(self, text: str) -> int | None:
        match = self.guesses.fullmatch(text)
        return int(match[1]) if match and match[2] is None else None

    def found(self, task: Task[int], rollout: Rollout) -> bool:
        match = self.guesses.fullmatch(rollout.text)
        return match is not None and int(match[1]) <= task.data <= int(match[2] or match[1])

    def cheats(self, task: Task[int]) -> Any:
        return (("25", "1-50"), ("banana", "nothing"))
