"""The jobs, from printing a file to writing a script: what is asked, and how it is inspected."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_core import CommandResult, Session
from grpo_env_terminal.state import FILE, FOLDER, Entry, folder_state, given

Files = tuple[tuple[str, str], ...]
"""Paths with their contents."""
MAX_ADDED = 12
"""The most files and folders that a policy may leave beside those that are asked for.

With more, it could leave one for each name that a question may have."""


@dataclass(frozen=True, slots=True)
class Job(ABC):
    """Holds what is asked for, and the folder in which it is done."""

    question: str
    files: Files
    solution: str
    """Commands that do the job; "" for a canary, at which nothing is paid."""
    mistakes: tuple[tuple[str, str], ...]
    """Plausible commands that do not do it, each with the name of its mistake."""

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
    """Asks for a command that prints one file and nothing else, and succeeds."""

    printed: str

    async def is_done(
        self, session: Session, last: CommandResult | None, rng: random.Random
    ) -> bool:
        return last is not None and succeeded(last) and last.stdout == self.printed


@dataclass(frozen=True, slots=True)
class FilesJob(Job):
    """Asks for a state of the folder, in which other files stay as they are."""

    made: Files = ()
    """Files that must be there; white space around their contents does not matter."""
    moved: tuple[tuple[str, str], ...] = ()
    """Files with the paths to which they are moved as they are; then nothing may be added."""

    async def is_done(
        self, session: Session, last: CommandResult | None, rng: random.Random
    ) -> bool:
        state = await folder_state(session)
        if state is None or not self._has_kinds(state):
            return False
        for path, content in self.made:
            data = await session.read(path)
            if data is None or data.decode("utf-8", "replace").strip() != content.strip():
                return False
        return True

    def _has_kinds(self, state: Mapping[str, Entry]) -> bool:
        """Return whether each path holds what it should; the content of made files aside."""
        new_path = dict(self.moved)
        kept = {new_path.get(path, path): given(content) for path, content in self.files}
        made = {path for path, _ in self.made}
        folders = {path.rpartition("/")[0] for path in (*kept, *made) if "/" in path}
        return (
            all(state.get(path) == entry for path, entry in kept.items())
            and all(path in state and state[path].kind == FILE for path in made)
            and all(path in state and state[path].kind == FOLDER for path in folders)
            and not any(path in state for path in new_path)
            and added(state, {*kept, *made, *folders}) <= (0 if self.moved else MAX_ADDED)
        )


@dataclass(frozen=True, slots=True)
class ScriptJob(Job):
    """Asks for a script, which is tried on inputs that are drawn after the policy's last word."""

    path: str
    words: Sequence[str] = ()
    """The words in the lines of the inputs."""

    async def is_done(
        self, session: Session, last: CommandResult | None, rng: random.Random
    ) -> bool:
        state = await folder_state(session)
        expected = {self.path, *(path for path, _ in self.files)}
        if (
            state is None
            or self.path not in state
            or state[self.path].kind != FILE
            or added(state, expected) > MAX_ADDED
        ):
            return False
        for lines in _inputs(rng, self.words):
            text = "".join(f"{word} {number}\n" for word, number in lines)
            result = await session.exec(["/bin/sh", self.path], input=text, of_policy=True)
            right = sum(number for _, number in lines)
            if not succeeded(result) or result.stdout.strip() != str(right):
                return False
        return True


def _inputs(rng: random.Random, words: Sequence[str]) -> list[list[tuple[str, int]]]:
    """Return the lines of three inputs in a random order: a few, more than a page, none.

    The long one has a sum of eight digits. Lines repeat, beside each other and apart, so that
    leaving some out or counting two as one changes the sum.
    """
    short = [(rng.choice(words), rng.randint(1, 999)) for _ in range(rng.randint(2, 9))]
    short += [short[-1], short[0]]
    long = [(rng.choice(words), rng.randint(50_000, 99_999)) for _ in range(rng.randint(210, 260))]
    long += [long[-1], long[0]]
    inputs = [short, long, list[tuple[str, int]]()]
    rng.shuffle(inputs)
    return inputs


def added(state: Mapping[str, Entry], expected: set[str]) -> int:
    """Return the number of entries that are not expected, hidden ones aside."""
    return sum(path not in expected and not path.startswith(".") for path in state)


def succeeded(result: CommandResult) -> bool:
    """Return whether a command has ended by itself, with the exit code 0."""
    return result.status == "ok" and result.exit_code == 0
