"""Implement `grpo run --seeds`, `--sweep`, and `--resume` of a folder that these have made."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from grpo_core import ConfigError
from grpo_core.api.runs import hold, remember
from grpo_core.api.settings import RunConfig
from grpo_core.cli.given import is_given, settings_of, takes
from grpo_core.cli.launching import GRPO
from grpo_core.cli.output import fail, print_line, remark
from grpo_core.cli.rows import with_rows
from grpo_core.cli.run import RunOptions
from grpo_core.cli.run_config import read_config
from grpo_series.folder import SeriesFolder, finished, has_begun
from grpo_series.plan import planned_runs
from grpo_series.running import SeriesEnd, train_all

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class SeriesOptions(RunOptions):
    """Hold the options of `grpo run`, and those that make several runs of it."""

    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            help="Train a run for each of N seeds, one after the other, in folders of --out; "
            "the first seed is that of --seed.",
            metavar="N",
        ),
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            help="Train a run for each of these values of a setting; may be repeated for all "
            "combinations, and combined with --seeds.",
            metavar="KEY=VALUE,VALUE",
        ),
    ] = None


@app.command(epilog="Example: grpo run --env arithmetic --seeds 4 --sweep optimizer.lr=1e-4,3e-4")
@takes(SeriesOptions)
def run(options: SeriesOptions) -> None:
    """Train a run for each seed and each value of a setting, one after the other.

    Each run has its folder in that of --out. Ctrl-C saves the run in progress and ends the series.
    The same command again, or `grpo run --resume OUT`, keeps the finished runs and goes on. At the
    end, and by `grpo compare OUT`, the mean over seeds is printed with its interval.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a series starts its runs itself, but a launcher such as torchrun has started this "
            "process; use --processes N in place of the launcher"
        )
    is_new = options.resume is None
    series = (
        _new_series(options) if options.resume is None else _old_series(options, options.resume)
    )
    more = ["--processes", str(options.processes)] if options.processes else []
    lock = hold(series.path)
    try:
        end = train_all(series, [*more, *(["--trust"] if options.trust else [])])
        if is_new and not any(map(has_begun, series.runs)):
            series.remove()
            raise typer.Exit(end.stopped or next(iter(end.failed.values()), 1))
    finally:
        lock.release()
    _tell_end(series, end)


def _old_series(options: SeriesOptions, path: Path) -> SeriesFolder:
    """Return the series to continue.

    Raises:
        ConfigError: there is none, or an option would change it.
    """
    given = [
        f"--{field.name.replace('_', '-')}"
        for field in fields(options)
        if field.name not in ("resume", "processes", "trust")
        and is_given(getattr(options, field.name))
    ]
    if given:
        names = ", ".join(given).replace("--settings", "--set").replace("--start-from", "--from")
        raise ConfigError(
            f"--resume {path} continues a series with its settings; remove {names}, or continue "
            f"one of its runs alone, as in --resume {path}/NAME"
        )
    return SeriesFolder.read(path)


def _new_series(options: SeriesOptions) -> SeriesFolder:
    """Write the series that the options describe, or extend the one in their --out.

    Raises:
        ConfigError: a setting or a sweep is wrong, or the folder holds something else.
    """
    if options.allow or options.start_from is not None:
        raise ConfigError("--allow and --from are for --resume of one run; remove them")
    envs, settings = with_rows(
        options.env or [], options.data, options.reward or [], options.settings or []
    )
    chosen = settings_of(options) | {"method": "grpo"}

    def config_of(own: tuple[str, ...]) -> RunConfig:
        return read_config(
            envs, options.recipe or [], chosen, [*settings, *own], trust=options.trust
        )

    base = config_of(())
    plans = planned_runs(options.sweep or [], options.seeds, first_seed=base.seed)
    configs = {plan.name: config_of(plan.settings) for plan in plans}
    path = options.out or _default_folder(base)
    series = SeriesFolder.write(path, configs)
    for name, config in configs.items():
        remember(series.recipe(name), config.model_dump(mode="json"))
    remark(f"a series of {len(configs)} runs in {path}")
    return series


def _default_folder(config: RunConfig) -> Path:
    names = "-".join(Path(name).name for name in config.members())
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", names)
    return Path(f"runs/{name}-series-{datetime.now():%Y%m%d-%H%M%S}")


def _tell_end(series: SeriesFolder, end: SeriesEnd) -> None:
    """Print the results of the finished runs, what failed, and how to go on.

    Raises:
        typer.Exit: the series was stopped, or a run failed.
    """
    done = sum(map(finished, series.runs))
    if done:
        print_line()
        subprocess.run([*GRPO, "compare", str(series.path)], check=False)
    if end.stopped:
        remark(
            f"stopped with {done} of {len(series.names)} runs finished; continue with "
            f"grpo run --resume {series.path}"
        )
        raise typer.Exit(end.stopped)
    if end.failed:
        failed = ", ".join(f"{name} (status {status})" for name, status in end.failed.items())
        fail(
            f"{len(end.failed)} of {len(series.names)} runs failed: {failed}; see what they "
            f"printed above. To try them again: grpo run --resume {series.path}",
            status=1,
        )
    remark(f"a page with all of them: grpo report {series.path}")
