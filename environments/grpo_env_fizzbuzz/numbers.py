"""Numbers at which games of FizzBuzz are played wrongly: bounds, primes, squares, meeting rules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, islice

from grpo_env_fizzbuzz.rules import NumberGame, Rule

_PSEUDOPRIMES = (341, 561, 645, 1387, 1729)
"""Numbers that pass Fermat's test to the base 2 and are no primes."""
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
_LARGE_PRIMES = (53, 59, 97, 101, 997, 1999)
_SEARCHED = range(1, 1000)
"""The numbers among which those are searched for which several rules hold."""
_MEETINGS = 4
"""How many numbers are taken for which two rules hold."""


@lru_cache(maxsize=256)
def edge_numbers(game: NumberGame, lowest: int) -> tuple[int, ...]:
    """Return numbers at which programs for a game go wrong.

    Args:
        game: the game.
        lowest: the smallest number that may be among them.
    """
    numbers = {-11, -10, -2, -1, 0, *range(1, 13), 99, 100, 101, 999, 1000, 1001, 2000, 2001}
    for rule in game.rules:
        numbers.update(_numbers_of(rule))
    for one, other in combinations(game.rules, 2):
        both = (n for n in _SEARCHED if one.holds(n) and other.holds(n))
        numbers.update(islice(both, _MEETINGS))
    if len(game.rules) > 2:
        several = (n for n in _SEARCHED if sum(rule.holds(n) for rule in game.rules) > 2)
        numbers.update(islice(several, _MEETINGS))
    return tuple(sorted(n for n in numbers if n >= lowest))


def _numbers_of(rule: Rule) -> Iterator[int]:
    """Yield numbers at which programs take a rule for another one."""
    value, last = rule.value, rule.last
    if rule.kind == "divides":
        for factor in (-1, 1, 2, 11, 20):
            yield from range(factor * value - 1, factor * value + 2)
    elif rule.kind == "contains":
        yield from (value, -value, -10 * value - 1, -10 - value)
        for other in (3, 8):
            yield from (10 * other + value, 10 * value + other, 11 * value, 100 * value + other)
            yield from (100 * other + 10 * value + other, 100 * value + 11 * other)
            yield from (1000 * other + 100 * value + 11, 1000 * other + 10 * value, 1000 * value)
    elif rule.kind == "between":
        yield from (*range(value - 2, value + 3), *range(last - 2, last + 3))
        yield (value + last) // 2
    else:
        yield from (*_PRIMES, *_LARGE_PRIMES, *_PSEUDOPRIMES, *(-prime for prime in _PRIMES[:4]))
        for index, prime in enumerate(_PRIMES):
            yield prime * prime
            further = 6 if index < 4 else 2
            yield from (prime * other for other in _PRIMES[index + 1 : index + further])
