"""Decides whether a text is to blame for failed calls, by comparing it with its own words.

Its calls have to fail every time, and those of the same words in another order never, in a random
order and without any sign of load: then neither chance, load, the length of the text nor the
setting of the judge can be the cause. The chance that calls which fail at random look like this is
below one in a million.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count

from grpo_core.calls.api_client import CallError, FailureKind

CALLS = 10
"""Number of calls of the text, and of calls of its rearranged controls."""
ARRANGED = (re.compile(r"\S+"), re.compile(r"\S"))
"""What changes places in controls: words; and if these fail too, or there is one word only, the
characters, between the same white space."""
_MAY_BE_AWAY = (None, 502, 503, 504)
"""Statuses after which the endpoint may have to come back first; None is no answer at all."""
_RANDOM = random.SystemRandom()
"""Not the global generator, which verifiers of the run may use."""
_TRIES = 8
"""How often an order is drawn until it differs from the text."""

Ask = Callable[[str, int], Awaitable[tuple[float, str]]]


@dataclass(frozen=True, slots=True)
class Graded:
    """The text got a grade after all."""

    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class Blamed:
    """The text fails every time, and its controls never do."""

    last: CallError
    """The last failure of the text."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The endpoint refuses the text for its content or length, so that no comparison is needed."""

    error: CallError


@dataclass(frozen=True, slots=True)
class Unclear:
    """Something else than the text may be the cause."""

    why: str


Outcome = Graded | Blamed | Refused | Unclear


async def compare(
    text: str,
    *,
    ask: Ask,
    has_signs: Callable[[], bool],
    recover: Callable[[], Awaitable[object]],
) -> Outcome:
    """Compare calls of a text with calls of its controls.

    Args:
        text: The text whose calls failed.
        ask: Asks for a grade of a text, with a seed; raises CallError.
        has_signs: Returns whether there was a sign of load, or of a limit of tokens, since the
            comparison began.
        recover: Waits until the endpoint answers again, after it gave no answer.
    """
    tried = False
    outcome: Outcome = Unclear("it has no other order that it could be compared with")
    for pattern in ARRANGED:
        controls = rearranged(text, pattern)
        if not controls:
            continue
        if tried:
            await recover()  # the control that failed may have made the endpoint unavailable
        tried = True
        result = await _compare(
            text, controls, ask=ask, has_signs=has_signs, recover=recover, seeds=count(1)
        )
        if result is not None:
            return result
        outcome = Unclear("the same words or characters in another order fail, too")
    return outcome


def rearranged(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return `CALLS` orders of the parts of a text; none if no order differs from the text.

    White space stays where it is, so that length and lines are those of the text.
    """
    parts = pattern.findall(text)
    if len(set(parts)) < 2:
        return []
    rng = random.Random(0)
    between = pattern.split(text)
    orders = []
    for _ in range(CALLS):
        for _ in range(_TRIES):
            rng.shuffle(parts)
            order = "".join(map(str.__add__, between, [*parts, ""]))
            if order != text:
                orders.append(order)
                break
    return orders if len(orders) == CALLS else []


async def _compare(  # noqa: C901 - an answer or failure after the other
    text: str,
    controls: list[str],
    *,
    ask: Ask,
    has_signs: Callable[[], bool],
    recover: Callable[[], Awaitable[object]],
    seeds: count[int],
) -> Outcome | None:
    """Return the outcome with these controls; None if one of them fails."""
    order = [text] * CALLS + controls
    _RANDOM.shuffle(order)
    last = None
    for item in order:
        try:
            score, reason = await ask(item, 1000 * next(seeds))
        except CallError as error:
            if has_signs():
                return Unclear(f"the endpoint shows signs of load or of a limit: {error}")
            if error.kind is FailureKind.REJECTED:
                return Unclear(f"the endpoint rejects the request: {error}")
            if error.kind is FailureKind.REFUSED and item == text:
                return Refused(error)
            if item != text:
                return None
            last = error
            if error.kind is FailureKind.UNAVAILABLE and error.status in _MAY_BE_AWAY:
                await recover()
        else:
            if has_signs():
                return Unclear("the endpoint shows signs of load, or cuts its answers")
            if item == text:
                return Graded(score, reason)
    assert last is not None
    return Blamed(last)
