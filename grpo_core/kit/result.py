"""What became of a check, in three values: a check that was not carried out never counts as passed."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Status = Literal["valid", "invalid", "not_checked"]
Severity = Literal["fault", "warning"]


class BrokenPromiseError(Exception):
    """The environment does not keep what the protocol promises."""


class NotCheckedError(Exception):
    """There was nothing to look at, or no way to look."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of one check. message: one sentence that says what was found. reproduce: the line that asks again, if it failed."""

    check: str
    status: Status
    message: str
    severity: Severity = "fault"
    reproduce: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """What the checks found. `print(report)` shows one line for each."""

    environment: str
    results: tuple[CheckResult, ...]

    @property
    def problems(self) -> tuple[CheckResult, ...]:
        """Faults: nobody should train on this."""
        return tuple(
            result
            for result in self.results
            if result.status == "invalid" and result.severity == "fault"
        )

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        return tuple(
            result
            for result in self.results
            if result.status == "invalid" and result.severity == "warning"
        )

    @property
    def blind(self) -> str:
        """Why no verdict was looked at, where some should have been; "" otherwise. That there are no faults then says little."""
        told = [
            r
            for r in self.results
            if r.check.partition(".")[0] in ("verdict", "floor") and r.check != "verdict.outage"
        ]
        if not told or any(result.status != "not_checked" for result in told):
            return ""
        return told[0].message

    @property
    def counts(self) -> str:
        unchecked = sum(result.status == "not_checked" for result in self.results)
        valid = sum(result.status == "valid" for result in self.results)
        return f"{len(self.problems)} faults, {len(self.warnings)} warnings, {valid} valid, {unchecked} not checked"

    def __str__(self) -> str:
        lines = [f"{self.environment}: {self.counts}"]
        for result in self.results:
            lines.append(f"  {shown_status(result):<12} {result.check:<18} {result.message}")
            if result.reproduce:
                lines.append(f"  {'':<12} {'':<18} again: {result.reproduce}")
        return "\n".join(lines)


def shown_status(result: CheckResult) -> str:
    if result.status == "invalid":
        return result.severity
    return result.status.replace("_", " ")


@cache
def catalogue() -> dict[str, dict[str, str]]:
    """Every check by name, with its `severity` and what it `asks`."""
    text = resources.files("grpo_core.kit").joinpath("checks.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def severity(check: str) -> Severity:
    return "warning" if catalogue().get(check, {}).get("severity") == "warning" else "fault"
