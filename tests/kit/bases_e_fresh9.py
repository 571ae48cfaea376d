"""Sound environments of the kinds E, first part: drinks, levers, ciphers, music, crates, time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import permutations
from typing import ClassVar, TypeVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_decimal, parse_json, xml_tag

Item = TypeVar("Item")
SPACE = " \t\r\n"
LONGEST = 4000


def drawn(key: TaskKey, draw: Callable[[random.Random], tuple[str, Item]]) -> Item:
    """Return the first item whose text belongs to the split of the key."""
    rng = key.rng()
    while True:
        text, item = draw(rng)
        if held_out(text, 0.25) == (key.split == "eval"):
            return item


def judged(right: bool, answer: str) -> Verdict:
    """Return a verdict with one part, 1 or 0."""
    return Verdict({"reward": Reward(right)}, passed=right, answer=answer[:100])


def last_line(text: str) -> str:
    """Return the last line of a text that is not too long."""
    return text.strip(SPACE).split("\n")[-1].strip(SPACE) if len(text) <= LONGEST else ""


class CellarStrength(Environment[str]):
    """Asks for the strength of a brew from its two gravities, in percent."""

    levels: ClassVar[bool] = False
    rules: ClassVar[str] = (
        "Strength in percent = points of gravity lost * 0.13, where 1.001 is one point. "
        "Give it with two decimals, without a unit, in <abv>...</abv>."
    )

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, tuple[int, int]]:
            first, last = rng.randint(36, 118), rng.randint(1, 29)
            return f"{first} {last}", (first, last)

        first, last = drawn(key, draw)
        question = f"A wort began at 1.{first:03d} and stopped at 1.{last:03d}. How strong is it?"
        cents = (first - last) * 13
        return Task(
            key,
            (Message("system", self.rules), Message("user", question)),
            f"{cents // 100}.{cents % 100:02d}",
        )

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="abv")
        content = "" if block is None else block.content
        return judged(self.right(Decimal(task.data), content), content)

    def right(self, truth: Decimal, content: str) -> bool:
        """Return whether the content of the block is the strength."""
        return parse_decimal(content, max_digits=6) == truth

    def reference(self, task: Task[str]) -> str:
        return f"<abv>{task.data}</abv>"


class LeverChoice(Environment[str]):
    """Asks which of five forces turns a lever most; the last line names the letter."""

    levels: ClassVar[bool] = False

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, str]]:
            while True:
                loads = [(rng.randint(11, 95), rng.randint(12, 88)) for _ in range(5)]
                moments = [force * arm for force, arm in loads]
                if moments.count(max(moments)) == 1:
                    break
            lines = "\n".join(
                f"{letter}: {force} N at {arm} cm"
                for letter, (force, arm) in zip("ABCDE", loads, strict=True)
            )
            return lines, (lines, "ABCDE"[moments.index(max(moments))])

        lines, letter = drawn(key, draw)
        question = (
            "Five forces pull at right angles on a lever. Which has the largest moment?\n"
            f'{lines}\nYou may reason first. Let the last line be "Choice: " and the letter.'
        )
        return Task(key, (Message("user", question),), letter)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        line = last_line(rollout.text)
        return judged(self.right(task.data, line), line)

    def right(self, letter: str, line: str) -> bool:
        """Return whether the last line chooses the letter."""
        return line == f"Choice: {letter}"

    def reference(self, task: Task[str]) -> str:
        return f"Choice: {task.data}"


def on_rails(text: str, rails: int) -> str:
    """Return the letters of a text as they are read off the rails of a fence."""
    rows: list[list[str]] = [[] for _ in range(rails)]
    way = [*range(rails), *range(rails - 2, 0, -1)]
    for place, letter in enumerate(text):
        rows[way[place % len(way)]].append(letter)
    return "".join("".join(row) for row in rows)


class FenceCipher(Environment[str]):
    """Asks to decipher a rail fence; more letters and rails as the level rises."""

    def shape(self, key: TaskKey) -> tuple[int, int]:
        """Return the number of syllables and of rails."""
        return 4 + round(4 * key.level), 2 + round(2 * key.level)

    def task(self, key: TaskKey) -> Task[str]:
        syllables, rails = self.shape(key)

        def draw(rng: random.Random) -> tuple[str, str]:
            while True:
                word = "".join(
                    rng.choice("BDFGKLMNPRSTV") + rng.choice("AEIOU") for _ in range(syllables)
                )
                if on_rails(word, rails) != word:
                    return word, word

        word = drawn(key, draw)
        rules = (
            f"The user sends a text that was written in a zigzag over {rails} rails and read off "
            "rail by rail, from the top. Reply with the text as it was, in capitals, nothing else."
        )
        return Task(key, (Message("system", rules), Message("user", on_rails(word, rails))), word)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(self.right(task.data, reply), reply)

    def right(self, word: str, reply: str) -> bool:
        """Return whether the reply is the deciphered text."""
        return reply == word

    def reference(self, task: Task[str]) -> str:
        return task.data


NOTES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


class MelodyUp(Environment[str]):
    """Asks to transpose a row of notes; the row is longer at higher levels."""

    spelling: ClassVar[str] = "Write sharps as in C#, no flats."

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, int, str]]:
            pitches = [rng.randrange(12) for _ in range(7 + round(7 * key.level))]
            steps = rng.randint(1, 11)
            tune = " ".join(NOTES[pitch] for pitch in pitches)
            moved = " ".join(NOTES[(pitch + steps) % 12] for pitch in pitches)
            return f"{tune} {steps}".replace("#", ""), (tune, steps, moved)

        tune, steps, moved = drawn(key, draw)
        question = (
            f"Transpose up by {steps} semitones: {tune}\n"
            f"Reply with the notes, separated by spaces, and nothing else. {self.spelling}"
        )
        return Task(key, (Message("user", question),), moved)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(self.right(task.data, reply), reply)

    def right(self, moved: str, reply: str) -> bool:
        """Return whether the reply is the transposed row."""
        return reply.split(" ") == moved.split(" ")

    def reference(self, task: Task[str]) -> str:
        return task.data


class CratesInOrder(Environment[list[str]]):
    """Asks in which order five crates leave a lorry, from clues that allow one order only."""

    levels: ClassVar[bool] = False

    def task(self, key: TaskKey) -> Task[list[str]]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, list[str]]]:
            order = rng.sample("PQRST", 5)
            pairs = [(a, b) for a in order for b in order[order.index(a) + 1 :]]
            rng.shuffle(pairs)
            pairs = [pair for pair in pairs if rng.random() < 0.8]
            left = [
                way
                for way in permutations("PQRST")
                if all(way.index(a) < way.index(b) for a, b in pairs)
            ]
            clues = [f"{a} leaves before {b}." for a, b in pairs]
            for crate in rng.sample(order, 5):
                place = order.index(crate)
                fewer = [way for way in left if way[place] == crate]
                if len(fewer) < len(left):
                    clues.append(f"{crate} is number {place + 1}.")
                    left = fewer
            text = " ".join(clues)
            return text, (text, order)

        clues, order = drawn(key, draw)
        question = (
            f"Five crates, P, Q, R, S and T, leave a lorry one by one. {clues} In which order do "
            'they leave? Reply with a JSON list of letters, such as ["P", "Q"], nothing else.'
        )
        return Task(key, (Message("user", question),), order)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        found = parse_json(rollout.text, max_chars=LONGEST)
        answer = found.value if found is not None and isinstance(found.value, list) else []
        return self.verdict(task.data, answer)

    def verdict(self, order: list[str], answer: list[object]) -> Verdict:
        """Return what a list of JSON values is worth."""
        return judged(answer == order, " ".join(map(str, answer)))

    def reference(self, task: Task[list[str]]) -> str:
        return "[" + ", ".join(f'"{crate}"' for crate in task.data) + "]"


def as_time(minutes: int) -> str:
    """Return minutes as a time sheet writes them."""
    return f"{minutes // 60}h{minutes % 60:02d}m"


class TimeSheetTotal(Environment[str]):
    """Asks for the total of a row of hours and minutes; more of them at higher levels."""

    rules: ClassVar[str] = (
        "The user sends a row of a time sheet. Work out its total. Reply with hours and minutes "
        "in the form 0h07m, the minutes below 60 and with two digits, and nothing else."
    )

    def terms(self, level: float) -> int:
        """Return the number of entries of a row."""
        return 2 + round(5 * level)

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, int]]:
            total = rng.randint(300, 599)
            row = as_time(total)
            for _ in range(self.terms(key.level) - 1):
                entry = rng.randint(62, 290)
                sign = rng.choice("+-") if entry < total - 60 else "+"
                total += entry if sign == "+" else -entry
                row += f" {sign} {as_time(entry)}"
            return row.replace("+", "and").replace("-", "less"), (row, total)

        row, total = drawn(key, draw)
        return Task(key, (Message("system", self.rules), Message("user", row)), as_time(total))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return self.verdict(task.data, reply)

    def verdict(self, total: str, reply: str) -> Verdict:
        """Return what a reply is worth."""
        return judged(reply == total, reply)

    def reference(self, task: Task[str]) -> str:
        return task.data


def is_time(text: str) -> bool:
    """Return whether a text has the form of hours and minutes."""
    return re.fullmatch(r"[0-9]{1,3}h[0-5][0-9]m", text, re.ASCII) is not None
