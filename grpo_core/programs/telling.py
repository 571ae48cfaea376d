"""Choose the cases of a verdict so that they tell wrong programs apart from right ones.

A policy that learns finds the cheapest program that passes. Cases that are merely random miss what
goes wrong at one input alone, such as a bound that is off by one. So the environment names the
programs that it means to refuse, and cases are drawn until each of them fails.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo_core.programs.values import Case, comparable, same_value

Function = Callable[..., Any]
BUDGET = 480
"""The most ordinary cases that are drawn in search of those that tell wrong programs apart."""
TIMES = 2
"""By how many cases each wrong program is told apart where possible."""
EDGE_SHARE = 0.25
"""The share of the cases that edge cases may take without telling a known program apart.

They tell those apart that nobody thought of.
"""
_SCALARS = (str, int, float, bool, bytes, type(None))


@lru_cache(maxsize=1024)
def load_program(source: str, entry: str) -> Function:
    """Return the function `entry` of a program of the environment's author.

    It runs in this process, so never a program of the policy.

    Raises:
        ValueError: the program does not load, or binds no such function.
    """
    namespace: dict[str, Any] = {"__name__": "wrong_program"}
    try:
        exec(compile(source, "<wrong program>", "exec"), namespace)
        function: Function = namespace[entry]
    except Exception as error:
        raise ValueError(f"a wrong program must load and bind {entry!r}: {error!r}") from error
    return function


def differs(function: Function, case: Case) -> bool:
    """Return whether a wrong program returns another value than the case expects, or raises."""
    arguments = case.arguments
    if not all(type(argument) in _SCALARS for argument in arguments):
        arguments = copy.deepcopy(arguments)  # a program may change its arguments
    try:
        return not same_value(function(*arguments), case.expected)
    except Exception:  # noqa: BLE001 - a wrong program may raise what it likes
        return True


@dataclass(frozen=True, slots=True)
class Survey:
    """Holds the edge cases of a problem, and which wrong programs they tell apart."""

    edges: Sequence[Case]
    sturdy: frozenset[str]
    """The wrong programs that are told apart by few ordinary cases."""
    told: Sequence[frozenset[str]]
    """For each edge case, which of the sturdy ones it tells apart."""
    untold: Sequence[str]
    """The wrong programs that no case tells apart."""


def survey_problem(
    wrong: Mapping[str, Function],
    ordinary: Sequence[Case],
    edges: Sequence[Case],
    more: Iterable[Sequence[Case]],
) -> Survey:
    """Return which cases tell the wrong programs of a problem apart.

    Args:
        wrong: the wrong programs, by name.
        ordinary: a few ordinary cases.
        edges: all edge cases.
        more: batches of further ordinary cases, drawn as long as they are needed.
    """
    times = dict.fromkeys(wrong, 0)
    for case in ordinary:
        for name in [name for name, count in times.items() if count < TIMES]:
            times[name] += differs(wrong[name], case)
    sturdy = frozenset(name for name, count in times.items() if count < TIMES)
    told = [frozenset(name for name in sturdy if differs(wrong[name], case)) for case in edges]
    remaining = [name for name in wrong if not times[name] and not any(name in n for n in told)]
    for batch in more if remaining else ():
        for case in batch:
            remaining = [name for name in remaining if not differs(wrong[name], case)]
        if not remaining:
            break
    return Survey(edges, sturdy, told, remaining)


def choose_cases(
    wrong: Mapping[str, Function],
    ordinary: Sequence[Case],
    survey: Survey,
    more: Iterable[Sequence[Case]],
    rng: random.Random,
) -> list[Case]:
    """Return as many cases as there are ordinary ones, which tell each wrong program apart.

    The cases stay ordinary but for those that are exchanged: first each wrong program is told apart
    once, then `TIMES` times, as far as there is room; then edge cases take up to `EDGE_SHARE` of
    the places. A case is exchanged for one with the same expected value where there is one, so that
    the share of the best constant answer stays about the same.

    Args:
        wrong: the wrong programs, by name.
        ordinary: the cases to start from.
        survey: the edge cases.
        more: batches of further ordinary cases, drawn as long as they are needed.
        rng: the source of all random choices.
    """
    choice = _Choice(list(ordinary), wrong, rng)
    order = rng.sample(range(len(survey.edges)), len(survey.edges))
    pool = [survey.edges[index] for index in order]
    told = [survey.told[index] for index in order]
    if others := [name for name in choice.remaining(TIMES) if name not in survey.sturdy]:
        told = [
            some | further for some, further in zip(told, choice.told_by(pool, others), strict=True)
        ]
    choice.keep(1)
    choice.take_from(pool, told, 1)
    for batch in more:
        if not (remaining := choice.remaining(1)) or not choice.free:
            break
        choice.take_from(batch, choice.told_by(batch, remaining), 1)
    for times in range(2, TIMES + 1):
        choice.keep(times)
        choice.take_from(pool, told, times)
    for case in pool[: int(EDGE_SHARE * len(ordinary))]:
        choice.exchange(case, (), needed=False)
    return choice.cases


class _Choice:
    """Holds the cases chosen so far, and which wrong programs they tell apart."""

    def __init__(
        self, cases: list[Case], wrong: Mapping[str, Function], rng: random.Random
    ) -> None:
        self.cases = cases
        self._wrong = wrong
        self._rng = rng
        self._kept: set[int] = set()
        """The places whose cases stay."""
        self._places: dict[str, list[int]] = {name: [] for name in wrong}
        """By wrong program: places whose cases tell it apart, `TIMES` or more if there are."""
        for place, case in enumerate(cases):
            for name in self.remaining(TIMES):
                if differs(wrong[name], case):
                    self._places[name].append(place)
        self._expected = [comparable(case.expected) for case in cases]
        self._arguments = [comparable(case.arguments) for case in cases]

    @property
    def free(self) -> list[int]:
        """Return the places whose cases may be exchanged."""
        return [place for place in range(len(self.cases)) if place not in self._kept]

    def remaining(self, times: int) -> list[str]:
        """Return the wrong programs that fewer than `times` cases tell apart."""
        return [name for name, places in self._places.items() if len(places) < times]

    def told_by(self, pool: Sequence[Case], names: Sequence[str]) -> list[frozenset[str]]:
        """Return for each case of the pool those of the wrong programs that it tells apart."""
        return [frozenset(n for n in names if differs(self._wrong[n], case)) for case in pool]

    def keep(self, times: int) -> None:
        """Keep the cases by which each program is told apart `times` times."""
        for places in self._places.values():
            self._kept.update(places[:times])

    def take_from(self, pool: Sequence[Case], told: Sequence[frozenset[str]], times: int) -> None:
        """Take cases from the pool until each program is told apart `times` times, if it can be.

        The case that tells most of the remaining programs apart comes first.

        Args:
            pool: the cases.
            told: the wrong programs that each of them tells apart.
            times: how often each program has to be told apart.
        """
        untaken = set(range(len(pool)))
        while untaken and self.free and (remaining := frozenset(self.remaining(times))):
            best = max(sorted(untaken), key=lambda index: len(told[index] & remaining))
            if not told[best] & remaining:
                break
            self.exchange(pool[best], told[best], needed=times == 1)
            untaken.remove(best)

    def exchange(self, case: Case, names: Iterable[str], *, needed: bool) -> None:
        """Put a case in the place of one that may go, unless it is one of the cases already.

        Args:
            case: the case.
            names: the wrong programs that it tells apart.
            needed: whether it may take the place of one with another expected value, although
                others have its value, and the best constant answer becomes better by it.
        """
        arguments, expected = comparable(case.arguments), comparable(case.expected)
        free = self.free
        alike = [place for place in free if self._expected[place] == expected]
        if not (alike or needed or expected not in self._expected):
            return
        if arguments in self._arguments or not free:
            return
        used = {place for places in self._places.values() for place in places}
        unused = [place for place in alike or free if place not in used]
        place = self._rng.choice(unused or alike or free)
        for places in self._places.values():
            if place in places:
                places.remove(place)
        self.cases[place] = case
        self._arguments[place], self._expected[place] = arguments, expected
        for name in names:
            self._places[name].append(place)
        self._kept.add(place)
