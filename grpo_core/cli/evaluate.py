"""Implement `grpo eval`, which samples a run or a model several times on each held-out task."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from grpo_core.calls.console import PrintableConsole
from grpo_core.cli.launching import is_later_rank, launch, processes_to_start
from grpo_core.cli.measuring import run_with_actor
from grpo_core.cli.options import (
    Device,
    Dtype,
    Envs,
    MaxNewTokens,
    Model,
    Processes,
    Seed,
    Settings,
    Trust,
)
from grpo_core.cli.output import INTERRUPTED, new_file, print_json, print_line, remark
from grpo_core.cli.progress import gains_table
from grpo_core.cli.run_config import read_eval_config
from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.report.gains import recorded_gains
from grpo_core.report.summary import Summary
from grpo_core.runs.folder import RunFolder, write_attempts
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.train.actor import Actor

app = typer.Typer()


@app.command(
    "eval",
    epilog="Example: grpo eval --env arithmetic --run runs/first --samples 8 --level 0 --level 0.2",
)
def evaluate(
    env: Envs = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="A finished run: its model, and its environments and settings "
            "unless others are named.",
            readable=False,
        ),
    ] = None,
    model: Model = None,
    tasks: Annotated[
        int,
        typer.Option("--tasks", min=1, help="Held-out tasks of each environment at each level."),
    ] = 128,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", min=1, help="Completions per task; also the largest k of pass@k."
        ),
    ] = 8,
    level: Annotated[
        list[float] | None,
        typer.Option(
            "--level",
            min=0.0,
            max=1.0,
            help="Difficulty, from 0 to 1; may be repeated. \\[default: 0, or the run's]",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.0,
            help="Sampling temperature; 0 is greedy. \\[default: 1, or the run's]",
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    settings: Settings = None,
    attempts: Annotated[
        Path | None,
        typer.Option(
            "--attempts",
            help="Also write every rollout with its verdict to this JSONL file.",
            show_default=False,
        ),
    ] = None,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            help="With --run: print what the run measured itself, from its logs; "
            "nothing is sampled.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    processes: Processes = None,
    trust: Trust = False,
) -> None:
    """Measure a run or a model on held-out tasks.

    Prints pass@k, reward, best of k, majority of k, and every reward part, with standard errors by
    bootstrap over tasks. All runs are evaluated on the same tasks, so models can be compared.
    Ctrl-C finishes the rollouts that were started and prints what was measured.
    """
    options = {
        "model.name": model,
        "sampling.max_new_tokens": max_new_tokens,
        "eval.temperature": temperature,
        "seed": seed,
        "model.device": device,
        "model.dtype": dtype,
    }
    if recorded:
        _print_recorded(run, as_json=as_json)
        return
    if run is not None and model is not None:
        raise ConfigError("--run and --model exclude each other; give one of them")
    _refuse_number_of_tasks(settings or [])
    # With several processes, the first one writes and prints.
    attempts = None if is_later_rank() else new_file(attempts, "--attempts")
    config = read_eval_config(env or [], run, options, settings or [], trust=trust)
    if to_start := processes_to_start(processes):
        launch(to_start, folder=None)
    started = time.monotonic()
    actor, summaries = _measure(
        config, level or [], tasks=tasks, samples=samples, attempts=attempts
    )
    seconds = time.monotonic() - started
    if not is_later_rank():
        _print_result(config.model.name, summaries, seconds, as_json=as_json)
    if actor.stop.is_made:
        remark("stopped before all tasks were done; these are the statistics of those that were")
        raise typer.Exit(INTERRUPTED)


def _refuse_number_of_tasks(settings: Sequence[str]) -> None:
    """Refuse --set eval.tasks, which is about the evaluations of a run.

    Raises:
        ConfigError: it is set.
    """
    for setting in settings:
        name, _, value = setting.partition("=")
        if name.strip() == "eval.tasks":
            raise ConfigError(
                f"--set {setting} is about the evaluations of a run, and changes nothing here; "
                f"give --tasks {value.strip()} instead"
            )


def _print_recorded(run: Path | None, *, as_json: bool) -> None:
    """Print the gains that a run recorded from its first to its last evaluation.

    Raises:
        ConfigError: no run is named, or it was evaluated less than twice.
    """
    if run is None:
        raise ConfigError(
            "--recorded prints what a run measured itself; name the run: --run FOLDER"
        )
    folder = RunFolder.open(run)
    name = folder.config()["model"]["name"]
    steps, gains = recorded_gains(folder)
    if len(steps) < 2:
        reason = (
            f"it was evaluated after step {steps[0]} only" if steps else "it was never evaluated"
        )
        raise ConfigError(
            f"the run {run} has recorded no gain: {reason}; "
            f"measure it now with grpo eval --run {run}"
        )
    if as_json:
        print_json(
            {
                "model": name,
                "steps": steps,
                "gains": {name: asdict(gain) for name, gain in gains.items()},
            }
        )
        return
    print_line(f"{name}, held-out tasks after step {steps[0]} and after step {steps[-1]}")
    PrintableConsole().print(gains_table(gains))


def _measure(
    config: RunConfig, levels: Sequence[float], *, tasks: int, samples: int, attempts: Path | None
) -> tuple[Actor, list[Summary]]:
    """Sample the held-out tasks, and return the actor with a summary per environment and level.

    Args:
        config: the settings.
        levels: the levels; if empty, those of the config.
        tasks: held-out tasks per environment and level.
        samples: completions per task.
        attempts: the JSONL file for the rollouts, or None.
    """

    def start_measuring(
        actor: Actor, progress: Callable[[int, int], None]
    ) -> Coroutine[Any, Any, list[Summary]]:
        from grpo_core.train.run.measure import measure

        return measure(
            actor,
            tasks=tasks,
            samples=samples,
            levels=levels,
            params=config.sampling.params(config.eval.temperature),
            progress=progress,
            on_group=lambda group: None if attempts is None else write_attempts(attempts, group),
        )

    return run_with_actor(
        config, Sources.of(config, {}), start_measuring, title="sampling held-out tasks"
    )


def _print_result(
    model: str, summaries: Sequence[Summary], seconds: float, *, as_json: bool
) -> None:
    if as_json:
        results = [summary.to_json() for summary in summaries]
        print_json({"model": model, "seconds": round(seconds, 1), "results": results})
    else:
        _print_table(model, summaries, seconds)


def _print_table(model: str, summaries: Sequence[Summary], seconds: float) -> None:
    several = len({summary.environment for summary in summaries}) > 1
    table = Table(
        "",
        title=f"{model}: {summaries[0].samples} samples of each held-out task",
        title_justify="left",
    )
    for summary in summaries:
        name = f"{summary.environment}, " if several else ""
        table.add_column(f"{name}level {summary.level:g}", justify="right")
    for statistic in dict.fromkeys(name for summary in summaries for name in summary.statistics):
        estimates = [summary.statistics.get(statistic) for summary in summaries]
        table.add_row(
            statistic, *(f"{e.value:.3f} ± {e.error:.3f}" if e else "" for e in estimates)
        )
    table.add_section()
    table.add_row("tasks", *(str(summary.tasks) for summary in summaries))
    table.add_row("cut off at the budget", *(f"{summary.clipped:.0%}" for summary in summaries))
    for title, counts in (
        ("could not be judged", [summary.unscored for summary in summaries]),
        ("audits that failed", [summary.audits_failed for summary in summaries]),
    ):
        if any(counts):
            table.add_row(title, *map(str, counts))
    PrintableConsole().print(table)
    print_line(
        "± is the standard error over tasks (bootstrap); "
        f"{sum(summary.tokens for summary in summaries)} tokens in {seconds:.0f} s"
    )
