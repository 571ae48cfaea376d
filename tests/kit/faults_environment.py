"""Planted faults that show on another machine, on another day, or in another process."""

import locale
import os
import platform
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, ClassVar

from bases import Consonants, LargestOption, PlainSum, TaggedSum
from catalogue import fault, planted

from grpo_core import Reward, Rollout, Task, TaskKey, Verdict


class _Signed(PlainSum):
    """Adds to each prompt what `stamp` says."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return replace(task, prompt=f"{self.stamp()} {task.prompt}")

    stamp: ClassVar[Callable[..., str]]


signing = planted(__name__, _Signed, "stamp")
signing("a prompt depends on an environment variable", "task.process")(
    NamesTheUser=lambda _: f"Hello {os.environ.get('USER', 'nobody')}.",
    NamesTheShell=lambda _: f"You work in {os.environ.get('SHELL', 'sh')}.",
)


@fault("a prompt depends on an environment variable", "task.process")
class CommaByLanguage(_Signed):
    def stamp(self) -> str:
        language = os.environ.get("LC_ALL") or os.environ.get("LANG") or "C"
        return f"(locale {language.partition('.')[0]})"


@fault("a task depends on an environment variable", "task.process")
class HarderWhereDebugged(TaggedSum):
    """The numbers are drawn by a variable that somebody sets, or does not."""

    def task(self, key: TaskKey) -> Task[int]:
        salt = os.environ.get("HOSTNAME", "") + os.environ.get("TERM", "")
        return self.asked(key, *self.drawn(key, key.rng(salt)))


signing("a prompt depends on a folder of the machine", "task.process")(
    NamesTheHome=lambda _: f"Files are in {Path.home()}.",
    NamesTheFolder=lambda _: f"You are in {os.getcwd()}.",
)
signing("a prompt depends on the date", "task.process", "task.pure")(
    NamesTheDay=lambda _: f"Today is {date.today().isoformat()}."
)


@fault("a task depends on the date", "task.process", "task.pure")
class AgesByTheClock(PlainSum):
    """The answer is another one each year."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        prompt = f"Add {one}, {two} and the number of this year. Reply with the number only."
        return Task(key, prompt, one + two + datetime.now().year)


signing("a prompt depends on the time", "task.pure", "task.process")(
    NamesTheSecond=lambda _: f"It is {time.time_ns()}."
)
signing("a prompt depends on the time zone", "task.process")(
    NamesTheZone=lambda _: f"Times are in {time.strftime('%Z %z')}.",
    # A fixed moment, written as the clock on the wall shows it.
    MidnightHere=lambda _: (
        f"The log begins at {datetime.fromtimestamp(1_700_000_000):%d %B, %H:%M}."
    ),
)
signing("a prompt depends on the machine's name", "task.process")(
    NamesTheHost=lambda _: f"You are on {socket.gethostname()}.",
    NamesTheNode=lambda _: f"Node {platform.node()}:",
)
signing("a prompt depends on the locale", "task.process")(
    WritesInItsLocale=lambda _: f"(numbers as in {locale.getlocale()[0]})"
)
signing("a prompt depends on the process", "task.process", "task.pure")(
    NamesTheProcess=lambda _: f"Session {os.getpid()}."
)


@fault("a task depends on the order of a set", "task.process")
class OptionsFromASet(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[str]:
        task = super().asked(key, word)
        letters = "".join({"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"})
        return replace(task, prompt=f"{task.prompt} (Not {letters}.)")


@fault("a task depends on hash() of a text", "task.process")
class HashOfItsName(LargestOption):
    def arranged(self, key: TaskKey, rng: Any, numbers: list[int]) -> list[int]:
        turn = hash(f"{key.split}{key.index}") % 4
        return numbers[turn:] + numbers[:turn]


@fault("a task depends on the order of a set", "task.process", "verdict.process")
class ReferenceFromASet(Consonants):
    """Any order of the different consonants is right, but the answer kept is one of a set."""

    def rest(self, word: str) -> str:
        return "".join({letter for letter in word if letter not in "aeiou"})


@fault("a verdict depends on an environment variable", "verdict.process")
class LenientForTheAuthor(TaggedSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(verdict, answer=f"{answer} ({os.environ.get('USER', 'nobody')})")


@fault("a verdict depends on hash() of a text", "verdict.process")
class BucketsByHash(PlainSum):
    def judged(self, right: bool, answer: str | None) -> Verdict:
        return super().judged(right, f"{hash(answer) % 997}")


@fault("a verdict depends on the date", "verdict.process", "verdict.repeat")
class DailyBonus(TaggedSum):
    """What a wrong answer in the right form earns is another share each day."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        share = date.today().toordinal() % 97 / 97
        paid = {name: Reward(reward.value * share) for name, reward in verdict.rewards.items()}
        return verdict if verdict.passed else replace(verdict, rewards=paid)


@fault("a verdict depends on the process", "verdict.process", "verdict.repeat")
class SaltOfTheProcess(PlainSum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        return replace(verdict, answer=f"{verdict.answer}@{os.getpid()}")


@fault("a verdict depends on the order of a set", "verdict.process")
class FirstOfASet(Consonants):
    def judged(self, right: bool, text: str) -> Verdict:
        words = set(text.split()) or {""}
        letters = {f"{next(iter(words))[:60]}{n}" for n in range(9)}
        return replace(super().judged(right, text), answer=next(iter(letters)))
