"""Combine several named reward functions into a verdict.

Each function is timed, and its value is logged under its name, so that one that is slow or always
gives little reward can be recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from time import perf_counter
from typing import Generic, ParamSpec

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Reward, Verdict

P = ParamSpec("P")
Score = float | bool | tuple[float | bool, str] | Reward


class Rubric(Generic[P]):
    """Calls named reward functions with the same arguments and combines their values.

    The arguments are (task, rollout), or whatever the verifier has already parsed. A function that
    raises is a bug in the verifier and not a bad answer: the exception reaches the engine, which
    turns it into an error verdict.

    Args:
        functions: each returns a number, a bool (1 or 0), a pair (number, note), or a Reward, as
            `Reward(turns=...)` for what each turn earned.
        weights: one per function, usually the environment's `parts`; 1 for each if left out.
        passed: the function whose value of 1 or more means success; if left out, no verdict passes.

    Raises:
        ConfigError: there is no function, or a name in `weights` or `passed` does not match.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[P, Score]],
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
        """
        rewards = self.rewards(*args, **kwargs)
        return Verdict(
            rewards=rewards, passed=self._passed is not None and rewards[self._passed].value >= 1
        )

    def rewards(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Reward]:
        """Return only the reward parts, in the order of the functions."""
        rewards: dict[str, Reward] = {}
        for name, function in self._functions.items():
            started = perf_counter()
            score = function(*args, **kwargs)
            seconds = perf_counter() - started
            if isinstance(score, Reward):
                rewards[name] = replace(score, weight=self._weights[name], seconds=seconds)
                continue
            value, note = score if isinstance(score, tuple) else (score, "")
            if not isinstance(value, Real):  # None from a missing return must not become a reward
                raise TypeError(
                    f"the reward function {name!r} returned {score!r}; "
                    "return a number, a bool, a pair (number, note) or a Reward"
                )
            rewards[name] = Reward(float(value), self._weights[name], note, seconds)
        return rewards
