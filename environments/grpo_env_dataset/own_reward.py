"""Load and call a reward function of the user's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, Reward, Spec, UserError, reaches
from grpo_core.protocol.scalars import as_float
from grpo_core.rubric import waited_for
from grpo_env_dataset.forms import RETURNS, SIGNATURES, RewardForm, RowAttempt, form_of

NOT_APPLICABLE = "does not apply to this row"
"""The note of a part whose function returned None."""


class OwnReward:
    """A reward function that the setting `reward` names, in any of the forms of `forms`.

    Raises:
        ConfigError: it cannot be loaded, or is no function of one of the forms.
    """

    def __init__(
        self, name: str, *, messages: bool | None = None, known: Collection[str] = ()
    ) -> None:
        """Load the function.

        Args:
            name: FILE.py:FUNCTION or MODULE:FUNCTION.
            messages: whether it reads completions as lists of messages; None: its source tells.
            known: the rewards that need no function, for the message about a name.
        """
        self._name = name
        self._function = _load(name, known)
        self.form: RewardForm = form_of(self._function, name=name, messages=messages)
        self.part = name.rpartition(":")[2]

    @property
    def is_bounded(self) -> bool:
        """Return whether its rewards are from 0 to 1, as in the form of this environment."""
        return self.form.name in ("text", "pair")

    def check_fields(self, fields: Collection[str], *, shown: str) -> None:
        """Check that the rows have what the function asks for.

        Args:
            fields: the fields that all rows have.
            shown: the fields of the rows, for the message.

        Raises:
            ConfigError: a parameter has no value.
        """
        missing = self.form.missing(fields)
        if missing:
            named = " and ".join(map(repr, missing))
            raise ConfigError(
                f"the reward function {self._name!r}, which is read as "
                f"{SIGNATURES[self.form.name]}, wants {named}, and not all rows have a field of "
                f"that name (they have {shown}); name the field that holds it by "
                f"--set env.rename={missing[0]}=FIELD"
            )

    def reward(self, attempt: RowAttempt, *, where: str) -> Reward:
        """Return the reward of a completion, 0 with a note where the function does not apply.

        Args:
            attempt: the completion, with what the function may be told of it.
            where: the place of the row, for messages.

        Raises:
            TypeError, ValueError: the function returned something else than its form says.
            Exception: what the function raised.
        """
        try:
            returned = waited_for(self.form.call(self._function, attempt))
        except KeyError as error:
            if error.args and error.args[0] in attempt.row:
                raise
            fields = ", ".join(attempt.row)
            raise KeyError(f"{error} in {self._name}; the row has {fields}") from error
        try:
            score, note = _with_note(self.form.score(returned))
        except TypeError:
            score, note = returned, ""
            value = None
        else:
            if score is None:
                return Reward(0.0, note=NOT_APPLICABLE)
            value = as_float(score)
        is_small = value is not None and reaches(value, 0.0) and reaches(1.0, value)
        is_finite = value is not None and abs(value) < float("inf")
        if value is None or not (is_small if self.is_bounded else is_finite):
            kind = TypeError if value is None else ValueError
            raise kind(
                f"the reward function {self._name!r} returned {returned!r:.200} for {where}; as "
                f"{SIGNATURES[self.form.name]} it must return {RETURNS[self.form.name]}"
            )
        if isinstance(returned, Mapping):
            attempt.metrics.update(_numbers(returned))
        return Reward(min(1.0, max(0.0, value)) if self.is_bounded else value, note=note)

    def pays(self, attempt: RowAttempt) -> bool:
        """Return whether the function pays a completion in full, or more than that."""
        score = waited_for(self.form.call(self._function, attempt))
        try:
            value = as_float(_with_note(self.form.score(score))[0])
        except TypeError:
            return False
        return value is not None and reaches(value)

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


def _with_note(score: Any) -> tuple[Any, str]:
    """Return a score and its note, of a pair (score, note) or a score alone."""
    if isinstance(score, tuple) and len(score) == 2 and isinstance(score[1], str):
        return score
    return score, ""


def _numbers(returned: Mapping[Any, Any]) -> dict[str, float]:
    """Return the numbers that a function of verl returns beside its score."""
    values = {str(key): as_float(value) for key, value in returned.items() if key != "score"}
    return {key: value for key, value in values.items() if value is not None}


def _load(reward: str, known: Collection[str]) -> Callable[..., object]:
    if ":" not in reward:
        raise ConfigError(
            f"env.reward={reward!r} is not known; it is {', '.join(known)}, FILE.py:FUNCTION or "
            "MODULE:FUNCTION"
        )
    try:
        function = Spec("env.reward", reward).load()
    except UserError as error:
        module, _, name = reward.partition(":")
        file = f"{module.replace('.', '/')}.py"
        if not module.endswith(".py") and Path(file).is_file():
            raise ConfigError(
                f"env.reward={reward!r} is no installed module; for the file here write "
                f"{file}:{name}"
            ) from error
        raise
    except Exception as error:
        raise ConfigError(
            f"env.reward={reward!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        forms = "; ".join(SIGNATURES.values())
        raise ConfigError(
            f"env.reward={reward!r} is a {type(function).__name__}; name a function, as one of "
            f"{forms}"
        )
    return function  # type: ignore[no-any-return]
