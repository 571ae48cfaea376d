"""Combine several named reward functions into a verdict.

Each function is timed, and its value is logged under its name, so that one that is slow or always
gives little reward can be recognised.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Generic, ParamSpec

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.scalars import as_float
from grpo_core.protocol.ties import reaches
from grpo_core.protocol.types import Reward, Verdict

P = ParamSpec("P")
Score = float | bool | tuple[float | bool, str] | Reward
"""What a reward function returns; a number may also be a scalar of NumPy or PyTorch."""


class Rubric(Generic[P]):
    """Calls named reward functions with the same arguments and combines their values.

    The arguments are (task, rollout), or whatever the verifier has already parsed. A function that
    raises is a bug in the verifier and not a bad answer: the exception reaches the engine, which
    turns it into an error verdict.

    Args:
        functions: each returns a number, a bool (1 or 0), a pair (number, note), or a Reward, as
            `Reward(turns=...)` for what each turn earned. Each may be async.
        weights: one per function, usually the environment's `parts`; 1 for each if left out.
        passed: the function whose value of 1 or more, up to rounding (`reaches`), means success; if
            left out, no verdict passes.

    Raises:
        ConfigError: there is no function, or a name in `weights` or `passed` does not match.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[P, Score | Awaitable[Score]]],
        *,
        weights: Mapping[str, float] | None = None,
        passed: str | None = None,
    ) -> None:
        self._functions = dict(functions)
        self._weights = dict.fromkeys(self._functions, 1.0) if weights is None else dict(weights)
        self._passed = passed
        if not self._functions:
            raise ConfigError("a Rubric has no reward functions; give it at least one")
        if self._functions.keys() != self._weights.keys():
            raise ConfigError(
                f"a Rubric has the functions {sorted(self._functions)} and weights for "
                f"{sorted(self._weights)}; name the same in both"
            )
        if passed is not None and passed not in self._functions:
            raise ConfigError(
                f"a Rubric passes by {passed!r}, which is none of its functions "
                f"{sorted(self._functions)}; name one of them"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Verdict:
        """Return the verdict.

        Use `dataclasses.replace(verdict, answer=...)` to add the extracted answer.

        Raises:
            TypeError: a function returned no number; or it is async, and so is the caller.
            ValueError: a function returned a number that is not finite.
        """
        return self._verdict(self.rewards(*args, **kwargs))

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> Verdict:
        """Return the verdict, in `averify`: async functions are awaited, one after the other."""
        return self._verdict(await self.arewards(*args, **kwargs))

    def rewards(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Reward]:
        """Return only the reward parts, in the order of the functions."""
        rewards: dict[str, Reward] = {}
        for name, function in self._functions.items():
            started = perf_counter()
            score = function(*args, **kwargs)
            if inspect.isawaitable(score) and _is_async():
                _discard(score)
                raise TypeError(
                    f"the reward function {name!r} is async; in averify, call "
                    "`await rubric.acall(...)` or `await rubric.arewards(...)`"
                )
            rewards[name] = self._reward(name, waited_for(score), started)
        return rewards

    async def arewards(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Reward]:
        """Return only the reward parts, in `averify`; see `acall`."""
        rewards: dict[str, Reward] = {}
        for name, function in self._functions.items():
            started = perf_counter()
            score = function(*args, **kwargs)
            score = await score if inspect.isawaitable(score) else score
            rewards[name] = self._reward(name, score, started)
        return rewards

    def _reward(self, name: str, score: object, started: float) -> Reward:
        """Return the part of a function that was called at `started` and returned `score`."""
        reward = reward_of(score, function=repr(name))
        return replace(reward, weight=self._weights[name], seconds=perf_counter() - started)

    def _verdict(self, rewards: Mapping[str, Reward]) -> Verdict:
        passed = self._passed is not None and reaches(rewards[self._passed].value)
        return Verdict(rewards=rewards, passed=passed)


def reward_of(score: object, *, function: str) -> Reward:
    """Return the reward for what a reward function returned, with its default weight.

    Args:
        score: what it returned: a number, which may be a scalar of NumPy or PyTorch, a pair of one
            and a note, or a Reward.
        function: what the message calls the function.

    Raises:
        TypeError: `score` is none of these, as None from a missing return: it is no reward.
        ValueError: the number is infinite or NaN.
    """
    reward = score if isinstance(score, Reward) else Reward()
    value, note = score if isinstance(score, tuple) and len(score) == 2 else (score, "")
    number = as_float(reward.value if isinstance(score, Reward) else value)
    if number is None or not isinstance(note, str):
        raise TypeError(
            f"the reward function {function} returned {score!r:.200}; "
            "return a number, a bool, a pair (number, note) or a Reward"
        )
    if not math.isfinite(number):
        raise ValueError(
            f"the reward function {function} returned {number}; return a finite number"
        )
    return replace(reward, value=number, note=reward.note or note)


def waited_for(score: object) -> object:
    """Return what an async reward function returns, and the value of any other as it is.

    This waits in a thread that is not asynchronous, as a synchronous `verify` does.
    """
    if not inspect.isawaitable(score):
        return score
    from grpo_core.calls.waiting import finished  # asyncio takes long to import

    return finished(score)


def _is_async() -> bool:
    """Return whether an event loop runs in this thread, which must not be blocked."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:  # it is not imported here, as that takes long; so nothing is asynchronous
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _discard(score: object) -> None:
    """Close what is never awaited, so that Python does not warn of it."""
    if inspect.iscoroutine(score):
        score.close()
