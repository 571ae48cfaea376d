"""Games played wrongly: what a policy writes that has almost understood, or that takes a shortcut.

Each wrong game is available as Python source, and as a function that is made of the same
expressions but needs no compiler, as every task has many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from grpo_env_fizzbuzz.numbers import edge_numbers
from grpo_env_fizzbuzz.rules import NumberGame, Rule

DIVIDES, CONTAINS = "n % {a} == 0", "str({a}) in str(abs(n))"
BETWEEN = "{a} <= n <= {b}"
PRIME = "n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))"
RIGHT: Mapping[str, str] = {
    "divides": DIVIDES,
    "contains": CONTAINS,
    "between": BETWEEN,
    "prime": PRIME,
}
"""By kind of rule: its condition as an expression of n; a and b are the rule's numbers."""
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
WRONG: Mapping[str, Mapping[str, str]] = {
    "divides": {
        "remainder of 1": "n % {a} == 1",
        "negated": "n % {a} != 0",
        "a divisor too large by 1": "n % ({a} + 1) == 0",
        "only every second multiple": "n % (2 * {a}) == 0",
        "multiples up to 100 by heart": "n in range(0, 101, {a})",
        "only the divisor itself": "n == {a}",
        "not the divisor itself": "n % {a} == 0 and n != {a}",
        "the divisor's last digit": "n % 10 == {a} % 10",
        "a digit instead of a divisor": "str({a}) in str(n)",
        "only positive multiples": "n > 0 and n % {a} == 0",
        "not zero": "n != 0 and n % {a} == 0",
    },
    "contains": {
        "last digit": "abs(n) % 10 == {a}",
        "first digit": "str(abs(n))[0] == str({a})",
        "last two digits": "str({a}) in str(abs(n))[-2:]",
        "last three digits": "str({a}) in str(abs(n))[-3:]",
        "first two digits": "str({a}) in str(abs(n))[:2]",
        "first and last digit": "str({a}) in (str(n)[0], str(n)[-1])",
        "the digit exactly once": "str(abs(n)).count(str({a})) == 1",
        "the digit more than once": "str(abs(n)).count(str({a})) > 1",
        "only the number itself": "n == {a}",
        "not the number itself": "str({a}) in str(abs(n)) and n != {a}",
        "a divisor instead of a digit": "n % {a} == 0",
        "a digit too large by 1": "str({a} + 1) in str(abs(n))",
        "the digit up to 100": "n <= 100 and str({a}) in str(abs(n))",
        "only in positive numbers": "n > 0 and str({a}) in str(n)",
        "the last digit by remainder": "n % 10 == {a} or n // 10 % 10 == {a}",
    },
    "between": {
        "upper bound excluded": "{a} <= n < {b}",
        "lower bound excluded": "{a} < n <= {b}",
        "both bounds excluded": "{a} < n < {b}",
        "upper bound too high by 1": "{a} <= n <= {b} + 1",
        "lower bound too low by 1": "{a} - 1 <= n <= {b}",
        "no upper bound": "n >= {a}",
        "no lower bound": "n <= {b}",
        "only the bounds": "n in ({a}, {b})",
        "negated": "not {a} <= n <= {b}",
    },
    "prime": {
        "1 is prime": PRIME.replace("n > 1", "n > 0"),
        "0 is prime": f"n == 0 or {PRIME}",
        "2 is not prime": PRIME.replace("n > 1", "n > 2"),
        "3 is not prime": PRIME.replace("n > 1", "n > 1 and n != 3"),
        "4 is prime": "n > 1 and all(n % d for d in range(2, n // 2))",
        "odd numbers are prime": "n > 1 and n % 2 == 1",
        "squares of primes are prime": "n > 1 and all(n % d for d in range(2, int(n ** 0.5)))",
        "odd squares of primes are prime": (
            "n == 2 or n > 2 and n % 2 and all(n % d for d in range(3, int(n ** 0.5), 2))"
        ),
        "a negative prime is prime": (
            "abs(n) > 1 and all(n % d for d in range(2, int(abs(n) ** 0.5) + 1))"
        ),
        "one divisor is enough": "n in (2, 3) or n > 3 and any(n % d for d in range(2, n))",
        "primes by their last digit": "n in (2, 3, 5, 7) or n > 9 and n % 10 in (1, 3, 7, 9)",
        "primes as 6 k + 1 and 6 k - 1": "n in (2, 3) or n > 3 and n % 6 in (1, 5)",
        "primes by Fermat's test": "n == 2 or n > 2 and pow(2, n - 1, n) == 1",
        "primes up to 50 by heart": f"n < 50 and {PRIME}",
        "primes up to 100 by heart": f"n < 100 and {PRIME}",
    }
    | {
        f"primes by {divisors} only": f"n > 1 and all(n == d or n % d for d in {divisors})"
        for divisors in (_PRIMES[:count] for count in range(1, len(_PRIMES) + 1))
    }
    | {
        f"primes without the divisor {left_out}": PRIME.replace(
            " + 1))", f" + 1) if d != {left_out})"
        )
        for left_out in _PRIMES[:4]
    },
}
"""By kind of rule: conditions that are wrong, by the name of the mistake."""
JOINED, FIRST = "''.join(words)", "words[0]"
_WRONG_RESULTS: Mapping[bool, Mapping[str, str]] = {
    True: {
        "only the first word": FIRST,
        "only the last word": "words[-1]",
        "words in reverse": "''.join(words[::-1])",
        "words with spaces": "' '.join(words)",
        "in lower case": "''.join(words).lower()",
        "a list of words": "words",
    },
    False: {
        "all words": JOINED,
        "the last word": "words[-1]",
        "in lower case": "words[0].lower()",
        "nothing where several hold": "words[0] if len(words) == 1 else str(n)",
    },
}
SPAN = "range(start, stop + 1)"
_WRONG_SPANS: Mapping[str, str] = {
    "without the end": "range(start, stop)",
    "without the start": "range(start + 1, stop + 1)",
    "one too many": "range(start, stop + 2)",
    "one too many before": "range(start - 1, stop + 1)",
    "from 1": "range(1, stop + 1)",
    "backwards": "range(stop, start - 1, -1)",
    "every second": "range(start, stop + 1, 2)",
    "at most ten": "range(start, min(stop, start + 9) + 1)",
    "at most twelve": "range(start, min(stop, start + 11) + 1)",
    "at most fifteen": "range(start, min(stop, start + 14) + 1)",
    "from 0 on": "range(max(start, 0), stop + 1)",
    "up to 100": "range(start, min(stop, 100) + 1)",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a number, and the word for numbers that fulfil it."""

    expression: str
    """An expression of n, with a and b in braces."""
    a: int
    b: int
    word: str

    def source(self) -> str:
        """Return the condition as a Python expression of n."""
        return self.expression.format(a=self.a, b=self.b)

    def holds(self) -> Callable[[int, int, int], bool]:
        """Return the condition as a function of n, a and b."""
        return _function("n, a, b", self.expression.format(a="a", b="b"))


@dataclass(frozen=True, slots=True)
class WrongGame:
    """A game as a policy may have understood it; see `NumberGame`."""

    conditions: tuple[Condition, ...]
    """The conditions in their order."""
    result: str
    """An expression of n and words, which are those of the conditions that hold."""
    rest: str
    """An expression of n, for numbers for which no condition holds."""
    span: str | None
    """An expression of start and stop, for a game that is played with lists."""

    def function(self) -> Callable[..., Any]:
        """Return the function that the policy would have written."""
        conditions = [(c.holds(), c.a, c.b, c.word) for c in self.conditions]
        result, rest = _function("n, words", self.result), _function("n", self.rest)

        def name(n: int) -> Any:
            words = [word for holds, a, b, word in conditions if holds(n, a, b)]
            return result(n, words) if words else rest(n)

        if self.span is None:
            return name
        span = _function("start, stop", self.span)
        return lambda start, stop: [name(n) for n in span(start, stop)]

    def source(self, entry: str) -> str:
        """Return the program that the policy would have written."""
        name = entry if self.span is None else "name"
        lines = [f"def {name}(n):", "    words = []"]
        for condition in self.conditions:
            lines += [f"    if {condition.source()}:", f"        words.append({condition.word!r})"]
        lines.append(f"    return {self.result} if words else {self.rest}")
        if self.span is not None:
            lines += ["", f"def {entry}(start, stop):"]
            lines.append(f"    return [name(n) for n in {self.span}]")
        return "\n".join(lines)


@cache
def _function(parameters: str, expression: str) -> Callable[..., Any]:
    """Return a function of one of the expressions above."""
    function: Callable[..., Any] = eval(f"lambda {parameters}: {expression}")
    return function


@lru_cache(maxsize=64)
def wrong_functions(game: NumberGame, lowest: int) -> Mapping[str, Callable[..., Any]]:
    """Return the functions of `wrong_games`, by the name of the mistake."""
    return {mistake: wrong.function() for mistake, wrong in wrong_games(game, lowest).items()}


@lru_cache(maxsize=64)
def wrong_games(game: NumberGame, lowest: int) -> Mapping[str, WrongGame]:
    """Return the ways to play a game wrongly, by the name of the mistake.

    Mistakes of which the game shows nothing are left out, such as 1 taken for a prime where 1 has a
    name by another rule. What is in `_MUST_SHOW` stays: a game in which a rule could as well be
    dropped is not worth asking for.

    Args:
        game: the game as it is meant.
        lowest: the smallest number that it is played with.
    """
    right = WrongGame(
        tuple(_condition(rule) for rule in game.rules),
        JOINED if game.joined else FIRST,
        "str(n)" if game.otherwise is None else repr(game.otherwise),
        SPAN if game.listed else None,
    )
    numbers = [(n, game.call(n)) for n in edge_numbers(game, lowest)]
    wrong: dict[str, WrongGame] = {}
    for mistake, made in _made(game, right, lowest):
        play = replace(made, span=None).function()
        if (
            made.span != right.span
            or mistake.partition(":")[0] in _MUST_SHOW
            or any(play(n) != name for n, name in numbers)
        ):
            wrong[mistake] = made
    return wrong


_MUST_SHOW = frozenset(
    {
        *("dropped", "rules in reverse", "all words", "only the first word"),
        *("upper bound excluded", "lower bound excluded", "1 is prime", "last digit"),
    }
)
"""Mistakes, without the rule that they are about, of which every game must show something."""


def _made(game: NumberGame, right: WrongGame, lowest: int) -> Iterator[tuple[str, WrongGame]]:
    """Yield every mistake with the game that it makes."""
    yield from _mistaken_conditions(game, right)
    yield from _mistaken_orders(right)
    for mistake, result in _WRONG_RESULTS[game.joined].items():
        yield mistake, replace(right, result=result)
    if game.joined and len(game.rules) > 2:
        yield "at most two words", replace(right, result="''.join(words[:2])")
    rests = {"nothing where no rule holds": "''", "the number not as a string": "n"}
    rests |= {"the number without its sign": "str(abs(n))", "always the number": "str(n)"}
    for mistake, rest in rests.items():
        yield mistake, replace(right, rest=rest)
    if game.listed:
        for mistake, span in _WRONG_SPANS.items():
            if lowest < 0 or mistake != "from 0 on":
                yield mistake, replace(right, span=span)


def _mistaken_conditions(game: NumberGame, right: WrongGame) -> Iterator[tuple[str, WrongGame]]:
    """Yield the mistakes about one rule each."""
    for index, (rule, condition) in enumerate(zip(game.rules, right.conditions, strict=True)):
        before, after = right.conditions[:index], right.conditions[index + 1 :]
        yield f"dropped: rule {index + 1}", replace(right, conditions=(*before, *after))
        for mistake, expression in WRONG[rule.kind].items():
            changed = replace(condition, expression=expression)
            conditions = (*before, changed, *after)
            yield f"{mistake}: rule {index + 1}", replace(right, conditions=conditions)


def _mistaken_orders(right: WrongGame) -> Iterator[tuple[str, WrongGame]]:
    """Yield the mistakes about the order of rules, and of their words."""
    conditions = right.conditions
    yield "rules in reverse", replace(right, conditions=conditions[::-1])
    for index in range(len(conditions) - 1):
        one, other = conditions[index : index + 2]
        before, after = conditions[:index], conditions[index + 2 :]
        exchanged = (*before, other, one, *after)
        yield f"rules {index + 1} and {index + 2} exchanged", replace(right, conditions=exchanged)
        words = (*before, replace(one, word=other.word), replace(other, word=one.word), *after)
        yield f"words {index + 1} and {index + 2} exchanged", replace(right, conditions=words)


def _condition(rule: Rule) -> Condition:
    return Condition(RIGHT[rule.kind], rule.value, rule.last, rule.word)
