"""Tell whether the rewards of a run teach anything, and what helps where they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

_MIXED = "/groups/mixed"
"""How the metric of the share of groups with different rewards ends, for one of several
environments."""


def advice_without_success(
    environment: str = "ENV",
    *,
    model: str = "MODEL",
    level: float | None = None,
    clipped: float = 0.0,
    has_reference: bool = True,
) -> str:
    """Return what may help where no answer is right, the cheapest first.

    Args:
        environment: how the command line names the environment.
        model: how it names the model.
        level: the difficulty; None: the environment has none, or it is not known.
        clipped: the share of answers that were cut off.
        has_reference: whether the environment knows right answers.
    """
    ways = [
        f"longer answers ({clipped:.0%} are cut off: --max-new-tokens)" if clipped > 0.5 else "",
        f"an easier level (--level, now {level:g})" if level else "",
        f"right answers first (`grpo sft --env {environment} --model {model}`)"
        if has_reference
        else "",
        "a denser reward (pay for what is partly right)",
        "a larger model (--model)",
    ]
    return f"try {', or '.join(filter(None, ways))}"


def advice_where_solved(environment: str = "ENV", *, level: float | None = None) -> str:
    """Return what to do where every answer is right; the arguments are as above."""
    harder = "" if level is None or level >= 1 else f" (--level, now {level:g})"
    return (
        "either it is solved, so take a harder level or environment"
        f"{harder}, or the verifier pays everything: score a wrong answer "
        f"(`grpo env score {environment} --answer FILE`) and run `grpo env check {environment}`"
    )


def advice_where_same(environment: str = "ENV") -> str:
    """Return what to do where all answers get the same reward."""
    return (
        "the verifier does not tell these answers apart: score a good and a bad one "
        f"(`grpo env score {environment} --answer FILE`), and pay better answers more"
    )


class Signal:
    """Follows the steps of a run, and finds those environments whose rewards never differed.

    Rewards teach by their differences within a group: where there is none, advantages are 0.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._is_silent = True
        self._differed: dict[str, bool] = {}
        """Whether rewards differed within a group in any step, by environment of a mixture."""
        self._pass_rates: list[float] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """Look at a line of metrics.jsonl; those of evaluations and of `grpo sft` say nothing."""
        if "advantage/std" not in line:
            return
        self._steps += 1
        self._is_silent = self._is_silent and not _is_positive(line["advantage/std"])
        if _is_number(rate := line.get("pass_rate")):
            self._pass_rates.append(rate)
        for name, share in line.items():
            if name.endswith(_MIXED) and _is_number(share):
                environment = name.removesuffix(_MIXED)
                differed = self._differed.get(environment, False)
                self._differed[environment] = differed or share > 0

    @property
    def missing(self) -> str:
        """Return where there is no signal, in a few words; "" if there is one, or no step."""
        if not self._steps:
            return ""
        if self._is_silent:
            return "no signal"
        silent = [name for name, differed in self._differed.items() if not differed]
        return f"no signal from {' and '.join(silent)}" if silent else ""

    def remark(self, *, environment: str = "ENV", model: str = "MODEL") -> str:
        """Return a sentence about `missing` and what may help; "" if nothing is missing.

        Args:
            environment: how the command line names the environment.
            model: how it names the model.
        """
        if not self.missing:
            return ""
        text = (
            f"{self.missing}: in {self._steps} step{'s' if self._steps > 1 else ''} rewards never "
            "differed within a group, so they taught nothing"
        )
        if not self._is_silent or not self._pass_rates:
            return text
        if max(self._pass_rates) == 0:
            advice = advice_without_success(environment, model=model)
            return f"{text}, and no attempt passed; {advice}"
        if min(self._pass_rates) == 1:
            return f"{text}, and every attempt passed; {advice_where_solved(environment)}"
        return f"{text}; {advice_where_same(environment)}"


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a metric was measured: it is neither missing nor NaN."""
    return value is not None and value == value


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0
