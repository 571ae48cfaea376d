"""`grpo env check`: an environment under the adversarial conformance kit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_core.cli.envs import only_settings_of
from grpo_core.cli.output import console, live, print_json, prints_to_stderr, remark
from grpo_core.protocol.errors import UserError

if TYPE_CHECKING:
    from grpo_core.config.config import RunConfig
    from grpo_core.kit.result import CheckResult, Report

FAULTS, BLIND = 1, 3
_USED = ("env", "judges", "sandbox")
TASKS = 20


def register(app: typer.Typer) -> None:
    app.command("check", epilog="Example: grpo env check arithmetic --only floor --seed 7")(check)


def check(
    name: Annotated[
        str,
        typer.Argument(
            help="An environment that `grpo envs` lists, or FILE.py:CLASS.", show_default=False
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="CHECK",
            help="A check or a group of them, such as floor; may be repeated.",
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="Training tasks to look at.")
    ] = TASKS,
    seed: Annotated[int, typer.Option("--seed", help="Stream of generated tasks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit", metavar="FILE", help="Also write JUnit XML, for CI.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="env.KEY=VALUE",
            help="Change a setting of the environment (or judges., sandbox.); may be repeated.",
        ),
    ] = None,
) -> None:
    """Ask an environment what a run would ask, and try what a model would try: no model, no GPU, some seconds.

    Exits with 0 if there are no faults, with 1 if there are, and with 3 if no verdict could be had, so that there was little to look at.
    """
    from grpo_core.kit.junit import write_junit

    only_settings_of(_USED, settings or [])
    if junit is not None:
        with _written(
            junit
        ):  # before the work, not after it; and no older report stays if this ends early
            junit.touch()
            if junit.is_file():
                junit.unlink()
    with prints_to_stderr():
        report = _examined(name, only or [], tasks, seed, settings or [])
    if as_json:
        print_json(
            {
                "environment": report.environment,
                "results": [result.to_json() for result in report.results],
            }
        )
    else:
        _print(report)
    if junit is not None:
        with _written(junit):
            write_junit(report, junit)
    if report.problems:
        raise typer.Exit(FAULTS)
    if report.blind:
        remark(f"nothing is known of its verdicts: {report.blind}")
        raise typer.Exit(BLIND)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--junit {str(path)!r} cannot be written: {error.strerror or error}; name another file"
        ) from None


def _examined(
    name: str, only: Sequence[str], tasks: int, seed: int, settings: Sequence[str]
) -> Report:
    import asyncio
    import shlex

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from grpo_core.cli.training import read_config
    from grpo_core.kit.run import Examination, borrowed, examine, wanted
    from grpo_core.plugins.environments import environment_class, load_environment
    from grpo_core.plugins.host import PluginHost
    from grpo_core.plugins.services import Lender

    names = wanted(only)
    config = read_config([name], [], {}, list(settings))
    overrides = _overrides(config)
    host = PluginHost()
    lender = Lender(host, config.sandbox, config.judges)
    services, missing = borrowed(lender, environment_class(host, name))
    env = load_environment(host, name, overrides, lend=lambda _: services)
    more = [f"--set {shlex.quote(text)}" for text in settings] + (
        [f"--tasks {tasks}"] if tasks != TASKS else []
    )
    command = " ".join(["grpo env check", shlex.quote(name), *more])

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with live(Progress(*columns, console=console(stderr=True), transient=True)) as bar:
        shown = bar.add_task("checking", total=len(names))
        spec = host.get("environment", name)
        asked = Examination(
            name=spec.name,
            only=only,
            count=tasks,
            seed=seed,
            spec=spec,
            overrides=overrides,
            unavailable=missing,
            reproduce=lambda check: f"{command} --only {check} --seed {seed}",
            progress=lambda check: bar.update(shown, advance=1, description=check),
        )
        return asyncio.run(examine(env, asked, lender))


def _overrides(config: RunConfig) -> Mapping[str, Any]:
    (member,) = config.members().values()
    return member.env


def _print(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from grpo_core.kit.result import shown_status

    colours = {"valid": "green", "fault": "bold red", "warning": "yellow", "not checked": "dim"}
    table = Table(box=None, pad_edge=False, show_header=False, expand=False)
    for column in (12, 18, None):
        table.add_column(width=column, overflow="fold")
    for result in report.results:
        status = shown_status(result)
        table.add_row(Text(status, colours[status]), result.check, Text(_message(result)))
    page = console()
    page.print(table)
    page.print(f"{report.environment}: {report.counts}", style="bold")


def _message(result: CheckResult) -> str:
    return f"{result.message}\nagain: {result.reproduce}" if result.reproduce else result.message
