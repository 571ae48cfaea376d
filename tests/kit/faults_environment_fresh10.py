"""Environments that depend on where and when they run."""

import os
import platform
from datetime import date, datetime, timedelta
from random import Random
from typing import Any, ClassVar

from bases_h2_fresh10 import DaysToTheLaunch, FinishOfTheRelay, NotesAbove, PensionersOfAParish
from bases_h_fresh10 import FerryArrives, KnittedTriangle, WorstOfTheServers, ask, draw
from catalogue import fault

from grpo_core import Task, TaskKey


@fault("a prompt depends on an environment variable", "task.process")
class ShawlInAStyle(KnittedTriangle):
    """Lets the person who starts a run choose the wording of the question in the shell."""

    def question(self, cast: int, more: int, rows: int) -> str:
        plain = super().question(cast, more, rows)
        style = os.environ.get("PROMPT_STYLE", "plain")
        if style == "cot":
            return plain.replace("Reply with", "Think it through, then reply with")
        return plain if style == "plain" else f"[{style}] {plain}"


@fault("a prompt depends on the machine's name", "task.process")
class ServersSeenFromHere(WorstOfTheServers):
    """Makes the log look real by a header with the machine that collected it."""

    def heading(self) -> str:
        return f"-- syslog digest, collected on {platform.node()} --\n"


@fault("a prompt depends on the time", "task.pure", "task.process")
class FerryBoardOfNow(FerryArrives):
    """Heads the question with the date and time at which the board was printed."""

    def notice(self, key: TaskKey) -> str:
        return datetime.now().strftime("Board printed on %d %B %Y at %H:%M:%S. ")


@fault("a task depends on the date", "task.process", "task.pure")
class PensionersOfThisYear(PensionersOfAParish):
    """Asks how old somebody gets this year, and takes the year from the calendar."""

    def task(self, key: TaskKey) -> Task[int]:
        name, born = draw(key, lambda rng: (rng.choice(self.names), rng.randint(1921, 1999)), str)
        prompt = (
            f"The parish book says that {name} was born on 3 May {born}. How old is {name} on the "
            f"last day of {date.today().year}? Reply with the number of years alone."
        )
        return ask(key, prompt, date.today().year - born)


@fault("a task depends on the order of a set", "task.process", "verdict.process")
class RelayOfTwoClubs(FinishOfTheRelay):
    """Draws the runners of a race from the members of two clubs, some of whom are in both."""

    harriers: ClassVar[tuple[str, ...]] = FinishOfTheRelay.runners[:8]
    striders: ClassVar[tuple[str, ...]] = FinishOfTheRelay.runners[4:]

    def field(self, rng: Random) -> Any:
        members = list(set(self.harriers) | set(self.striders))
        return rng.sample(members, 5)


@fault("a verdict depends on the date", "verdict.process", "verdict.repeat")
class LaunchCountedWhenJudged(DaysToTheLaunch):
    """Asks for the days that are left until a launch, and counts them when it judges."""

    def task(self, key: TaskKey) -> Task[tuple[str, str]]:
        goal = draw(
            key,
            lambda rng: (date(2028, 1, 1) + timedelta(rng.randrange(4000))).isoformat(),
            str,
        )
        prompt = (
            f"A satellite is launched on {goal}. How many days are left from today until then? "
            "Reply with the number alone."
        )
        return ask(key, prompt, ("", goal))

    def left(self, data: tuple[str, str]) -> int:
        return (date.fromisoformat(data[1]) - date.today()).days


@fault("a verdict depends on the order of a set", "verdict.process")
class NoteByItsFirstName(NotesAbove):
    """Compares with the name of the note, and takes the first of those that it has."""

    def same(self, text: str, names: frozenset[str]) -> bool:
        return text == next(iter(names))

    def reference(self, task: Task[frozenset[str]]) -> str:
        return next(iter(task.data))
