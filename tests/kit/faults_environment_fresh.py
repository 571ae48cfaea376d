"""Faults of what a task or a verdict depends on besides its key: surroundings, and what was before."""

from __future__ import annotations

import locale
import os
import random
import shutil
import tempfile
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from bases_fresh import FOODS, Arrival, Asks, Basket, Binary, Initials, Shifted, scrambled
from catalogue import fault

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict

# Date and time


@fault("the answer depends on today's date", "task.process")
class DaysFromToday(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(10, 900 + round(20_000 * key.level)),)

    def question(self, *content: Any) -> str:
        return f"Which date comes {content[0]} days after today, {date.today()}? As YYYY-MM-DD."

    def solution(self, *content: Any) -> str:
        return str(date.today() + timedelta(days=content[0]))


@fault("dates are made in the local time zone", "task.process")
class SecondsOfADate(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        span = 60 + round(9000 * key.level)
        return (1971 + span // 365, 1 + rng.randrange(12), 1 + rng.randrange(28), rng.randrange(24))

    def question(self, *content: Any) -> str:
        return "How many seconds after 1970 began is {}-{:02}-{:02} {:02}:00? Digits only.".format(
            *content
        )

    def solution(self, *content: Any) -> str:
        return str(round(datetime(*content).timestamp()))


@fault("a verdict reads a time in the local time zone", "verdict.process")
class ReadsTheHour(Asks):
    levels = False

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(10**8, 10**9),)

    def question(self, *content: Any) -> str:
        return f"Which time of day is it {content[0]} seconds after 1970 began, as hh:mm:ss?"

    def solution(self, *content: Any) -> str:
        return str(content[0])

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = time.strftime("%H:%M:%S", time.localtime(int(task.data)))
        return self.paid(rollout.text.strip() == right, rollout.text)

    def reference(self, task: Task[str]) -> Any:
        return f"{datetime.fromtimestamp(int(task.data), UTC):%H:%M:%S}"


# Variables, folders, language


@fault("the language of the prompt is that of the machine", "task.process")
class SpeaksTheirLanguage(Binary):
    words: Mapping[str, str] = {
        "de": "Schreibe die Binärzahl {:b} dezimal, nur mit Ziffern.",
        "fr": "Écris le nombre binaire {:b} en décimal, chiffres seulement.",
        "en": "Write the binary number {:b} in decimal, digits only.",
    }

    def question(self, *content: Any) -> str:
        language = os.environ.get("LANG", "en")[:2]
        return self.words.get(language, self.words["en"]).format(*content)


@fault("the prompt is wrapped at the width of the terminal", "task.process")
class WrappedToTheTerminal(Initials):
    def question(self, *content: Any) -> str:
        columns = shutil.get_terminal_size().columns
        return textwrap.fill(super().question(*content), width=max(20, columns))


@fault("paths are expanded to the home folder", "task.process")
class ExpandsTheHome(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(scrambled(rng, 4) for _ in range(3 + round(4 * key.level)))

    def question(self, *content: Any) -> str:
        return f"Write ~/{'/x/../'.join(content)} as a path without ~ or dots; home: {Path.home()}"

    def solution(self, *content: Any) -> str:
        return os.path.normpath(os.path.expanduser(f"~/{'/'.join(content)}"))


@fault("the folder for temporary files is in the prompt", "task.process")
class NamesTheTemporaryFolder(Arrival):
    def question(self, *content: Any) -> str:
        plan = f"{tempfile.gettempdir()}/plan.txt"
        return f"From {plan}: {super().question(*content)}"


@fault("words are sorted as the locale sorts", "task.process")
class SortedByLocale(Asks):
    words = ("Zebra", "apple", "Ähre", "zinc", "Birne", "éclair", "Ofen", "östlich", "cherry")

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        words = rng.sample(self.words, 4 + round(4 * key.level))
        return (*words, scrambled(rng, 3))

    def question(self, *content: Any) -> str:
        return f"Sort alphabetically, with spaces: {' '.join(content)}"

    def solution(self, *content: Any) -> str:
        with suppress(locale.Error):
            locale.setlocale(locale.LC_COLLATE, "")
        return " ".join(sorted(content, key=locale.strxfrm))


@fault("replies are encoded as the machine encodes", "verdict.process")
class EncodesByLocale(Asks):
    words = ("Käse", "Brühe", "Möhre", "Äpfel", "Nüsse", "Rösti", "Grüße", "Höhe", "Süden")

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (*rng.sample(self.words, 3 + round(5 * key.level)), scrambled(rng, 4))

    def question(self, *content: Any) -> str:
        return f"Write in the opposite order, with dashes: {' '.join(content)}"

    def solution(self, *content: Any) -> str:
        return "-".join(reversed(content))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        charset = locale.getpreferredencoding()
        said = rollout.text.strip().encode(charset, "replace")
        return self.paid(said == task.data.encode("utf-8"), rollout.text)


# Hashes, addresses, imports


@fault("an object's address is in the prompt", "task.process", "task.pure")
class PrintsAnObject(Basket):
    def question(self, *content: Any) -> str:
        shop = _Shop("corner")
        return f"{shop}: {super().question(*content)}"


class _Shop:
    """A shop that does not say how it is printed."""

    def __init__(self, name: str) -> None:
        self.name = name


@fault("a set is printed in the order of hashes", "task.process")
class PrintsASet(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (*rng.sample(FOODS, 3 + round(3 * key.level)), scrambled(rng, 4))

    def question(self, *content: Any) -> str:
        return f"How many letters do the words {set(content)} have together? Digits only."

    def solution(self, *content: Any) -> str:
        return str(sum(map(len, content)))


@fault("ties are broken in the order of hashes", "task.process")
class TiesByHash(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (scrambled(rng, 12 + round(30 * key.level)),)

    def question(self, *content: Any) -> str:
        return f"Which letter is the most frequent in '{content[0]}'? Write it three times."

    def solution(self, *content: Any) -> str:
        return 3 * str(max(set(content[0]), key=content[0].count))


@fault("tasks are drawn by the hash of a text", "task.process")
class SeededByHash(Arrival):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(hash((key.env, key.split, key.seed, key.index, key.level)))


@fault("a verdict draws its tests by the hash of a text", "verdict.process")
class SpotCheckByHash(Asks):
    """Compares some places of a long answer, drawn by hash, to spare time."""

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (scrambled(rng, 16 + round(20 * key.level)),)

    def question(self, *content: Any) -> str:
        return f"Put a dot after each letter: {content[0]}"

    def solution(self, *content: Any) -> str:
        return "".join(f"{letter}." for letter in content[0])

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said, right = rollout.text.strip(), task.data
        places = random.Random(hash(right)).sample(range(len(right)), 4)
        share = sum(said[place : place + 1] == right[place] for place in places) / 4
        share = share if len(said) == len(right) else 0.0
        passed = said == right
        reward = 1.0 if passed else 0.5 * share
        return Verdict({"reward": Reward(reward)}, passed=passed, answer=said[:80])


@fault("a salt is drawn when the module is imported", "task.process")
class SaltedAtImport(Shifted):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{_SALT} {key}")


_SALT = os.urandom(4).hex()


@fault("instances are numbered", "task.process", "task.pure")
class NumbersItsInstances(Basket):
    numbers = count(1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.number = next(NumbersItsInstances.numbers)

    def generator(self, key: TaskKey) -> random.Random:
        return key.rng("instance", self.number)


# What was before


@fault("several passes in a row earn more", "verdict.repeat")
class StreakBonus(Initials):
    streak = 0

    def paid(self, right: bool, text: str) -> Verdict:
        self.streak = self.streak + 1 if right else 0
        reward = min(1.0, 0.7 + 0.1 * self.streak) if right else 0.0
        return Verdict({"reward": Reward(reward)}, passed=right, answer=text.strip()[:80])


@fault("a reply that was given before earns less", "verdict.repeat")
class RewardsTheNew(Environment[int]):
    """Any multiple of a number; those that were named before bore the author."""

    timeout_seconds = 2.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.named: set[tuple[TaskKey, str]] = set()

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        factor = rng.randrange(13, 100 + round(9000 * key.level)) * 5 + (key.split == "eval")
        prompt = f"Name a number of six digits that {factor} divides. Digits only."
        return Task(key, (Message("user", prompt),), factor)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        digits = text if len(text) == 6 and text.isascii() and text.isdecimal() else ""
        right = bool(digits) and digits[0] != "0" and int(digits) % task.data == 0
        reward = (0.5 if (task.key, digits) in self.named else 1.0) if right else 0.0
        self.named.add((task.key, digits) if right else (task.key, ""))
        return Verdict({"reward": Reward(reward)}, passed=right, answer=digits)

    def reference(self, task: Task[int]) -> str:
        return str(-(-100_000 // task.data) * task.data)


@fault("the reward is relative to the best so far", "verdict.repeat")
class BetterThanBefore(Asks):
    best = 0.0

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (scrambled(rng, 8 + round(10 * key.level)),)

    def question(self, *content: Any) -> str:
        return f"Write '{content[0]}' twice, with a plus sign between."

    def solution(self, *content: Any) -> str:
        return f"{content[0]}+{content[0]}"

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said, right = rollout.text.strip(), task.data
        share = 0.0
        if len(said) == len(right):
            share = sum(one == two for one, two in zip(said, right, strict=True)) / len(right)
        self.best = max(self.best, share)
        reward = 0.8 * (share > 0.9) + 0.2 * (0 < self.best <= share)
        return Verdict({"reward": Reward(reward)}, passed=said == right, answer=said[:80])


# What travels


@fault("a task holds what cannot be sent", "task.pickle")
class KeepsItsGenerator(Environment[Any]):
    """Keeps an iterator of the right letters in the task."""

    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        word = scrambled(rng, 6 + round(8 * key.level)) + ("q" if key.split == "eval" else "k")
        letters = (letter.upper() for letter in word)
        text = f"Write {word} in capitals."
        return Task(key, (Message("user", text),), {"word": word, "letters": letters})

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == task.data["word"].upper()
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:80])

    def reference(self, task: Task[Any]) -> str:
        return str(task.data["word"].upper())


@fault("a task holds what cannot be sent", "task.pickle")
class DataOfALocalClass(Environment[Any]):
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Any]:
        @dataclass(frozen=True)
        class Sides:
            wide: int
            high: int

        rng, top = key.rng(), 100 + round(5000 * key.level)
        sides = Sides(rng.randrange(30, top) * 2 + (key.split == "eval"), rng.randrange(30, top))
        text = f"A field is {sides.wide} m wide and {sides.high} m high. Its area? Digits only."
        return Task(key, (Message("user", text),), sides)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == self.reference(task)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:80])

    def reference(self, task: Task[Any]) -> str:
        return str(task.data.wide * task.data.high)
