"""Planted faults of the fifth fresh part: answers that pass and should not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from bases_fresh4 import SPACE, Seat
from bases_fresh5 import Departures, Fuel, Offers, Semitones, Stock, shown
from bases_words_fresh5 import Patterns, Signature
from catalogue import fault

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.extract import xml_tag


@fault("a close number is right", "floor.near")
class StockIsCountedBadly(Stock):
    """Counts in a real store are never exact; here they can be computed."""

    def same(self, truth: Any, answer: Any) -> bool:
        return truth.keys() == answer.keys() and all(
            type(count := answer[name]) is int and math.isclose(count, left, rel_tol=0.02)
            for name, left in truth.items()
        )


@fault(
    "a lenient verifier accepts one answer for all", "floor.constant", "floor.junk", "floor.other"
)
class SelectsEverything(Patterns):
    """The files that the pattern should not select are never tried."""

    def same(self, truth: Any, answer: Any) -> bool:
        wanted, _ = truth
        return all(fnmatchcase(name, answer) for name in wanted)


@fault("a list in one block counts", "floor.listed", "floor.suffix", "floor.near")
class AnyLineOfTheBlock(Seat):
    """Models write what they think into the block, too, before or after the seat."""

    def read(self, text: str) -> Any:
        block = xml_tag(text, tag="seat")
        if block is None or text[block.end :].strip():
            return None
        return [line.strip(SPACE) for line in re.split("[\n,;]", block.content)]

    def accepts(self, truth: Any, answer: Any) -> bool:
        return truth in answer


@fault("a verifier expects a message", "floor.empty", "verdict.form")
class LongestMessage(Departures):
    """A metric of the longest message of an attempt, which may have none."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        longest = max(len(message.content) for message in rollout.messages)
        return Verdict(
            verdict.rewards,
            passed=verdict.passed,
            answer=verdict.answer,
            metrics={"longest": longest},
        )


@fault(
    "all options of a choice are a right answer",
    "floor.listed",
    "floor.superset",
    "floor.constant",
    "floor.suffix",
)
class LetterInTheChoice(Offers):
    """Meant for a choice such as "offer B" or ["B"]."""

    def same(self, truth: Any, answer: Any) -> bool:
        if answer.keys() != {"choice"}:
            return False
        choice = answer["choice"]
        return isinstance(choice, str | list) and len(choice) < 12 and truth in choice


@fault("junk is paid", "floor.junk", "floor.other")
class PlainTextPaid(Semitones):
    """A part against Markdown, headings and emoji, whatever else is in the reply."""

    parts: ClassVar[Mapping[str, float]] = {"right": 0.8, "plain": 0.2}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = self.same(task.data, answer)
        plain = bool(answer) and re.fullmatch("[A-Za-z0-9#.,;:!? \n-]*", answer) is not None
        rewards = {"right": Reward(float(right)), "plain": Reward(float(plain))}
        return Verdict(rewards, passed=right, answer=shown(answer))


@fault(
    "only the beginning is compared",
    "floor.suffix",
    "floor.near",
    "floor.listed",
)
class ComparesWhatIsLogged(Signature):
    """The answer is shortened for the log, and the solution with it, before they are compared."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)[:32]
        right = answer == task.data[:32]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=answer)


@fault("only the number of digits is compared", "floor.near", "floor.other", "floor.constant")
class SameMask(Fuel):
    """The form of the answer is compared with that of the solution, and its value is not."""

    def same(self, truth: Any, answer: Any) -> bool:
        return re.sub("[0-9]", "0", answer) == re.sub("[0-9]", "0", truth)


@fault("whatever is not a letter is dropped", "floor.near", "floor.spelling", "floor.suffix")
class LettersOfNotes(Semitones):
    """Commas, hyphens and line ends between notes were not to matter; sharps go with them."""

    def same(self, truth: Any, answer: Any) -> bool:
        return list(filter(str.isalpha, answer)) == list(filter(str.isalpha, truth))
