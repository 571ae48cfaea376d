"""Results of checks.

They have three statuses: a check that was not carried out never counts as passed.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Status = Literal["valid", "invalid", "not_checked"]
Severity = Literal["fault", "warning"]


class BrokenPromiseError(Exception):
    """The environment breaks a promise of the protocol: the check failed."""


class NotCheckedError(Exception):
    """The check could not be carried out: nothing to examine, or no way to examine it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    check: str
    """The name of the check, such as "floor.empty"."""
    status: Status
    """"valid" (passed), "invalid" (failed) or "not_checked"."""
    message: str
    """What was observed, in one sentence."""
    severity: Severity = "fault"
    reproduce: str = ""
    """The command or call that runs the check again, if it failed."""
    seconds: float = 0.0
    """How long the check took."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all checks. `print(report)` shows one line for each."""

    environment: str
    results: tuple[CheckResult, ...]

    @property
    def problems(self) -> tuple[CheckResult, ...]:
        """Return the failed checks of severity "fault": do not train on this environment."""
        return tuple(
            result
            for result in self.results
            if result.status == "invalid" and result.severity == "fault"
        )

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """Return the failed checks of severity "warning"."""
        return tuple(
            result
            for result in self.results
            if result.status == "invalid" and result.severity == "warning"
        )

    @property
    def blind(self) -> str:
        """Return why no verdict was examined although some should have been, or "".

        A report without faults then says little.
        """
        verdict_results = [
            result
            for result in self.results
            if result.check.partition(".")[0] in ("verdict", "floor")
            and result.check != "verdict.outage"
        ]
        if not verdict_results or any(result.status != "not_checked" for result in verdict_results):
            return ""
        return verdict_results[0].message

    @property
    def counts(self) -> str:
        """Return the number of results of each kind, as text."""
        statuses = [result.status for result in self.results]
        return (
            f"{len(self.problems)} faults, {len(self.warnings)} warnings, "
            f"{statuses.count('valid')} valid, {statuses.count('not_checked')} not checked"
        )

    def __str__(self) -> str:
        lines = [f"{self.environment}: {self.counts}"]
        for result in self.results:
            lines.append(f"  {shown_status(result):<12} {result.check:<18} {result.message}")
            if result.reproduce:
                lines.append(f"  {'':<12} {'':<18} again: {result.reproduce}")
        return "\n".join(lines)


def shown_status(result: CheckResult) -> str:
    """Return the status for people: valid, fault, warning or not checked."""
    return result.severity if result.status == "invalid" else result.status.replace("_", " ")


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """Return every check by name, with its `severity` and the question that it `asks`."""
    checks = resources.files("grpo_core.kit") / "checks.toml"
    return tomllib.loads(checks.read_text(encoding="utf-8"))
