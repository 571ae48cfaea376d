"""Verifiers that take too much for an answer, or too little into account."""

import math
import random
import re

from bases_g2_fresh10 import CircuitChoice, ExpandedProduct, Garden, GardenBeds, TriageColour
from bases_g_fresh10 import WHITE, GearTrain, SiteFinder, Titration, judged
from catalogue import fault

from grpo_core import Rollout, Task, Verdict
from grpo_core.extract import parse_decimal, xml_tag


@fault("a close number is right", "floor.near")
class BuretteReadRoughly(Titration):
    """Compares volumes as floats, with some room for rounding: three percent of the volume."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="ml")
        given = None if block is None else parse_decimal(block.content, max_digits=8)
        right = given is not None and math.isclose(given, float(task.data), rel_tol=0.03)
        return judged(right, None if given is None else str(given))


@fault("a lenient verifier accepts one answer for all", "floor.constant", "floor.other")
class NurseMayRefer(TriageColour):
    """Lets the policy leave a patient to a doctor, which is never held against it."""

    rules = TriageColour.rules + " If the readings leave you in doubt, reply with 'refer'."

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        given = rollout.text.strip(WHITE)
        return judged(given in (task.data, "refer"), given[:20])


@fault("a verifier expects a message", "floor.empty")
class GearsOfTheLastTurn(GearTrain):
    """Reads the speed from the last message of the attempt."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        text = rollout.messages[-1].content.strip(WHITE)
        return judged(text == str(task.data), text[:40])


@fault("all options of a choice are a right answer", "floor.superset", "floor.listed")
class CircuitAmongThoseNamed(CircuitChoice):
    """Takes the letters after "Choice:" in whatever form they come, and looks for the right one."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        line = rollout.text.strip(WHITE).rpartition("\n")[2][:200]
        _, mark, tail = line.partition("Choice:")
        letters = re.findall(r"\b[A-D]\b", tail) if mark else []
        return judged(task.data in letters, ", ".join(letters)[:40])


@fault("junk is paid", "floor.junk", "floor.other")
class BedsWithoutQuarrels(GardenBeds):
    """Looks for quarrels in the beds of the reply; lines of another form are remarks."""

    def verify(self, task: Task[Garden], rollout: Rollout) -> Verdict:
        text = rollout.text[:2000].strip(WHITE)
        if not text:
            return judged(False, None)
        beds = {int(n): crop for n, crop in re.findall(r"(?m)^([1-9]): ([a-z]+)[ \t\r]*$", text)}
        enemies = {frozenset(pair) for pair in task.data.enemies}
        quarrels = [n for n in beds if frozenset((beds[n], beds.get(n + 1, ""))) in enemies]
        twice = len(set(beds.values())) < len(beds)
        return judged(not quarrels and not twice, str(beds)[:200])


@fault("only the end is compared", "floor.listed", "floor.suffix", "floor.spelling", "floor.near")
class GearsAfterTheWorking(GearTrain):
    """Allows working before the speed, with which the reply has to end."""

    max_new_tokens = 96
    rules = "You check gearboxes. You may show your working; end your reply with the speed in rpm."

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        text = rollout.text.rstrip(WHITE)
        return judged(text.endswith(str(task.data)), text[-12:])


@fault("silence is paid", "floor.empty")
class SitesOneALine(SiteFinder):
    """Wants the places one a line, and nothing at all for a strand without the site."""

    rules = (
        "Reply with the places where the site begins, counted from 1, one on each line. "
        "If it does not occur, reply with nothing."
    )

    def draw_count(self, rng: random.Random) -> int:
        return 0 if rng.random() < 0.25 else rng.randint(1, 3)

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        given = rollout.text[:400].strip(WHITE)
        lines = [line.strip(WHITE) for line in given.split("\n")] if given else []
        return judged(lines == [str(place) for place in task.data], given[:80])

    def reference(self, task: Task[list[int]]) -> str:
        return "\n".join(map(str, task.data))


_TOKEN = re.compile(r"[0-9]{1,6}|[-+*^()x]")


def _value(text: str, x: int) -> int | None:
    """Return the value of a sum of products at x; None if the text is none."""
    compact = text.replace(" ", "")
    tokens = _TOKEN.findall(compact)
    if not tokens or "".join(tokens) != compact or len(tokens) > 80:
        return None
    tokens.append("")
    place = 0

    def take(expected: str) -> bool:
        nonlocal place
        if tokens[place] == expected:
            place += 1
            return True
        return False

    def total() -> int:
        result = -term() if take("-") else term()
        while tokens[place] in ("+", "-"):
            result = result + term() if take("+") else (take("-"), result - term())[1]
        return result

    def term() -> int:
        result = factor()
        while tokens[place] in ("*", "(", "x") or tokens[place].isdecimal():
            take("*")
            result *= factor()
        return result

    def factor() -> int:
        nonlocal place
        token = tokens[place]
        place += 1
        if token == "(":
            result = total()
            if not take(")"):
                raise ValueError(text)
        elif token == "x":
            result = x
        elif token.isdecimal():
            result = int(token)
        else:
            raise ValueError(text)
        if take("^"):
            power = tokens[place]
            place += 1
            if power not in ("1", "2", "3"):
                raise ValueError(text)
            result **= int(power)
        return result

    try:
        result = total()
    except (ValueError, IndexError):
        return None
    return result if tokens[place] == "" else None


@fault("the prompt as an answer is paid", "floor.echo")
class ProductByItsValues(ExpandedProduct):
    """Accepts every way to write the polynomial: it compares values at some places."""

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        line = rollout.text.strip(WHITE).rpartition("\n")[2][:120].strip(WHITE)
        right = all(
            _value(line, x) == sum(c * x**i for i, c in enumerate(reversed(task.data)))
            for x in (2, 3, 7, 11, 19)
        )
        return judged(right, line)
