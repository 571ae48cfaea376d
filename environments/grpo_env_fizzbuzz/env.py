"""FizzBuzz and its variants, with random words, divisors and function names.

| difficulty | family |
| --- | --- |
| 1 | the classic: 3 Fizz, 5 Buzz |
| 2 | the classic words, other divisors |
| 3 | other words and divisors |
| 4 | three divisors |
| 5 | three divisors, and a word where none divides |
| 6 | three divisors, only the first that holds counts |
| 7 | a divisor, a digit and a range, joined |
| 8 | the same with primes, only the first counts |
| 9 | two divisors and a digit, for a whole list |
| 10 | four rules of all kinds for a whole list, with zero and negative numbers |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo_core.programs import Case, CodeEnvironment, Problem
from grpo_env_fizzbuzz.mistakes import wrong_functions, wrong_games
from grpo_env_fizzbuzz.numbers import edge_numbers
from grpo_env_fizzbuzz.rules import NumberGame, Rule

WORDS = (
    "Fizz",
    "Buzz",
    "Bang",
    "Pop",
    "Zip",
    "Ding",
    "Quack",
    "Moo",
    "Plop",
    "Whir",
    "Hum",
    "Tick",
    "Boom",
    "Clack",
    "Snap",
    "Purr",
)
NAMES = (
    "name_of",
    "call_out",
    "shout",
    "label",
    "say",
    "speak",
    "announce",
    "word_for",
    "tell",
    "reply_to",
)
_SMALL, _LARGE = 60, 2000
_EXAMPLES = "examples by heart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers(Problem):
    """A problem together with the game that defines its answers."""

    game: NumberGame
    """The rules that the policy's function has to follow."""
    lowest: int
    """Smallest number that the function is called with."""


class FizzBuzz(CodeEnvironment[Numbers]):
    __doc__ = __doc__

    def problem(
        self, rng: random.Random, difficulty: int, *, number: int, impossible: bool = False
    ) -> Numbers:
        game = _draw_game(rng, difficulty)
        entry = f"{rng.choice(NAMES)}_{number}"
        return Numbers(
            statement=game.statement(entry),
            entry=entry,
            parameters="start, stop" if game.listed else "n",
            source=game.source(entry),
            examples=tuple(
                Case(arguments, game.solve(*arguments))
                for arguments in _example_arguments(game, rng)
            ),
            impossible=impossible,
            game=game,
            lowest=-30 if difficulty == 10 else 1,
        )

    def cases(self, problem: Numbers, rng: random.Random, count: int) -> Sequence[Case]:
        """Draw test cases: at least half of the single numbers fulfil some rule.

        Lists are short, so that no single case tests everything; every fourth has large numbers.
        """
        if problem.game.listed:
            starts = [
                rng.randint(_SMALL, _LARGE)
                if index % 4 == 3
                else rng.randint(problem.lowest, _SMALL)
                for index in range(count)
            ]
            inputs: list[tuple[int, ...]] = [
                (start, start + rng.randint(0, 12)) for start in starts
            ]
        else:
            inputs = [(_draw_number(problem, rng, index),) for index in range(count)]
        return [Case(arguments, _expected_result(problem, rng, arguments)) for arguments in inputs]

    def edge_cases(self, problem: Numbers, rng: random.Random) -> Sequence[Case]:
        """Return numbers at which games are played wrongly, or short lists around them."""
        game, lowest = problem.game, problem.lowest
        numbers = edge_numbers(game, lowest)
        if not game.listed:
            return [Case((n,), game.solve(n)) for n in numbers]
        spans = [(max(lowest, n - rng.randint(0, 1)), n) for n in numbers]
        start = rng.randint(lowest, _SMALL)
        spans.append((start, start + rng.randint(16, 20)))
        return [Case(span, game.solve(*span)) for span in spans]

    def wrong_programs(self, problem: Numbers) -> Mapping[str, str]:
        wrong = wrong_games(problem.game, problem.lowest)
        programs = {mistake: game.source(problem.entry) for mistake, game in wrong.items()}
        known = f"{{{', '.join(f'{c.arguments!r}: {c.expected!r}' for c in problem.examples)}}}"
        body = f"return {known}.get(arguments, '')"
        return programs | {_EXAMPLES: f"def {problem.entry}(*arguments):\n    {body}"}

    def wrong_functions(self, problem: Numbers) -> Mapping[str, Callable[..., Any]]:
        functions = wrong_functions(problem.game, problem.lowest)
        known = {case.arguments: case.expected for case in problem.examples}
        return {**functions, _EXAMPLES: lambda *arguments: known.get(arguments, "")}


def _draw_game(rng: random.Random, difficulty: int) -> NumberGame:
    words = rng.sample(WORDS, 5)
    divisors = rng.sample(range(2, 12), 4)
    divide = [
        Rule("divides", divisor, word) for divisor, word in zip(divisors, words, strict=False)
    ]
    digit = Rule("contains", rng.randint(1, 9), words[1])
    low = rng.randint(5, 40)
    between = Rule("between", low, words[2], low + rng.randint(5, 25))
    prime = Rule("prime", 0, words[2])
    if difficulty == 1:
        return NumberGame((Rule("divides", 3, "Fizz"), Rule("divides", 5, "Buzz")))
    if difficulty == 2:
        return NumberGame(
            (Rule("divides", divisors[0], "Fizz"), Rule("divides", divisors[1], "Buzz"))
        )
    families = {
        3: NumberGame(tuple(divide[:2])),
        4: NumberGame(tuple(divide[:3])),
        5: NumberGame(tuple(divide[:3]), otherwise=words[4]),
        6: NumberGame(tuple(divide[:3]), joined=False),
        7: NumberGame((divide[0], digit, between)),
        8: NumberGame((divide[0], digit, prime), joined=False),
        9: NumberGame((divide[0], divide[3], digit), listed=True),
        10: NumberGame(
            (divide[0], digit, prime, divide[3]),
            joined=rng.random() < 0.5,
            otherwise=rng.choice([None, words[4]]),
            listed=True,
        ),
    }
    return families[difficulty]


def _example_arguments(game: NumberGame, rng: random.Random) -> list[tuple[int, ...]]:
    """Return a number that fulfils a rule and one that fulfils none, or two short ranges."""
    if game.listed:
        return [(start, start + 3) for start in (rng.randint(1, 9), rng.randint(10, 30))]
    named = [n for n in range(1, _SMALL) if any(rule.holds(n) for rule in game.rules)]
    plain = [n for n in range(1, _SMALL) if n not in named]
    return [(rng.choice(named),), (rng.choice(plain),)]


def _draw_number(problem: Numbers, rng: random.Random, index: int) -> int:
    """Draw the number of the test case at `index`.

    In turn: any small number, one that fulfils at least one rule, one that fulfils at least two
    (any small number if there is none), and a large number.
    """
    if index % 4 == 3:
        return rng.randint(_SMALL * 3, _LARGE)
    return rng.choice(_candidates(problem.game, problem.lowest, (0, 1, 2)[index % 4]))


@lru_cache(maxsize=256)
def _candidates(game: NumberGame, lowest: int, least_rules: int) -> Sequence[int]:
    """Return the small numbers that fulfil so many rules, or all if there are none."""
    numbers = range(lowest, _SMALL * 3)
    return [n for n in numbers if sum(r.holds(n) for r in game.rules) >= least_rules] or numbers


def _expected_result(
    problem: Numbers, rng: random.Random, arguments: tuple[int, ...]
) -> str | list[str]:
    """Return the right result, or one with random digits appended if the problem is impossible."""
    result = problem.game.solve(*arguments)
    if not problem.impossible:
        return result
    return (
        [f"{word}{rng.randrange(10**6)}" for word in result]
        if isinstance(result, list)
        else f"{result}{rng.randrange(10**6)}"
    )
