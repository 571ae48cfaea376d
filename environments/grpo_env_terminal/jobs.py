"""The jobs, from printing a file to writing a script: what is asked, and how it is inspected."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grpo_core import CommandResult, Session, held_out

_WORDS = """
    amber basin cedar delta ember fjord grove haven islet jetty knoll ledge maple north ocean pearl
    quarry ridge shore tower upland valley willow yonder
"""
_NAMES = "apple banjo cabin daisy eagle fable gecko hotel index jewel kiosk lemon"
"""Beginnings of the names of files, which a number follows."""
WORDS, NAMES = _WORDS.split(), _NAMES.split()
Split = Literal["train", "eval"]
Files = tuple[tuple[str, str], ...]
"""Paths with their contents."""


@dataclass(frozen=True, slots=True)
class Job(ABC):
    """Holds what is asked for, and the folder in which it is done."""

    question: str
    files: Files
    solution: str
    """Commands that do the job; "" for a canary, at which nothing is paid."""

    @abstractmethod
    async def is_done(
        self, session: Session, last: CommandResult | None, rng: random.Random
    ) -> bool:
        """Return whether the job is done, by a look at the folder from outside.

        Args:
            session: the session after the policy's last word.
            last: how the policy's last command ended, if there was one.
            rng: for inputs that the policy cannot know.
        """


@dataclass(frozen=True, slots=True)
class PrintJob(Job):
    """Asks for a command that prints one file and nothing else."""

    printed: str

    async def is_done(
        self, session: Session, last: CommandResult | None, rng: random.Random
    ) -> bool:
        return last is not None and last.status == "ok" and last.stdout == self.printed


@dataclass(frozen=True, slots=True)
class FilesJob(Job):
    """Asks for a state of the folder."""

    wanted: Files
    """Files that must be there; white space around their contents does not matter."""
    gone: tuple[str, ...] = ()
    """Paths of which there must be no file."""

    async def is_done(
        self, session: Session, last: CommandResult | None, rng: random.Random
    ) -> bool:
        for path, content in self.wanted:
            found = await session.read(path)
            if found is None or found.decode("utf-8", "replace").strip() != content.strip():
                return False
        for path in self.gone:
            if await session.read(path) is not None:
                return False
        return True


@dataclass(frozen=True, slots=True)
class ScriptJob(Job):
    """Asks for a script, which is tried on inputs that are drawn after the policy's last word."""

    path: str
    trials: int = 3

    async def is_done(
        self, session: Session, last: CommandResult | None, rng: random.Random
    ) -> bool:
        for _ in range(self.trials):
            numbers = [rng.randint(1, 999) for _ in range(rng.randint(2, 9))]
            lines = "".join(f"{rng.choice(WORDS)} {number}\n" for number in numbers)
            result = await session.exec(["/bin/sh", self.path], input=lines, of_policy=True)
            if result.status != "ok" or result.stdout.strip() != str(sum(numbers)):
                return False
        return True


def _names(rng: random.Random, split: Split, count: int) -> list[str]:
    """Return different names such as apple37; no training task has one of a held-out task."""
    names: dict[str, None] = {}
    while len(names) < count:
        name = f"{rng.choice(NAMES)}{rng.randint(10, 99)}"
        if held_out(name, 0.5) == (split == "eval"):
            names[name] = None
    return list(names)


def _files(rng: random.Random, split: Split, suffix: str, count: int) -> Files:
    return tuple((f"{name}.{suffix}", _lines(rng)) for name in _names(rng, split, count))


def _lines(rng: random.Random) -> str:
    return "".join(f"{word}\n" for word in rng.choices(WORDS, k=rng.randint(3, 6)))


def _print(rng: random.Random, split: Split) -> Job:
    files = _files(rng, split, "txt", 3)
    path, content = rng.choice(files)
    return PrintJob(f"Print the file {path}.", files, f"cat {path}", content)


def _write(rng: random.Random, split: Split) -> Job:
    *others, (path, _) = _files(rng, split, "txt", 3)
    text = " ".join(rng.sample(WORDS, 3))
    question = f'Write the text "{text}" into the file {path}.'
    return FilesJob(question, tuple(others), f"echo {text} > {path}", ((path, text),))


def _count(rng: random.Random, split: Split) -> Job:
    (path, content), other = _files(rng, split, "txt", 2)
    lines = content.splitlines() + rng.choices(WORDS, k=12)
    word = rng.choice(lines)
    rng.shuffle(lines)
    question = f"How many lines of {path} are the word {word}? Write the number into answer.txt."
    return FilesJob(
        question,
        ((path, "".join(f"{line}\n" for line in lines)), other),
        f"grep -cx {word} {path} > answer.txt",
        (("answer.txt", str(lines.count(word))),),
    )


def _sort(rng: random.Random, split: Split) -> Job:
    (path, content), other = _files(rng, split, "txt", 2)
    lines = content.splitlines() + rng.choices(WORDS, k=8)
    question = (
        f"Write the distinct words of {path} into words.txt, one on each line, in alphabetical "
        "order."
    )
    return FilesJob(
        question,
        ((path, "".join(f"{line}\n" for line in lines)), other),
        f"sort -u {path} > words.txt",
        (("words.txt", "\n".join(sorted(set(lines)))),),
    )


def _move(rng: random.Random, split: Split) -> Job:
    files = _files(rng, split, "log", 3) + _files(rng, split, "txt", 2)
    logs = [(path, content) for path, content in files if path.endswith(".log")]
    return FilesJob(
        "Move every file whose name ends in .log into a new folder old.",
        files,
        "mkdir old && mv *.log old/",
        (
            *((f"old/{path}", content) for path, content in logs),
            *(entry for entry in files if entry not in logs),
        ),
        tuple(path for path, _ in logs),
    )


def _script(rng: random.Random, split: Split) -> Job:
    path = f"{_names(rng, split, 1)[0]}.sh"
    question = (
        f"Write a shell script {path} that reads lines such as `{rng.choice(WORDS)} "
        f"{rng.randint(1, 99)}` from its standard input, and prints the sum of the numbers."
    )
    solution = f"echo 'awk \"{{s += \\$2}} END {{print s}}\"' > {path}"
    return ScriptJob(question, _files(rng, split, "txt", 1), solution, path)


FAMILIES: tuple[Callable[[random.Random, Split], Job], ...] = (
    _print,
    _write,
    _count,
    _sort,
    _move,
    _script,
)
"""What is asked at levels 0.0, 0.2, 0.4, 0.6, 0.8 and 1.0."""


def draw_job(rng: random.Random, split: Split, level: float) -> Job:
    """Return a job of a level from 0 to 1."""
    return FAMILIES[int(level * 5 + 1e-9)](rng, split)
