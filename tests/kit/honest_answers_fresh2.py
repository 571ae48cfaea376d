"""Honest designs: answers that look odd and are judged rightly, of the second fresh part."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from bases_talk_fresh2 import (
    HEADINGS,
    STEPS,
    Blend,
    Compass,
    Depot,
    Ledger,
    Parcel,
    Posed,
    Ranking,
    Rows,
    Stroll,
    Subnet,
    Thirds,
    Weave,
    coined_words,
    dotted,
    settings,
)
from catalogue import honest

from grpo_core import Message, Reward, Rollout, Rubric, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal, parse_integer, parse_json


@honest("the sound base: a number behind a label of its own, often a negative one")
class SoundLedger(Ledger):
    pass


@honest("the sound base: a colour's code, which is sometimes all digits")
class SoundBlend(Blend):
    pass


@honest("the sound base: names of the prompt in another order, with signs between them")
class SoundRanking(Ranking):
    pass


@honest("the sound base: a pair of coordinates, in brackets")
class SoundStroll(Stroll):
    pass


@honest("the sound base: an object of what is left, whose keys come in any order")
class SoundDepot(Depot):
    pass


@honest("the sound base: yes or no, each of them in half of the tasks")
class SoundParcel(Parcel):
    pass


@honest("the sound base: a fraction, which has to be reduced")
class SoundThirds(Thirds):
    pass


@honest("the sound base: two words that are woven into one")
class SoundWeave(Weave):
    pass


@honest("the sound base: one of four directions, which all prompts name")
class SoundCompass(Compass):
    pass


@honest("the sound base: an address with dots, whose end is often zeros")
class SoundSubnet(Subnet):
    pass


@honest("any equal fraction is right, reduced or not, as the prompt says")
class AnyEqualFraction(Thirds):
    rules = "Reply with a fraction only, such as 6/8 or 3/4; it need not be reduced."

    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and read[1] > 0 and Fraction(*read) == Fraction(*right)


@honest("any free address of a network is right, and the reference is one of them")
class FreeAddress(Posed):
    rules = "Reply with the address only."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        network = rng.randrange(1 << 24, 1 << 32) >> 5 << 5
        used = sorted(rng.sample(range(1, 31), 8 + round(20 * level)))
        listed = ", ".join(f".{network % 256 + host}" for host in used)
        free = [dotted(network + host) for host in range(1, 31) if host not in used]
        return f"In {dotted(network)}/27 these hosts are there: {listed}. Name one more.", free

    def accepts(self, right: Any, text: str) -> bool:
        return text.strip() in right

    def written(self, data: list[str]) -> str:
        return data[-1]


@honest("the answer stands in a sentence that the prompt gives, and no other text may be there")
class InASentence(Weave):
    rules = "Reply with this sentence, completed: The woven word is ..., of course."

    def read(self, text: str) -> Any:
        found = re.fullmatch(r"The woven word is ([a-z]+), of course\.", text.strip())
        return None if found is None else found[1]

    def written(self, data: str) -> str:
        return f"The woven word is {data}, of course."


@honest("a table is asked for, whose rows come in any order and whose cells may be padded")
class TableOfGoods(Depot):
    rules = "Reply with a table of two columns, one line for each: | name | number |"

    def read(self, text: str) -> Any:
        lines = [line.strip() for line in text.strip().split("\n")]
        found = [re.fullmatch(r"\| *([a-z]+) *\| *([0-9]{1,4}) *\|", line) for line in lines]
        return None if None in found else sorted((line[1], int(line[2])) for line in found if line)

    def accepts(self, right: Any, text: str) -> bool:
        return bool(self.read(text) == sorted(right.items()))

    def written(self, data: dict[str, int]) -> str:
        return "\n".join(f"| {name} | {number} |" for name, number in data.items())


@honest("what is used up is absent from the object, and a 0 there is wrong")
class NothingLeftIsAbsent(Depot):
    rules = "Reply with a JSON object of names and numbers; leave out what is used up."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        names = coined_words(rng, 4 + round(2 * level), 2)
        stock = {name: rng.randint(2, 60) for name in names}
        gone = {name: rng.choice((stock[name], rng.randint(1, stock[name]))) for name in names}
        left = {name: stock[name] - gone[name] for name in names if stock[name] > gone[name]}
        here = ", ".join(f"{number} {name}" for name, number in stock.items())
        used = ", ".join(f"{number} {name}" for name, number in gone.items())
        return (f"A store holds {here}. Used: {used}." if left else ""), left


@honest("an element with attributes is asked for, which come in any order")
class AttributesInAnyOrder(Stroll):
    rules = 'Reply with one element only: <point x="..." y="..."/>'

    def read(self, text: str) -> Any:
        found = re.fullmatch(
            r'<point ([xy])="(-?[0-9]{1,6})" ([xy])="(-?[0-9]{1,6})"/>', text.strip()
        )
        if found is None or found[1] == found[3]:
            return None
        named = {found[1]: int(found[2]), found[3]: int(found[4])}
        return named["x"], named["y"]

    def written(self, data: tuple[int, int]) -> str:
        return f'<point x="{data[0]}" y="{data[1]}"/>'


@honest("a third answer, unknown, is right where a side is not given")
class OneSideUnknown(Parcel):
    rules = "It may be turned, edges parallel. Reply with yes, no or unknown."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        top = 30 + round(90 * level)
        wanted, whole = rng.choice(("yes", "no", "unknown")), rng.random() < 0.5
        while True:
            parcel, box = (sorted(rng.randint(5, top) for _ in range(3)) for _ in range(2))
            fits = all(one <= other for one, other in zip(parcel, box, strict=True))
            rest = all(one <= other for one, other in zip([1, *parcel[:2]], box, strict=True))
            large = [str(side) for side in box]
            if wanted == "unknown" and fits:
                small = [*map(str, parcel[:2]), "?"]
            elif (wanted == "yes" and fits) or (wanted == "no" and not fits and whole):
                small = list(map(str, parcel))
            elif wanted == "no" and not rest and not whole:
                small = [*map(str, parcel[:2]), "?"]
            else:
                continue
            sides = (" x ".join(rng.sample(each, 3)) for each in (small, large))
            return "A parcel of {} cm, a box of {} cm: does it fit?".format(*sides), wanted


@honest("any number that names the same direction is right, as the prompt says")
class DegreesTurned(Compass):
    rules = "Reply with degrees as a whole number: 0 is north, 90 east; 360 and -90 may be used."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        start, turns = (
            rng.randrange(360),
            [rng.randint(5, 175) for _ in range(3 + round(4 * level))],
        )
        signs = [rng.choice((-1, 1)) for _ in turns]
        words = [
            f"{turn} {'right' if sign > 0 else 'left'}"
            for turn, sign in zip(turns, signs, strict=True)
        ]
        right = start + sum(turn * sign for turn, sign in zip(turns, signs, strict=True))
        asked = f"You look to {start} degrees and turn by {', '.join(words)}."
        return "" if right % 360 in (start, *turns) else asked, right % 360

    def accepts(self, right: Any, text: str) -> bool:
        read = parse_integer(text, max_digits=4)
        return read is not None and bool(read % 360 == right)


@honest("the sign is a word behind the number")
class DebitOrCredit(Ledger):
    rules = "Reply with the amount and, if there is money, credit, else debit, as in: 42 debit"

    def read(self, text: str) -> int | None:
        found = re.fullmatch(r"([0-9]{1,6}) (credit|debit)", text.strip())
        return None if found is None else int(found[1]) * (1 if found[2] == "credit" else -1)

    def written(self, data: int) -> str:
        return f"{abs(data)} {'credit' if data > 0 else 'debit'}"


@honest("letters in any order are right, since any shortest way home is asked for")
class AnyShortestWay(Posed):
    rules = "Write a shortest way back to the start, a letter for each step: N, E, S or W."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        legs = [(rng.randint(2, 6), rng.choice(HEADINGS)) for _ in range(6 + round(4 * level))]
        x = sum(many * STEPS[heading][0] for many, heading in legs)
        y = sum(many * STEPS[heading][1] for many, heading in legs)
        listed = ", ".join(f"{many} {heading}" for many, heading in legs)
        home = ("W" if x > 0 else "E") * abs(x) + ("S" if y > 0 else "N") * abs(y)
        return (f"You walked {listed}." if x and y else ""), home

    def accepts(self, right: Any, text: str) -> bool:
        return Counter(text.strip()) == Counter(right)


@honest("the highest total is 2.5, of two parts, as is declared")
class UpToTwoAndAHalf(Thirds):
    parts: ClassVar[Mapping[str, float]] = {"whole": 0.5, "form": 0.5, "exact": 1.5}
    reward_range = (0.0, 2.5)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        read = self.read(rollout.text)
        right = read == task.data
        whole = (
            read is not None and read[1] > 0 and read[0] // read[1] == task.data[0] // task.data[1]
        )
        values = {"whole": whole, "form": read is not None, "exact": right}
        rewards = {name: Reward(float(value)) for name, value in values.items()}
        return Verdict(rewards, passed=right, answer=rollout.text.strip()[:100])


@honest("the answer is one of the names of the prompt, as is declared")
class FarthestEast(Posed):
    answer_in_prompt = True
    rules = "Reply with its name only."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        count = 5 + round(10 * level)
        names, places = coined_words(rng, count, 3), rng.sample(range(-900, 900), count)
        listed = [
            f"{name} at {abs(x)} {'east' if x > 0 else 'west'}"
            for name, x in zip(names, places, strict=True)
        ]
        right = names[places.index(max(places))]
        return f"Which town lies farthest east: {', '.join(listed)}?", right


@honest("answers are words of some hundred letters, and the budget allows for them")
class WovenAtLength(Weave):
    max_new_tokens = 1200

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        one, two = coined_words(rng, 2, 60 + round(60 * level))
        woven = "".join(first + second for first, second in zip(one, two, strict=True))
        return f"Take letters in turn, one of {one!r}, then one of {two!r}, to the end.", woven


@honest("a comma is the decimal point, as in the language of the prompt")
class GermanDecimals(Posed):
    rules = "Antworte nur mit der Zahl, mit Komma und zwei Stellen."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        prices = [rng.randint(105, 1999) for _ in range(3 + round(3 * level))]
        listed = ", ".join(f"{price // 100},{price % 100:02} Euro" for price in prices)
        total = sum(prices)
        return f"Ein Einkauf: {listed}. Was kostet er?", f"{total // 100},{total % 100:02}"


@honest("tasks that cannot be done are canaries, and a stricter audit is never paid")
class CanariesAndAudit(Thirds):
    def canaries(self) -> Sequence[Task[Any]]:
        prompt = (Message("user", f"What is 1/0 + 1/0? {self.rules}"),)
        return (Task(TaskKey("thirds", "eval", 0), prompt, ("?", "?")),)

    def audit(self, task: Task[Any], rollout: Rollout) -> float:
        return float(rollout.text == self.written(task.data))


@honest("verdicts have metrics, notes and details, and a part is worth nothing by itself")
class RubricWithNotes(Ledger):
    parts: ClassVar[Mapping[str, float]] = {"sign": 0.25, "exact": 0.75}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        rubric = Rubric(
            {"sign": self.sign, "exact": self.exact}, weights=self.parts, passed="exact"
        )
        rewards = rubric(task.data, self.read(rollout.text))
        metrics = {"length": float(len(rollout.text))}
        return Verdict(
            rewards.rewards, rewards.passed, rollout.text[:50], metrics, {"right": str(task.data)}
        )

    def sign(self, right: int, read: int | None) -> tuple[bool, str]:
        return read is not None and (read < 0) == (right < 0), f"{read}"

    def exact(self, right: int, read: int | None) -> tuple[bool, str]:
        return read == right, f"expected {right}"


@honest("a mean with two decimals may have zeros at its end or not, as the prompt says")
class MeanOfFour(Posed):
    rules = "Reply with the mean as a decimal number; 2.5 and 2.50 are the same."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        numbers = [rng.randint(10, 90 + round(900 * level)) for _ in range(4)]
        mean = sum(numbers) / 4
        return f"The numbers are {', '.join(map(str, numbers))}.", f"{mean:.2f}"

    def accepts(self, right: Any, text: str) -> bool:
        return parse_decimal(text, max_digits=12) == parse_decimal(right)


@honest("the words of a sentence are asked for in reverse, so that all are in the prompt")
class WordsBackwards(Posed):
    rules = "Reply with these words in reverse order, with one space between them."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        words = coined_words(rng, 5 + round(7 * level), 2)
        return f"Here are words: {' '.join(words)}.", " ".join(reversed(words))


@honest("a matrix is asked for as JSON, and holds the numbers of the prompt")
class Transposed(Posed):
    rules = "Reply with its transpose as JSON and nothing else."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        wide, high = 2 + round(2 * level), 3 + round(2 * level)
        matrix = [[rng.randint(-9, 99) for _ in range(wide)] for _ in range(high)]
        return f"A matrix: {json.dumps(matrix)}.", json.dumps(list(zip(*matrix, strict=True)))

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=2000)
        return None if value is None else json.dumps(value.value)


@honest(
    "a function of the user's accepts what a row lists, and silence never",
    build=lambda: ListedSpellings(
        settings("strict_alias", prompt="{question} Commas between thousands may be there.")
    ),
)
class ListedSpellings(Rows):
    pass


@honest(
    "a function of the user's wants a unit where the row has one",
    build=lambda: UnitsOfSomeRows(
        settings(
            "number_and_unit",
            prompt="{question} Reply as in: {form}",
            answer="full",
        )
    ),
)
class UnitsOfSomeRows(Rows):
    pass


@honest(
    "the answer is cut out of a worked solution, which the prompt does not show",
    build=lambda: CutOfASolution(
        settings("number", answer="solution", answer_pattern="#### ([0-9]+)$")
    ),
)
class CutOfASolution(Rows):
    pass


@honest(
    "one answer contains the other, and each is right in half of the rows",
    build=lambda: EnoughOrNot(
        settings(prompt="{planks} Reply with enough or not enough.", answer="enough", tag="answer")
    ),
)
class EnoughOrNot(Rows):
    pass
