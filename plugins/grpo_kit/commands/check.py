"""Implement `grpo env check`, which runs the adversarial conformance kit on an environment."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import typer
from rich.progress import MofNCompleteColumn
from rich.table import Table
from rich.text import Text

from grpo_core import Environment, Services, UserError
from grpo_core.api.calls import PrintableConsole, printable
from grpo_core.api.plugins import PluginHost, load_environment
from grpo_core.api.verify import CheckResult, Examination, Report, shown_status
from grpo_core.cli.environment import refuse_other_settings
from grpo_core.cli.given import takes
from grpo_core.cli.options import Rewards
from grpo_core.cli.output import print_json, prints_to_stderr, remark
from grpo_core.cli.progress import progress_bar
from grpo_core.cli.rows import with_rewards
from grpo_core.cli.run_config import read_config
from grpo_core.plugins.services import Lender
from grpo_kit.run import examine, wanted

app = typer.Typer()

FAULTS, BLIND = 1, 3
"""The exit statuses if there are faults, and if no verdict could be obtained."""
_USED_SECTIONS = ("env", "judges", "sandbox", "endpoint")
_SKIPPED = ("not_checked", "waived")
"""The statuses of checks that were not carried out."""
_CONSEQUENCE_WIDTH = 60
"""Characters of a consequence, which the line of its cause explains."""
_NAMED = 3
"""Checks of those that were not carried out that their common line names."""
TASKS = 20
"""The default number of training tasks to check."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Hold the options of `grpo env check`, in the order of its help page."""

    name: Annotated[
        str,
        typer.Argument(
            help="An environment that `grpo envs` lists, FILE.py:CLASS, or a file of rows.",
            show_default=False,
        ),
    ]
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="CHECK",
            help="A check or a group of checks, such as floor; may be repeated.",
        ),
    ] = None
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="Number of training tasks to check.")
    ] = TASKS
    seed: Annotated[int, typer.Option("--seed", help="Random seed of generated tasks.")] = 0
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list the checks that were not carried out.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit", metavar="FILE", help="Also write JUnit XML, for CI.", show_default=False
        ),
    ] = None
    reward: Rewards = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="env.KEY=VALUE",
            help="Change a setting of the environment (or of judges., sandbox. or endpoint.); "
            "may be repeated.",
        ),
    ] = None


@app.command(epilog="Example: grpo env check arithmetic --only floor --seed 7")
@takes(CheckOptions)
def check(options: CheckOptions) -> None:
    """Check an environment and its verifier with the calls of a run and the exploits of a model.

    Takes some seconds, and needs neither a model nor a GPU. Exits with 0 if there are no faults,
    with 1 if there are, and with 3 if no verdict could be obtained, so that little was checked.
    """
    settings = with_rewards(options.reward, options.settings)
    refuse_other_settings(_USED_SECTIONS, settings)
    if options.junit is not None:
        # Fail before the checks if the file cannot be written, and leave no older report in place
        # if the checks are interrupted.
        with _writing_junit(options.junit):
            options.junit.touch()
            if options.junit.is_file():
                options.junit.unlink()
    with prints_to_stderr():
        report = _run_checks(
            options.name, options.only or [], options.tasks, options.seed, settings
        )
    if options.as_json:
        print_json(
            {
                "environment": report.environment,
                "notice": report.notice,
                "results": [result.to_json() for result in report.results],
            }
        )
    else:
        _print_report(report, fold=not options.show_all and not options.only)
    if options.junit is not None:
        with _writing_junit(options.junit):
            _write_junit(report, options.junit)
    if report.problems:
        raise typer.Exit(FAULTS)
    if report.blind:
        remark(f"nothing is known about its verdicts: {report.blind}")
        raise typer.Exit(BLIND)


@contextlib.contextmanager
def _writing_junit(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a UserError about --junit."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--junit {str(path)!r} cannot be written: {error.strerror or error}; name another file"
        ) from None


def _run_checks(
    name: str, only: Sequence[str], tasks: int, seed: int, settings: Sequence[str]
) -> Report:
    """Run the checks with a progress bar on stderr, and return their report.

    Args:
        name: the environment.
        only: names of checks or groups of checks; if empty, all of them.
        tasks: number of training tasks.
        seed: random seed of generated tasks.
        settings: the values of --set.
    """
    names = wanted(only)
    config = read_config([name], [], {}, list(settings))
    ((environment, member),) = config.members().items()  # of rows, not their file's name
    host = PluginHost()
    lender = Lender(host, config.sandbox, config.judges, config.endpoint)
    missing = ""

    def lend(env_class: type[Environment[Any]], env_config: Any) -> Services:
        nonlocal missing
        services, missing = lender.services_or_reason(env_class, env_config)
        return services

    env = load_environment(host, environment, member.env, lend=lend)
    command_options = [f"--set {shlex.quote(text)}" for text in settings] + (
        [f"--tasks {tasks}"] if tasks != TASKS else []
    )
    command = " ".join(["grpo env check", shlex.quote(name), *command_options])

    spec = host.get("environment", environment)
    with progress_bar("checking", MofNCompleteColumn(), total=len(names)) as update:
        examination = Examination(
            name=spec.name,
            only=only,
            count=tasks,
            seed=seed,
            spec=spec,
            overrides=member.env,
            unavailable=missing,
            reproduce=lambda check: f"{command} --only {check} --seed {seed}",
            progress=lambda check: update(advance=1, description=check),
        )
        return asyncio.run(examine(env, examination, lender))


def _write_junit(report: Report, path: Path) -> None:
    """Write a report as JUnit XML, which CI systems display.

    Faults become failures, warnings and consequences of other faults become passed tests with their
    text as output, and checks that were waived or not carried out become skipped tests.

    Raises:
        OSError: the file cannot be written.
    """
    suite = ElementTree.Element(
        "testsuite",
        name=f"grpo env check {report.environment}",
        tests=str(len(report.results)),
        failures=str(len(report.problems)),
        skipped=str(sum(result.status in _SKIPPED for result in report.results)),
    )
    if report.notice:
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", name="not asked", value=report.notice)
    for result in report.results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=report.environment,
            name=result.check,
            time=f"{result.seconds:g}",
        )
        status = shown_status(result)
        if result.status in _SKIPPED:
            ElementTree.SubElement(case, "skipped", message=f"{status}: {result.message}")
        elif result in report.problems:
            failure = ElementTree.SubElement(case, "failure", message=result.message)
            failure.text = f"{result.message}\nagain: {printable(result.reproduce)}"
        else:
            ElementTree.SubElement(case, "system-out").text = f"{status}: {_explained(result)}"
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _explained(result: CheckResult) -> str:
    """Return the message of a result, for a consequence with its cause."""
    return (
        f"follows from {result.caused_by}: {result.message}" if result.caused_by else result.message
    )


def _print_report(report: Report, *, fold: bool) -> None:
    """Print a line for each result, faults and warnings last; cut the line of a consequence.

    Args:
        report: The results.
        fold: Whether a single line stands for the checks that were not carried out.
    """
    colours = {
        "valid": "green",
        "fault": "bold red",
        "warning": "yellow",
        "consequence": "red",
        "not checked": "dim",
        "waived": "cyan",
    }
    output = PrintableConsole()
    if report.notice:
        output.print(report.notice, style="bold yellow")
    table = Table(box=None, pad_edge=False, show_header=False, expand=False)
    for column in (12, 18, None):
        table.add_column(width=column, overflow="fold")
    folded = [result for result in report.results if fold and result.status == "not_checked"]
    if folded:
        few = ", ".join(result.check for result in folded[:_NAMED])
        text = f"{len(folded)} checks do not apply or could not be made, such as {few}; see --all"
        table.add_row(Text("not checked", colours["not checked"]), "", text)
    for result in sorted(report.results, key=lambda result: result.status == "invalid"):
        if result in folded:
            continue
        status = shown_status(result)
        again = f"\nagain: {result.reproduce}" if result.reproduce and not result.caused_by else ""
        text = Text(_explained(result) + again)
        if result.caused_by:
            text.truncate(_CONSEQUENCE_WIDTH, overflow="ellipsis")
        table.add_row(Text(status, colours[status]), result.check, text)
    output.print(table)
    output.print(f"{report.environment}: {report.counts}", style="bold")
