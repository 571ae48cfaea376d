"""Results of checks.

A check that was not carried out, or that the environment waives, never counts as passed.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Status = Literal["valid", "invalid", "not_checked", "waived"]
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
    """"valid" (passed), "invalid" (failed), "not_checked" or "waived" (by the environment)."""
    message: str
    """What was observed, in one sentence."""
    severity: Severity = "fault"
    reproduce: str = ""
    """The command or call that runs the check again, if it failed."""
    seconds: float = 0.0
    """How long the check took."""
    caused_by: str = ""
    """The failed check of the same report whose fault shows here, too; "" if there is none."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold, with the status in words."""
        return asdict(self) | {"status": shown_status(self)}


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all checks. `print(report)` shows one line for each."""

    environment: str
    results: tuple[CheckResult, ...]
    needs: tuple[str, ...] = ()
    """The services that the environment needs."""

    @property
    def problems(self) -> tuple[CheckResult, ...]:
        """Return the faults without their consequences: do not train on this environment."""
        return self._failed("fault")

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """Return the warnings without their consequences."""
        return self._failed("warning")

    @property
    def consequences(self) -> tuple[CheckResult, ...]:
        """Return the failed checks that show the fault of another check of this report."""
        return tuple(result for result in self.results if result.caused_by)

    def _failed(self, severity: Severity) -> tuple[CheckResult, ...]:
        """Return the failed checks of a severity that are no consequences."""
        return tuple(result for result in self.results if shown_status(result) == severity)

    @property
    def blind(self) -> str:
        """Return why no verdict was examined although some should have been, or "".

        A report without faults then says little.
        """
        verdict_results = [
            result
            for result in self.results
            if result.check.partition(".")[0] in ("verdict", "floor")
            and result.check not in ("verdict.outage", "floor.balance")
            and result.status != "waived"
        ]
        if not verdict_results or any(result.status != "not_checked" for result in verdict_results):
            return ""
        return verdict_results[0].message

    @property
    def notice(self) -> str:
        """Return how many checks an environment with services was not asked and why, or ""."""
        reasons: dict[str, list[str]] = {}
        for result in self.results:
            if result.status == "not_checked":
                reasons.setdefault(result.message, []).append(result.check)
        if not self.needs or not reasons:
            return ""
        count = sum(map(len, reasons.values()))
        listed = "; ".join(f"{', '.join(checks)}: {reason}" for reason, checks in reasons.items())
        return (
            f"{count} of {len(self.results)} checks were not asked of this environment, which "
            f"needs a {' and a '.join(self.needs)}: {listed}"
        )

    @property
    def counts(self) -> str:
        """Return the number of results of each kind, as text."""
        shown = [shown_status(result) for result in self.results]
        counts = f"{len(self.problems)} faults, {len(self.warnings)} warnings"
        if self.consequences:
            counts += f" ({len(self.consequences)} consequences)"
        counts += f", {shown.count('valid')} valid, {shown.count('not checked')} not checked"
        return f"{counts}, {shown.count('waived')} waived" if "waived" in shown else counts

    def __str__(self) -> str:
        lines = [f"{self.environment}: {self.counts}", *([self.notice] if self.notice else [])]
        for result in self.results:
            follows = f"follows from {result.caused_by}: " if result.caused_by else ""
            lines.append(
                f"  {shown_status(result):<12} {result.check:<18} {follows}{result.message}"
            )
            if result.reproduce and not result.caused_by:
                lines.append(f"  {'':<12} {'':<18} again: {result.reproduce}")
        return "\n".join(lines)


def shown_status(result: CheckResult) -> str:
    """Return the status in words: valid, fault, warning, consequence, waived or not checked."""
    if result.status == "invalid":
        return "consequence" if result.caused_by else result.severity
    return result.status.replace("_", " ")


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """Return every check by name, with its `severity` and the question that it `asks`."""
    checks = resources.files("grpo_core.kit") / "checks.toml"
    return tomllib.loads(checks.read_text(encoding="utf-8"))
