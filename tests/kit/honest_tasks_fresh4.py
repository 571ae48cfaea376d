"""Environments without a fault whose tasks look odd, fourth fresh part."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from bases_fresh4 import SPACE, Largest, Puzzle
from bases_words_fresh4 import Cipher, Stations, coined, stations
from catalogue import honest

from grpo_core import Message, Task, TaskKey, held_out
from grpo_core.extract import parse_integer


@honest("the sound base: a choice of six letters, of which each is right equally often")
class SixLetters(Largest):
    pass


@honest("the prompt has a solved training task, also where a held-out one is asked")
class SolvedExampleFirst(Cipher):
    """The example is drawn from the key, and another one than the task."""

    def posed(self, key: TaskKey, *content: Any) -> Task[Any]:
        task = super().posed(key, *content)
        shown = super().fitting(replace(key, split="train"), key.rng("example"))
        example = (
            Message("user", self.asked(*shown)),
            Message("assistant", self.written(self.solved(*shown))),
        )
        return replace(task, prompt=(*example, *task.prompt))


@honest("a prompt of up to 10,000 characters, of which some lines decide the answer")
class LogOfPumps(Puzzle):
    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        lines = [
            (rng.choice(("intake", "filter", "drain")), "ok", rng.randint(11, 99))
            for _ in range(100 + round(200 * level))
        ]
        for at in rng.sample(range(len(lines)), 3 + round(3 * level)):
            lines[at] = lines[at][0], "late", rng.randint(101, 999)
        return rng.randrange(3600), tuple(lines)

    def asked(self, start: int, lines: tuple[tuple[str, str, int], ...]) -> str:
        told = "\n".join(
            f"{9 + s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d} {pump} {state} {wait} ms"
            for s, (pump, state, wait) in enumerate(lines, start)
        )
        return (
            f"{told}\n\nHow many ms do the late ones of this log have in all? Reply with the "
            "number only."
        )

    def solved(self, start: int, lines: tuple[tuple[str, str, int], ...]) -> int:
        return sum(wait for _, state, wait in lines if state == "late")

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=7)


FRUITS = "🍎🍋🍇🍒"


@honest("what differs between prompts is a row of signs that are no letters")
class RowOfFruits(Puzzle):
    """The signs are named by letters for the split, as words alone decide it."""

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            row = rng.choices(
                FRUITS, weights=rng.choices((1, 2, 3), k=4), k=16 + round(24 * key.level)
            )
            named = "".join("alkc"[FRUITS.index(fruit)] for fruit in row)
            if held_out(named) == (key.split == "eval"):
                return ("".join(row),)

    def asked(self, row: str) -> str:
        return (
            f"{row}\nHow many of each are there? Reply with four numbers, spaces between them: "
            f"{', '.join(FRUITS)}."
        )

    def solved(self, row: str) -> str:
        return " ".join(str(row.count(fruit)) for fruit in FRUITS)


@honest("the prompt is the begin of a session of Python, of which a base model goes on")
class PythonSession(Puzzle):
    """The first line of the completion is the answer, as the class declares."""

    answer_at = "start"

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        word = coined(rng, 5 + round(7 * level))
        return word, rng.randint(1, 4), len(word) - rng.randint(0, 2), rng.randint(2, 3)

    def asked(self, word: str, start: int, end: int, step: int) -> str:
        return f">>> 'badefigo'[1:7:2]\n'aei'\n>>> {word!r}[{start}:{end}:{step}]\n"

    def solved(self, word: str, start: int, end: int, step: int) -> str:
        return repr(word[start:end:step])

    def posed(self, key: TaskKey, *content: Any) -> Task[Any]:
        return Task(key, self.asked(*content), self.solved(*content))

    def read(self, text: str) -> Any:
        return text.lstrip(SPACE).partition("\n")[0].rstrip(SPACE)


PEAKS = [
    [(coined(rng, 3).capitalize(), height) for height in rng.sample(range(801, 8000), 12)]
    for rng in (random.Random(f"peaks {number}") for number in range(30))
]


@honest("held-out questions are about tables that are trained on, and about other pairs of rows")
class PairsOfPeaks(Puzzle):
    levels = False

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        table = rng.randrange(len(PEAKS))
        low, high = sorted(rng.sample(range(12), 2), key=lambda at: PEAKS[table][at][1])
        return table, low, high

    def asked(self, table: int, low: int, high: int) -> str:
        told = ", ".join(f"{name} {height} m" for name, height in PEAKS[table])
        lower, higher = PEAKS[table][low][0], PEAKS[table][high][0]
        return (
            f"{told}. How many metres is {higher} higher than {lower}? Reply with the number only."
        )

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            table, low, high = self.drawn(rng, key.level)
            pair = f"{table} {PEAKS[table][low][0]}{PEAKS[table][high][0]}"
            if held_out(pair) == (key.split == "eval"):
                return table, low, high

    def solved(self, table: int, low: int, high: int) -> int:
        return PEAKS[table][high][1] - PEAKS[table][low][1]

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=7)


@dataclass(frozen=True, slots=True)
class Balloon:
    """What the verifier knows of a task."""

    name: str
    height: int


@honest("there are 24 held-out tasks, and the data are of a class of their own")
class ShortExam(Stations):
    def size(self, split: str) -> int | None:
        return 24 if split == "eval" else len(stations()["train"])

    def solved(self, name: str, height: int, year: int) -> Any:
        return Balloon(name, height + year)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth.height)

    def written(self, truth: Any) -> str:
        return str(truth.height)
