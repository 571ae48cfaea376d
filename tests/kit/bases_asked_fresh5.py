"""Sound environments of the fifth fresh part: questions."""

from __future__ import annotations

import json
import random
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_json, xml_tag


class Posed(Environment[Any]):
    """A question whose words decide the split, and the form of a verdict."""

    timeout_seconds = 2.0
    max_new_tokens = 96

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            question, data = self.made(rng, key.level)
            if held_out(question) == (key.split == "eval"):
                return Task(key, (Message("user", question),), data)

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        """Return a question, and what the verifier needs."""
        raise NotImplementedError

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == self.solution(data)

    def solution(self, data: Any) -> str:
        return str(data)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return judged(self.right(task.data, rollout.text), rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        return self.solution(task.data)


def judged(right: bool, text: str, pay: float | None = None) -> Verdict:
    """Return the verdict of an attempt."""
    reward = Reward(float(right) if pay is None else pay)
    return Verdict({"reward": reward}, passed=right, answer=text.strip()[:80])


HARBOURS = (
    *("Husum", "Emden", "Brest", "Cork", "Dover", "Esbjerg", "Faro", "Genoa", "Havre", "Izmir"),
    *("Kotor", "Lagos", "Malaga", "Narvik", "Oban", "Porto", "Riga", "Split", "Turku", "Varna"),
)


class Tides(Posed):
    """The water of some harbours after it has risen and fallen, as a JSON object."""

    rules = 'How high is it in each? Reply with a JSON object of numbers only: {"Ostend": 310}'

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        told, levels = list[str](), dict[str, int]()
        for name in rng.sample(HARBOURS, 3 + round(3 * level)):
            start, up, down = rng.randint(200, 600), rng.randint(11, 199), rng.randint(11, 99)
            levels[name] = start + up - down
            told.append(f"In {name} it was {start} cm, rose by {up} and then fell by {down}.")
        return f"{' '.join(told)} {self.rules}", levels

    def right(self, data: Any, text: str) -> bool:
        return bool(self.read(text) == data)

    def read(self, text: str) -> Any:
        found = parse_json(text, max_chars=1000)
        whole = found is not None and isinstance(found.value, dict)
        if found is None or not whole or any(type(v) is not int for v in found.value.values()):
            return None
        return found.value

    def solution(self, data: Any) -> str:
        return json.dumps(data)


NOTES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


class Melody(Posed):
    """A melody some semitones higher, as a list of notes."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        notes = [rng.randrange(12) for _ in range(6 + round(8 * level))]
        steps = rng.choice((1, 2, 3, 4, 5, 7, 8, 9, 10, 11))
        told = " ".join(NOTES[note] for note in notes)
        question = (
            f"Write the melody {told} {steps} semitones higher (after B comes C), with sharps "
            "only. Reply with the notes only, one space between them."
        )
        return question, " ".join(NOTES[(note + steps) % 12] for note in notes)


FILES = ("notes.txt", "backup.sh", "photo.png", "letter.odt", "list.csv", "budget.ods", "key.pem")
WHO = ("owner", "group", "others")
MAY = ((4, "read"), (2, "write"), (1, "execute"))


class Permissions(Posed):
    """Who may do what with a file, as a command: text like code."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        commands, told = list[str](), list[str]()
        for file in rng.sample(FILES, 2 + round(level)):
            modes = [rng.randint(1, 7) for _ in WHO]
            commands.append(f"chmod {''.join(map(str, modes))} {file}")
            told.extend(
                f"{who} may {', '.join(word for bit, word in MAY if mode & bit)} {file}"
                for who, mode in zip(WHO, modes, strict=True)
            )
        question = (
            f"It shall hold that {'; '.join(told)}; and no more than that. Reply with the commands "
            "only, one chmod with an octal mode and one file in each line."
        )
        return question, commands

    def solution(self, data: Any) -> str:
        return "\n".join(data)


class Cargo(Posed):
    """The load of a ship, as a number with its unit in a block."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        total, told = 0, list[str]()
        for goods in rng.sample(("wool", "tea", "oats", "salt", "cork", "iron", "flax"), 3):
            sacks, each = rng.randint(3, 12 + round(80 * level)), rng.randint(12, 98)
            total += sacks * each
            told.append(f"{sacks} sacks of {goods} of {each} kg")
        question = (
            f"A ship carries {', '.join(told)}. How heavy is all of it? Think as you like, and end "
            "with the block <load>1200 kg</load>."
        )
        return question, total

    def right(self, data: Any, text: str) -> bool:
        block = xml_tag(text, tag="load")
        whole = block is not None and not text[block.end :].strip()
        return block is not None and whole and block.content.strip() == f"{data} kg"

    def solution(self, data: Any) -> str:
        return f"<load>{data} kg</load>"


class Diary(Posed):
    """What somebody has spent; the last line of the reply counts."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        total, told = 0, list[str]()
        for _ in range(3 + round(5 * level)):
            cents, thing = rng.randint(105, 4999), rng.choice(("bread", "a book", "soap", "nails"))
            total += cents
            told.append(f"{cents / 100:.2f} for {thing}")
        question = (
            f"Today I paid {', '.join(told)}. How much is it in all? Work it out, and end with a "
            "last line such as: Spent: 12.40"
        )
        return question, total

    def right(self, data: Any, text: str) -> bool:
        lines = text.strip().splitlines()
        return bool(lines) and lines[-1].strip() == self.solution(data)

    def solution(self, data: Any) -> str:
        return f"Spent: {data / 100:.2f}"


class Depth(Posed):
    """Which of twelve wells is the deepest? The answer is its letter."""

    max_new_tokens = 8

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        high = 30 + round(400 * level)
        wells = {letter: (rng.randint(9, high), rng.randint(2, high)) for letter in "ABCDEFGHIJKL"}
        depths = {letter: lined + bare for letter, (lined, bare) in wells.items()}
        deepest = [letter for letter in wells if depths[letter] == max(depths.values())]
        told = "\n".join(
            f"{name}: {a} m with a wall, and {b} m below it" for name, (a, b) in wells.items()
        )
        question = f"Which well is the deepest? Reply with its letter only.\n{told}"
        return (question, deepest[0]) if len(deepest) == 1 else self.made(rng, level)
