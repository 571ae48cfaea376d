"""Say what a package that offers checks of environments is asked, and what it answers.

The hook `grpo_checks` offers them; `grpo_core.testing` uses those of the name "kit".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from grpo_core.config.settings import Isolation
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import Lender
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import PluginError, UnknownNameError
from grpo_core.protocol.spec import Spec

Status = Literal["valid", "invalid", "not_checked", "waived"]
Severity = Literal["fault", "warning"]


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


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Which checks to run, and on how many tasks."""

    name: str
    """The environment's name in task keys and in the report."""
    only: Sequence[str] = ()
    """Names of checks or groups; empty: all checks."""
    count: int = 20
    """The number of training tasks to examine."""
    seed: int = 0
    """The seed of the tasks."""
    isolation: Isolation = "auto"
    """Where verdicts are made, as `VerifyConfig.isolation`."""
    spec: Spec | None = None
    """How another process builds the environment; by default from its class."""
    overrides: Mapping[str, Any] | None = None
    """The settings with which another process builds it; by default its config."""
    unavailable: str = ""
    """Why the services that the environment needs cannot be used; "" if they can."""
    reproduce: Callable[[str], str] = lambda check: ""
    """Returns the command or call that runs the named check again."""
    progress: Callable[[str], None] = lambda check: None
    """Called with the name of each check before it runs."""


class Checks(Protocol):
    """Check environments."""

    def names(self, only: Sequence[str] = ()) -> list[str]:
        """Return the names of the chosen checks, in the order of the report.

        Args:
            only: names of checks or of groups ("floor"); empty: all checks.

        Raises:
            ConfigError: a name is neither a check nor a group.
        """
        ...

    async def examine(
        self, env: Environment[Any], examination: Examination, lender: Lender | None = None
    ) -> Report:
        """Run the chosen checks and return their report. Closes `env` and `lender` at the end.

        A fault that makes every other check impossible is in the report even if its check was not
        chosen.

        Args:
            env: the environment.
            examination: which checks to run.
            lender: the lender of the environment's services, if it has one.

        Raises:
            ConfigError: `examination.only` names an unknown check.
        """
        ...


def load_checks(name: str = "kit") -> Checks:
    """Return the checks that an installed package offers under a name.

    Raises:
        PluginError: no installed package offers them, or the package cannot be used.
    """
    try:
        make = PluginHost().load("checks", name)
    except UnknownNameError as error:
        raise PluginError(
            f"no installed package offers checks of environments under the name {name!r}; those of "
            "grpo-core are in its package grpo_kit: `pip install --force-reinstall grpo-core`"
        ) from error
    checks: Checks = make()
    return checks
