"""Planted faults of the fourth fresh part: answers that pass and should not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar

from bases_fresh4 import (
    SPACE,
    Blend,
    Coins,
    Finish,
    Heavier,
    Largest,
    Ledger,
    Parcels,
    Portions,
    Seat,
)
from bases_words_fresh4 import Cipher, Repaired, Route
from catalogue import fault

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.extract import parse_integer, parse_json


@fault(
    "a lenient verifier accepts one answer for all",
    "floor.constant",
    "floor.junk",
    "floor.empty",
    "floor.other",
)
class NoGoodsWrong(Portions):
    """None of the amounts in an empty object is wrong."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        if not isinstance(answer, dict):
            return False
        return all(
            type(grams) is int and truth.get(name) == grams for name, grams in answer.items()
        )


@fault("a verifier expects a message", "floor.empty", "verdict.form")
class LastMessageOnly(Ledger):
    """A rollout that was cut off before its first turn has no message."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        *_, last = rollout.messages
        answer = self.read(last.content)
        return self.judged(answer is not None and self.accepts(task.data, answer), answer)


@fault(
    "all items of the prompt are a right answer",
    "floor.superset",
    "floor.listed",
    "floor.echo",
)
class NoneForgotten(Heavier):
    """Each heavy crate has to be named, and nobody looks for light ones."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        named = [code.strip() for code in answer.split(",")]
        return all(code in named for code in truth.split(", "))


@fault(
    "all options of a choice are a right answer",
    "floor.listed",
    "floor.superset",
    "floor.constant",
    "floor.suffix",
)
class LettersNamed(Largest):
    """Brackets, full stops and commas around the letter were to be allowed."""

    def read(self, text: str) -> Any:
        said = text.strip(SPACE)
        return set(re.findall("[A-F]", said)) if re.fullmatch("[A-F(). ,]{1,30}", said) else None

    def accepts(self, truth: Any, answer: Any) -> bool:
        return truth in answer


@fault("certain words are paid", "floor.junk", "floor.constant")
class ShowsItsWork(Ledger):
    """A part for replies that look like an account of the steps."""

    parts: ClassVar[Mapping[str, float]] = {"right": 0.8, "steps": 0.2}
    steps = ("first", "then", "next", "finally", "therefore", "so")

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = answer == task.data
        words = set(re.findall("[a-z]+", rollout.text.lower()))
        named = sum(word in words for word in self.steps)
        rewards = {"right": Reward(float(right)), "steps": Reward(min(named, 3) / 3)}
        return Verdict(rewards, passed=right, answer=None if answer is None else str(answer))

    def written(self, truth: Any) -> str:
        return f"First I add what came in, then I subtract the rest, so:\nBalance: {truth}"


@fault(
    "further keys of an object are ignored",
    "floor.superset",
    "floor.listed",
    "floor.suffix",
    "floor.spelling",
)
class CoinsAsked(Coins):
    """Only the keys that were asked for are looked up."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        if not isinstance(answer, dict):
            return False
        return all(
            type(count := answer.get(coin)) is int and count == right
            for coin, right in truth.items()
        )


@fault(
    "letters are compared without order",
    "floor.near",
    "floor.suffix",
    "floor.superset",
    "floor.echo",
    "floor.spelling",
)
class SameLetters(Cipher):
    """A reply has to have each letter as often as the word has it."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        return Counter(answer) == Counter(truth)


@fault("only the end is compared", "floor.near", "floor.suffix", "floor.listed", "floor.spelling")
class EndOfBlock(Seat):
    """What stands before the seat in its block, such as "row", was to be allowed."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer.endswith(truth))


@fault("the answer counts wherever it stands", "floor.listed", "floor.suffix")
class AmongTheWords(Blend):
    """Small models like to say "The colour is ..."."""

    def read(self, text: str) -> Any:
        return [word.strip(".,:;!") for word in text.split()]

    def accepts(self, truth: Any, answer: Any) -> bool:
        return truth in answer


@fault("the prompt as an answer is paid", "floor.echo")
class ShareOfNumbers(Repaired):
    """The list of the prompt has one wrong number, and earns the share of the others."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        start, end = rollout.text.rfind("["), rollout.text.rfind("]")
        value = parse_json(rollout.text[start : end + 1], max_chars=1000) if start >= 0 else None
        numbers = value.value if value is not None and isinstance(value.value, list) else []
        right = len(numbers) == len(task.data) and all(type(number) is int for number in numbers)
        same = sum(a == b for a, b in zip(numbers, task.data, strict=True)) if right else 0
        return Verdict(
            {"reward": Reward(same / len(task.data))},
            passed=same == len(task.data),
            answer=str(numbers)[:100],
        )


@fault(
    "the reply is used as a pattern",
    "floor.junk",
    "floor.constant",
    "floor.near",
    "floor.nested",
    "floor.text",
    "floor.spelling",
    "floor.superset",
)
class MatchingPath(Route):
    """PurePath.match knows that a//b is a/b, and takes its argument as a pattern."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        try:
            return len(answer) < 300 and PurePosixPath(truth).match(answer)
        except ValueError:  # an empty path
            return False


@fault("whatever is not a digit is dropped", "floor.near", "floor.spelling", "floor.suffix")
class DigitsOnly(Parcels):
    """Units and separators were to be written in any way."""

    def read(self, text: str) -> Any:
        digits = re.sub("[^0-9]", "", text)
        return parse_integer(digits, max_digits=9)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == self.read(truth))


@fault("whatever is not a letter is dropped", "floor.near", "floor.spelling", "floor.suffix")
class NamesOfFolders(Route):
    """Slashes and quotation marks were not to matter; the numbers of the folders go with them."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bare(answer) == bare(truth)


def bare(text: str) -> str:
    """Return the letters of a text."""
    return re.sub("[^A-Za-z]+", "", text)


@fault(
    "words are compared without order",
    "floor.near",
    "floor.echo",
    "floor.spelling",
    "floor.superset",
)
class AllCameIn(Finish):
    """The names are compared as a multiset, as those of an answer whose order is free."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        return sorted(answer.split(", ")) == sorted(truth.split(", "))
