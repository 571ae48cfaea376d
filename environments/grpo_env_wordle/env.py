"""Wordle: the policy guesses a secret word, and the letters of each guess are marked.

| level from | letters | candidates in the prompt | guesses |
| 0.0        | 4       | 4                        | 3       |
| 0.2        | 4       | 8                        | 4       |
| 0.4        | 5       | 12                       | 5       |
| 0.6        | 5       | 24                       | 6       |
| 0.8        | 5       | none, any common word    | 6       |

A guess is a turn that consists of one word. Its marks are G for a letter at its place, Y for a
letter that the word has elsewhere, and - for one that it does not have; a letter is marked at most
as often as the word has it. A turn that is no guess uses up a guess.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from grpo_core import Environment, Episode, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_env_wordle import words
from grpo_env_wordle.words import known_words, words_of

RULES = (
    "Find the secret word. Reply with one word, in lower case, and nothing else. Each letter of "
    "your guess is then marked: G if it is at its place, Y if it is in the word at another place, "
    "- if it is not in the word."
)
HIGHEST = 0.8
"""Weight of the part `solved`."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Describes the tasks from a level on."""

    letters: int
    candidates: int
    """How many words the prompt lists; 0: none, and any common word may be the secret."""
    guesses: int


STAGES = (Stage(4, 4, 3), Stage(4, 8, 4), Stage(5, 12, 5), Stage(5, 24, 6), Stage(5, 0, 6))
"""The stages of levels 0.0, 0.2, 0.4, 0.6 and 0.8."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Holds what the verifier knows of a task."""

    secret: str
    candidates: tuple[str, ...]
    """The words that the prompt lists; () if it lists none."""
    guesses: int
    """The most guesses."""

    def allows(self, guess: str) -> bool:
        """Return whether a word counts as a guess."""
        return guess in (self.candidates or known_words(len(self.secret)))


class Wordle(Environment[Puzzle]):
    """Parts: solved 0.8, less for every guess it took; valid 0.2, the share of turns that guess."""

    parts: ClassVar[Mapping[str, float]] = {"solved": HIGHEST, "valid": 1 - HIGHEST}
    max_turns = max(stage.guesses for stage in STAGES)
    max_new_tokens = 8
    answer_in_prompt = True
    replayable = True

    def task(self, key: TaskKey) -> Task[Puzzle]:
        stage, rng = stage_at(key.level), key.rng()
        words = words_of(key.split, stage.letters)
        candidates = tuple(rng.sample(words, stage.candidates))
        secret = rng.choice(candidates or words)
        listed = f" It is one of: {', '.join(candidates)}." if candidates else ""
        question = (
            f"The word has {stage.letters} letters.{listed} You have {stage.guesses} guesses. "
            "First guess?"
        )
        prompt = (Message("system", RULES), Message("user", question))
        return Task(key, prompt, Puzzle(secret, candidates, stage.guesses))

    def episode(self, task: Task[Puzzle]) -> WordleGame:
        return WordleGame(task.data)

    def reference(self, task: Task[Puzzle]) -> str:
        return task.data.secret

    def cheats(self, task: Task[Puzzle]) -> Sequence[str | Sequence[str]]:
        """Return turns that hold the secret and are no guess."""
        secret = task.data.secret
        return (
            " ".join(task.data.candidates or words_of(task.key.split, len(secret))),
            f"{secret}?",
            f"the word is {secret}",
            f"G{secret}",
            ("GGGG", "GGGGG", secret.upper()),
        )

    def canaries(self) -> Sequence[Task[Puzzle]]:
        """Return a puzzle whose secret is no word that counts as a guess."""
        key = TaskKey("wordle", "eval", 0)
        listed = ("zzzz", "qqqq", "xxxx", "vvvv")
        question = f"The word has 4 letters. It is one of: {', '.join(listed)}. First guess?"
        return (Task(key, (Message("user", question),), Puzzle("jjjj", listed, 3)),)

    def fingerprint(self) -> str:
        return hashlib.sha256(
            (super().fingerprint() + inspect.getsource(words)).encode()
        ).hexdigest()[:16]


@dataclass(slots=True)
class WordleGame(Episode):
    """Holds one game: the guesses so far."""

    puzzle: Puzzle
    turns: list[str | None] = field(default_factory=list)
    """The policy's turns: the guess, or None for a turn that is none."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        guess = self._take(messages[-1].content)
        left = self.puzzle.guesses - len(self.turns)
        if guess == self.puzzle.secret or left <= 0:
            return None
        said = "no guess" if guess is None else f"{guess}: {marks(self.puzzle.secret, guess)}"
        return (Message("user", f"{said}. {left} left. Next guess?"),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        spoken = [message.content for message in rollout.messages if message.role == "assistant"]
        for text in spoken[len(self.turns) :]:  # the last one, if reply() has not seen it
            self._take(text)
        solved = self.puzzle.secret in self.turns
        speed = 1 - (len(self.turns) - 1) / (2 * self.puzzle.guesses)
        valid = sum(guess is not None for guess in self.turns) / max(1, len(self.turns))
        odd = next(
            (text for text, guess in zip(spoken, self.turns, strict=True) if guess is None), None
        )
        note = "" if odd is None else f"a turn is no guess, one of the words alone: {odd!r:.60}"
        return Verdict(
            {"solved": Reward(speed if solved else 0.0), "valid": Reward(valid, note=note)},
            passed=solved,
            answer=self.turns[-1] if self.turns else None,
            metrics={"guesses": len(self.turns)},
        )

    def _take(self, text: str) -> str | None:
        """Count a turn, and return the word that it guesses, or None."""
        word = text.strip()
        guess = word if self.puzzle.allows(word) else None
        self.turns.append(guess)
        return guess


def stage_at(level: float) -> Stage:
    """Return the stage of a level from 0 to 1."""
    return STAGES[min(int(level * 5 + 1e-9), len(STAGES) - 1)]


def marks(secret: str, guess: str) -> str:
    """Return G, Y or - for each letter of a guess."""
    unplaced = Counter(
        letter for letter, guessed in zip(secret, guess, strict=True) if letter != guessed
    )
    signs = []
    for letter, guessed in zip(secret, guess, strict=True):
        if letter == guessed:
            signs.append("G")
        elif unplaced[guessed] > 0:
            unplaced[guessed] -= 1
            signs.append("Y")
        else:
            signs.append("-")
    return "".join(signs)
