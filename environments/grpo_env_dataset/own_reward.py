"""Call a reward function of the user's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from grpo_core import ConfigError, Spec, UserError, reaches
from grpo_core.protocol.scalars import as_float
from grpo_core.rubric import waited_for
from grpo_env_dataset.answers import COMPARISONS
from grpo_env_dataset.rows import Row, plain_row


class OwnReward:
    """A reward function that the setting `reward` names.

    Raises:
        ConfigError: it cannot be loaded, or is no function.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = _load(name)

    def value(self, text: str, row: Row, *, where: str) -> float:
        """Return the reward of a completion, from 0 to 1.

        Args:
            text: the completion.
            row: the row.
            where: the place of the row, for messages.

        Raises:
            TypeError, ValueError: the function returned something else.
            Exception: what the function raised.
        """
        score = self._call(text, row)
        value = as_float(score)
        if value is None or not (reaches(value, 0.0) and reaches(1.0, value)):
            kind = TypeError if value is None else ValueError
            raise kind(
                f"the reward function {self._name!r} returned {score!r:.200} for {where}; it must "
                "return a number from 0 to 1"
            )
        return min(1.0, max(0.0, value))

    def pays(self, text: str, row: Row) -> bool:
        """Return whether the function pays a completion in full, or more than that."""
        value = as_float(self._call(text, row))
        return value is not None and reaches(value)

    def _call(self, text: str, row: Row) -> object:
        return waited_for(self._function(text, plain_row(row)))

    def source(self) -> str:
        """Return text that is another one where the function may be another one."""
        function: Any = self._function
        bound = list[str]()
        while isinstance(function, functools.partial):
            bound.append(f"{function.args} {function.keywords}")
            function = function.func
        try:
            return f"{inspect.getsource(inspect.getmodule(function) or function)} {bound}"
        except (OSError, TypeError):
            # The function is not written in Python, such as operator:eq.
            return f"{self._name} {bound}"


def _load(reward: str) -> Callable[..., object]:
    if ":" not in reward:
        raise ConfigError(
            f"env.reward={reward!r} is not known; it is {', '.join(COMPARISONS)}, FILE.py:FUNCTION "
            "or MODULE:FUNCTION"
        )
    try:
        function = Spec("env.reward", reward).load()
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(
            f"env.reward={reward!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise ConfigError(
            f"env.reward={reward!r} is a {type(function).__name__}; name a function(text, row)"
        )
    return function  # type: ignore[no-any-return]
