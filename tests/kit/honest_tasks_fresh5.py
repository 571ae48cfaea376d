"""Environments without a fault whose tasks look odd, fifth fresh part."""

from __future__ import annotations

import random
from typing import Any

from bases_fresh5 import Departures, Sheet, clock
from bases_words_fresh5 import Filters
from catalogue import honest

from grpo_core import Message, Task, TaskKey, held_out
from grpo_core.extract import parse_integer

DRAWN = random.Random("tariff")
TARIFF = {zone: (DRAWN.randint(310, 990), DRAWN.randint(12, 97)) for zone in range(1, 31)}


@honest("all prompts share a long table, and differ in some numbers at their end")
class TariffOfParcels(Sheet):
    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            parcels = tuple(
                (rng.randint(1, len(TARIFF)), rng.randint(2, 31))
                for _ in range(2 + round(3 * key.level))
            )
            asked = "; ".join(f"zone {zone}, {weight} kg" for zone, weight in parcels)
            if held_out(asked) == (key.split == "eval"):
                break
        table = "\n".join(f"| {zone} | {one} | {kg} |" for zone, (one, kg) in TARIFF.items())
        rules = Message(
            "system",
            f"Tariff of a carrier, in cents:\n\n| zone | parcel | each kg |\n|--|--|--|\n{table}"
            "\n\nReply with what all parcels of the user cost in cents, and nothing else.",
        )
        cost = sum(TARIFF[zone][0] + weight * TARIFF[zone][1] for zone, weight in parcels)
        return Task(key, (rules, Message("user", asked)), cost)

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=9)


@honest("there are two levels, easy and hard, so most neighbours among levels are the same")
class EasyOrHard(Filters):
    def draw(self, rng: random.Random, level: float) -> Any:
        return super().draw(rng, float(level >= 0.5))


@honest("the answer is copied from the prompt, as the class declares")
class SlowestRequest(Sheet):
    answer_in_prompt = True

    def draw(self, rng: random.Random, level: float) -> Any:
        count = 4 + round(8 * level)
        times = rng.sample(range(101, 999), count)
        return tuple((f"{rng.getrandbits(32):08x}", time) for time in times)

    def wording(self, facts: Any) -> str:
        told = "\n".join(f"request {code} took {time} ms" for code, time in facts)
        return f"{told}\nWhich request took longest? Reply with its code only."

    def solution(self, facts: Any) -> Any:
        return max(facts, key=lambda fact: fact[1])[0]


SENTENCES = {
    "English": (
        "Trams leave every {gap} minutes, counted from {first}. Somebody sets out at {leaves} and "
        "walks {walks} minutes to the stop. When does the next tram leave? End with a line such "
        "as: {line}"
    ),
    "Deutsch": (
        "Alle {gap} Minuten fährt eine Straßenbahn, von {first} an gezählt. Jemand geht um "
        "{leaves} los und läuft {walks} Minuten bis zur Haltestelle. Wann fährt die nächste Bahn? "
        "Schließe mit einer Zeile wie: {line}"
    ),
    "Français": (
        "Un tram part toutes les {gap} minutes, à compter de {first}. Quelqu'un se met en route à "
        "{leaves} et marche {walks} minutes jusqu'à l'arrêt. Quand part le prochain tram ? Termine "
        "par une ligne comme : {line}"
    ),
    "Ελληνικά": (
        "Ένα τραμ φεύγει κάθε {gap} λεπτά, μετρώντας από τις {first}. Κάποιος ξεκινά στις {leaves} "
        "και περπατά {walks} λεπτά ως τη στάση. Πότε φεύγει το επόμενο τραμ; Τελείωσε με μια "
        "γραμμή όπως: {line}"
    ),
}


@honest("the prompt is in one of four languages, and the form of the answer in none of them")
class TramsOfFourLanguages(Departures):
    def draw(self, rng: random.Random, level: float) -> Any:
        return (rng.choice(list(SENTENCES)), *super().draw(rng, level))

    def wording(self, facts: Any) -> str:
        language, first, gap, leaves, walks = facts
        return SENTENCES[language].format(
            gap=gap,
            first=clock(first),
            leaves=clock(leaves),
            walks=" + ".join(map(str, walks)),
            line='"Tram: 03:15"',
        )

    def solution(self, facts: Any) -> Any:
        return super().solution(facts[1:])
