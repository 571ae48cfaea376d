"""Sound tasks whose answers have to be written exactly: verbs, colours, formulas, amounts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from random import Random
from typing import ClassVar
from urllib.parse import quote

from bases_d_fresh8 import WHITE, of_split, whole, words

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_json


class ExactReply(Environment[str]):
    """Compares the whole reply with a text, up to white space around it."""

    def right(self, task: Task[str], text: str) -> bool:
        """Return whether a reply is the right one."""
        return len(text) <= 2000 and text.strip(WHITE) == task.data

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = self.right(task, rollout.text)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[str]) -> str:
        return task.data


STEMS = words(
    "habl trabaj estudi viaj llam cant bail compr mir escuch prepar cocin lav limpi llev "
    "tom us visit termin gan salt nad dibuj pint mand contest pregunt dej entr regres camin "
    "descans cort mont plant firm grit cuid am bes olvid present celebr "
    "alquil anunci arregl ayud baj cambi cen charl decor disfrut dud ech fum grab guard lament "
    "levant mejor mezcl necesit ocup orden patin qued reserv respet salud separ tard tir trat"
)
FORMS = {
    "pretérito, yo": "é",
    "pretérito, él": "ó",
    "futuro, yo": "aré",
    "futuro, tú": "arás",
    "futuro, él": "ará",
    "futuro, ellos": "arán",
    "imperfecto, nosotros": "ábamos",
    "condicional, ella": "aría",
    "condicional, nosotros": "aríamos",
}


class SpanishVerb(ExactReply):
    """Asks for a form of a regular Spanish verb; each form has an accent."""

    levels = False
    max_new_tokens = 12

    def task(self, key: TaskKey) -> Task[str]:
        def make(rng: Random) -> tuple[str, str]:
            return rng.choice(STEMS), rng.choice(sorted(FORMS))

        stem, form = of_split(key, make, lambda drawn: f"{drawn[0]}ar {drawn[1]}")
        question = (
            f"Conjugate «{stem}ar»: {form}. Reply with the one word, in lower case and with its "
            "accent: hablo and habló are different words."
        )
        return Task(key, (Message("user", question),), stem + FORMS[form])


class MixedPaints(ExactReply):
    """Asks for the mean of some colours, as six hexadecimal digits."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[str]:
        number = 2 + round(2 * key.level)

        def make(rng: Random) -> list[tuple[int, int, int]]:
            return [
                (rng.randrange(256), rng.randrange(256), rng.randrange(256)) for _ in range(number)
            ]

        paints = of_split(key, make, lambda paints: " ".join(map(self.code, paints)))
        mean = tuple(sum(channel) // number for channel in zip(*paints, strict=True))
        question = (
            f"Mix equal parts of {', '.join(map(self.code, paints))}: each channel is the mean, "
            "rounded down. Reply with the colour in the same form, in capital letters."
        )
        return Task(key, (Message("user", question),), self.code(mean))

    def code(self, channels: Sequence[int]) -> str:
        """Return a colour as #RRGGBB."""
        return "#" + "".join(f"{channel:02X}" for channel in channels)


class LispOfAFormula(Environment[str]):
    """Asks for an arithmetic formula in the prefix form of Lisp; spacing does not matter."""

    max_new_tokens = 80
    longest: ClassVar[int] = 20_000

    def task(self, key: TaskKey) -> Task[str]:
        leaves = 4 + round(3 * key.level)

        def make(rng: Random) -> tuple[str, str]:
            return self.tree(rng, rng.sample("abcdefghkmnpqrstuvwxyz", leaves))

        infix, prefix = of_split(key, make, lambda forms: f"{forms[0]} {forms[1]}")
        question = (
            f"Write {infix} in prefix form, as Lisp has it: x - (y / z) is (- x (/ y z)). Reply "
            "with the form alone."
        )
        return Task(key, (Message("user", question),), prefix)

    def tree(self, rng: Random, names: Sequence[str]) -> tuple[str, str]:
        """Return a random formula over names, in infix and in prefix form."""
        if len(names) == 1:
            return names[0], names[0]
        cut = rng.randint(1, len(names) - 1)
        parts = (self.tree(rng, names[:cut]), self.tree(rng, names[cut:]))
        sign = rng.choice("+-*/")
        left, right = (f"({i})" if " " in i else i for i, _ in parts)
        return f"{left} {sign} {right}", f"({sign} {parts[0][1]} {parts[1][1]})"

    def tokens(self, text: str) -> list[str]:
        """Return the brackets, signs and names of a text."""
        return re.findall(r"[()]|[^() \t\r\n]+", text)

    def same(self, text: str, form: str) -> bool:
        """Return whether a reply is the form."""
        return self.tokens(text) == self.tokens(form)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text
        right = len(text) <= self.longest and self.same(text, task.data)
        return Verdict({"reward": Reward(right)}, passed=right, answer=text[:100])

    def reference(self, task: Task[str]) -> str:
        return task.data


TITLES = words(
    "café naïve garçon Zürich piñata smörgås crème Málaga søster háček façade jalapeño Łódź "
    "Köln élan über Ångström señor déjà São fjörd Göteborg maté Noël"
)
JOINTS = (" & ", " + ", "/", "? ", ", ", "=")


class EscapedTitle(ExactReply):
    """Asks for the text that a percent-encoded part of a link stands for."""

    max_new_tokens = 40

    def task(self, key: TaskKey) -> Task[str]:
        number = 2 + round(2 * key.level)

        def make(rng: Random) -> str:
            first, *others = rng.sample(TITLES, number)
            return first + "".join(rng.choice(JOINTS) + word for word in others)

        title = of_split(key, make, quote)
        question = (
            f"Which text does this part of a link stand for? {quote(title, safe='')}\n"
            "Reply with the text alone."
        )
        return Task(key, (Message("user", question),), title)


class PowerOfAResistor(Environment[float]):
    """Asks for the power at a resistor as JSON; one per cent off is near enough."""

    max_new_tokens = 24
    tolerance = 0.01

    def task(self, key: TaskKey) -> Task[float]:
        most = 30 + round(200 * key.level)

        def make(rng: Random) -> tuple[int, int]:
            while True:
                volts, ohms = rng.randint(5, most), rng.randint(3, 99)
                watts = volts**2 / ohms
                if watts > 1 and min(abs(watts / n - 1) for n in (volts, ohms)) > 0.1:
                    return volts, ohms

        volts, ohms = of_split(key, make, lambda drawn: f"{drawn[0]}V {drawn[1]}R")
        question = (
            f"A resistor of {ohms} ohm is connected to {volts} V. Which power does it take up? "
            'Reply with JSON, as in {"watts": 0.5}; 1 % more or less is accepted.'
        )
        return Task(key, (Message("user", question),), volts**2 / ohms)

    def right(self, text: str, watts: float) -> bool:
        """Return whether a reply states the power."""
        found = parse_json(text, max_chars=200, max_depth=2, max_digits=12)
        value = found.value if found is not None else None
        stated = value.get("watts") if isinstance(value, dict) and len(value) == 1 else None
        if isinstance(stated, bool) or not isinstance(stated, int | float):
            return False
        return abs(stated - watts) <= 0.01 * watts

    def verify(self, task: Task[float], rollout: Rollout) -> Verdict:
        right = self.right(rollout.text, task.data)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[float]) -> str:
        return f'{{"watts": {task.data:.3f}}}'


class ShareOfTheBill(Environment[tuple[int, int, int]]):
    """Asks what each guest pays of a bill with a tip, to the cent."""

    max_new_tokens = 12

    def task(self, key: TaskKey) -> Task[tuple[int, int, int]]:
        most = 9000 + round(90_000 * key.level)

        def make(rng: Random) -> tuple[int, int, int]:
            return (
                rng.randint(2000, most),
                rng.choice((10, 15, 20, 25)),
                rng.choice((2, 3, 4, 5, 6, 8)),
            )

        cents, tip, guests = of_split(key, make, lambda bill: f"{bill[0]}c {bill[1]}% {bill[2]}g")
        question = (
            f"{guests} guests share a bill of {cents // 100}.{cents % 100:02} euros and add a tip "
            f"of {tip} %. What does each pay? Round to the cent, half a cent up. Reply with the "
            "amount alone, as in 7.50."
        )
        return Task(key, (Message("user", question),), (cents, tip, guests))

    def share(self, bill: tuple[int, int, int]) -> Decimal:
        """Return what each guest pays."""
        cents, tip, guests = bill
        exact = Decimal(cents * (100 + tip)) / Decimal(100 * guests)
        return exact.quantize(Decimal(1), ROUND_HALF_UP) / 100

    def right(self, bill: tuple[int, int, int], text: str) -> bool:
        """Return whether a reply is the amount, with two decimals."""
        return len(text) <= 100 and text.strip(WHITE) == f"{self.share(bill):.2f}"

    def verify(self, task: Task[tuple[int, int, int]], rollout: Rollout) -> Verdict:
        right = self.right(task.data, rollout.text)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[tuple[int, int, int]]) -> str:
        return f"{self.share(task.data):.2f}"


class BellsInRounds(Environment[tuple[int, ...]]):
    """Asks after how many leads bells that change their places are back in order."""

    max_new_tokens = 8

    def task(self, key: TaskKey) -> Task[tuple[int, ...]]:
        bells = 11 + round(2 * key.level)

        def make(rng: Random) -> tuple[int, ...]:
            while True:
                places = tuple(rng.sample(range(bells), bells))
                if self.order(places) > 13:
                    return places

        places = of_split(key, make, lambda places: "p".join(map(str, places)))
        moves = ", ".join(f"{a + 1} to {b + 1}" for a, b in enumerate(places))
        question = (
            f"{bells} bells ring in rounds. In each lead the bell at a place moves: {moves}. "
            "After how many leads are all of them back in rounds for the first time? Reply with "
            "the number alone."
        )
        return Task(key, (Message("user", question),), places)

    def order(self, places: Sequence[int]) -> int:
        """Return after how many leads all bells are back."""
        rounds = tuple(range(len(places)))
        row, leads = tuple(places), 1
        while row != rounds:
            row, leads = tuple(places[bell] for bell in row), leads + 1
        return leads

    def right(self, places: Sequence[int], text: str) -> bool:
        """Return whether a reply is the number of leads."""
        return whole(text, 18) == self.order(places)

    def verify(self, task: Task[tuple[int, ...]], rollout: Rollout) -> Verdict:
        right = self.right(task.data, rollout.text)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[tuple[int, ...]]) -> str:
        return str(self.order(task.data))


class WagonsOfASiding(ExactReply):
    """Asks in which order wagons leave a siding that is closed at one end."""

    max_new_tokens = 40

    def task(self, key: TaskKey) -> Task[str]:
        number = 4 + round(4 * key.level)

        def make(rng: Random) -> tuple[list[str], str, list[str]]:
            while True:
                wagons = [str(rng.randint(1, 120)) for _ in range(number)]
                steps, out = self.shunt(rng, wagons)
                if out not in (wagons, wagons[::-1]) and len(set(wagons)) == number:
                    return wagons, steps, out

        wagons, steps, out = of_split(key, make, lambda drawn: f"{drawn[0]} {drawn[1]}")
        question = (
            f"Wagons {', '.join(wagons)} wait in this order at a siding with one open end. The "
            f"shunter does {steps} (I: the next wagon goes in; O: the last one in comes out). In "
            "which order do they come out? Reply with the numbers and a space between them."
        )
        return Task(key, (Message("user", question),), " ".join(out))

    def shunt(self, rng: Random, wagons: Sequence[str]) -> tuple[str, list[str]]:
        """Return random steps that empty the siding, and the order of the wagons after them."""
        steps, inside, out, waiting = "", [], [], list(wagons)
        while waiting or inside:
            if waiting and (not inside or rng.random() < 0.55):
                steps, inside = steps + "I", [*inside, waiting.pop(0)]
            else:
                steps, out = steps + "O", [*out, inside.pop()]
        return steps, out


class SyringeOfADrug(ExactReply):
    """Asks which volume of an infusion holds a dose; the unit is part of the answer."""

    max_new_tokens = 12

    def task(self, key: TaskKey) -> Task[str]:
        most = 200 + round(2000 * key.level)

        def make(rng: Random) -> tuple[int, int, int]:
            each, times = rng.choice((2, 4, 5, 8, 12, 15, 20, 25)), rng.choice((2, 5, 10))
            return each, times, rng.randint(11, most)

        each, times, tenths = of_split(key, make, lambda d: f"{d[0]}mg {d[1]}x {d[2]}t")
        dose = Decimal(each * tenths) / 10
        question = (
            f"An ampoule holds {each * times} mg in {times} ml. A patient needs {dose} mg. Which "
            "volume is that? Reply with number and unit, in ml with one decimal, as in 0.3 ml."
        )
        return Task(key, (Message("user", question),), f"{Decimal(tenths) / 10:.1f} ml")

    def cheats(self, task: Task[str]) -> Sequence[str]:
        amount = task.data.removesuffix(" ml")
        return amount, f"{amount} mg", f"{amount} l", f"{amount} ml or {amount} l", "ml"
