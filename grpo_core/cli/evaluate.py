"""`grpo eval`: what a run or a model can do, by several samples of each held-out task."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_core.cli.measuring import with_trainer
from grpo_core.cli.options import Device, Dtype, Envs, MaxNewTokens, Model, Seed, Settings, Trust
from grpo_core.cli.output import INTERRUPTED, console, new_file, print_json, print_line, remark
from grpo_core.protocol.errors import ConfigError

if TYPE_CHECKING:
    from grpo_core.config.config import RunConfig
    from grpo_core.report.summary import Summary
    from grpo_core.train.trainer import Trainer


def register(app: typer.Typer) -> None:
    app.command(
        "eval",
        epilog="Example: grpo eval --env arithmetic --run runs/first --samples 8 --level 0 --level 0.2",
    )(evaluate)


def evaluate(
    env: Envs = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="A finished run: its model, and unless others are named its environments and settings.",
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
            "--samples", min=1, help="Attempts at each task: pass@k is known up to that k."
        ),
    ] = 8,
    level: Annotated[
        list[float] | None,
        typer.Option(
            "--level",
            min=0.0,
            max=1.0,
            help="Difficulty, from 0 to 1; may be repeated. [default: 0, or the run's]",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.0,
            help="Of the attempts; 0 is greedy. [default: 1, or the run's]",
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
            help="Also write every attempt with its verdict to this JSONL file.",
            show_default=False,
        ),
    ] = None,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            help="With --run: print what the run measured itself, from its logs; nothing is attempted.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    trust: Trust = False,
) -> None:
    """Measure a run or a model on held-out tasks: pass@k, reward, best and majority of k, and every reward part.

    Errors are by bootstrap over tasks. The tasks are those of every run's evaluation, so models can be compared. Ctrl-C ends after the
    attempts that are under way and prints what was measured.
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
    attempts = new_file(attempts, "--attempts")
    config = _config(env or [], run, options, settings or [], trust=trust)
    started = time.monotonic()
    trainer, found = _measured(config, level or [], tasks=tasks, samples=samples, attempts=attempts)
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                "model": config.model.name,
                "seconds": round(seconds, 1),
                "results": [summary.to_json() for summary in found],
            }
        )
    else:
        _print_table(config.model.name, found, seconds)
    if trainer.stop_requested:
        remark("stopped before all tasks were done; these are the statistics of those that were")
        raise typer.Exit(INTERRUPTED)


def _print_recorded(run: Path | None, *, as_json: bool) -> None:
    """Print the gains table of a run again."""
    from grpo_core.cli.progress import gains_table
    from grpo_core.report.gains import recorded_gains
    from grpo_core.runs.folder import RunFolder

    if run is None:
        raise ConfigError(
            "--recorded prints what a run measured itself; name the run: --run FOLDER"
        )
    folder = RunFolder.open(run)
    name = folder.config()["model"]["name"]
    steps, gains = recorded_gains(folder)
    if len(steps) < 2:
        found = (
            f"it was evaluated after step {steps[0]} only" if steps else "it was never evaluated"
        )
        raise ConfigError(
            f"the run {run} has recorded no gain: {found}; measure it now with grpo eval --run {run}"
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
    console().print(gains_table(gains))


def _config(
    envs: Sequence[str],
    run: Path | None,
    options: dict[str, Any],
    settings: Sequence[str],
    *,
    trust: bool,
) -> RunConfig:
    """Of a run what decides its tasks, its verdicts and how it draws. Nothing is trained, so there is no reference."""
    from grpo_core.cli.training import environments
    from grpo_core.config.overrides import (
        build_config,
        full_name,
        nested,
        parse_setting,
        split_setting,
    )
    from grpo_core.runs.folder import RunFolder
    from grpo_core.runs.trust import require_trust

    stored: dict[str, Any] = {}
    if run is not None:
        opened = RunFolder.open(run)
        if not opened.finished:
            raise ConfigError(
                f"the run {run} is not finished (it has no final/); continue it, or name its checkpoints/best by --model"
            )
        whole = opened.config()
        named_files = list(map(full_name, envs))
        if sorted(map(full_name, envs)) == sorted(
            whole["mixture"] or [whole["environment"]]
        ):  # as the run has them, with its settings
            envs = ()
        tasks = () if envs else ("environment", "mixture", "env", "weights")
        stored = {
            name: whole[name]
            for name in (
                *tasks,
                "level",
                "seed",
                "model",
                "sampling",
                "verify",
                "sandbox",
                "judges",
            )
        }
        named = [*named_files, *(split_setting(text)[0] for text in settings)]
        require_trust(run, whole, used=stored, named=named, trust=trust)
        stored["model"] = whole["model"] | {"name": str(run / "final"), "revision": None}
        stored["eval"] = {"temperature": whole["eval"]["temperature"]}
        stored["trainer"] = {
            "gradient_checkpointing": whole["model"].get("offload", False)
        }  # which offloaded weights ask for
        if envs:  # the budget was that of the run's own environment
            stored["sampling"]["max_new_tokens"] = None
    given = {key: value for key, value in options.items() if value is not None}
    return build_config(
        [
            stored,
            {"kl": {"beta": 0.0}},
            environments(envs),
            nested(given),
            *map(parse_setting, settings),
        ]
    )


def _measured(
    config: RunConfig, levels: Sequence[float], *, tasks: int, samples: int, attempts: Path | None
) -> tuple[Trainer, list[Summary]]:
    from grpo_core.runs.folder import write_attempts
    from grpo_core.verify.sources import Sources

    temperature = (
        config.sampling.temperature if config.eval.temperature is None else config.eval.temperature
    )
    sampling = config.sampling.model_copy(update={"temperature": temperature})

    def measuring(
        trainer: Trainer, progress: Callable[[int, int], None]
    ) -> Coroutine[Any, Any, list[Summary]]:
        from grpo_core.train.measure import measure

        return measure(
            trainer,
            tasks=tasks,
            samples=samples,
            levels=levels,
            sampling=sampling,
            progress=progress,
            keep=lambda group: None if attempts is None else write_attempts(attempts, group),
        )

    return with_trainer(
        config, Sources.of(config, {}), measuring, title="attempting held-out tasks"
    )


def _print_table(model: str, found: Sequence[Summary], seconds: float) -> None:
    from rich.table import Table

    several = len({summary.environment for summary in found}) > 1
    table = Table(
        "", title=f"{model}: {found[0].samples} samples of each held-out task", title_justify="left"
    )
    for summary in found:
        name = f"{summary.environment}, " if several else ""
        table.add_column(f"{name}level {summary.level:g}", justify="right")
    for statistic in dict.fromkeys(name for summary in found for name in summary.statistics):
        cells = []
        for summary in found:
            estimate = summary.statistics.get(statistic)
            cells.append("" if estimate is None else f"{estimate.value:.3f} ± {estimate.error:.3f}")
        table.add_row(statistic, *cells)
    table.add_section()
    table.add_row("tasks", *(str(summary.tasks) for summary in found))
    table.add_row("cut off at the budget", *(f"{summary.clipped:.0%}" for summary in found))
    if any(summary.unscored for summary in found):
        table.add_row("could not be judged", *(str(summary.unscored) for summary in found))
    if any(summary.audits_failed for summary in found):
        table.add_row("audits that failed", *(str(summary.audits_failed) for summary in found))
    console().print(table)
    tokens = sum(summary.tokens for summary in found)
    print_line(
        f"± is the standard error over tasks (bootstrap); {tokens} tokens in {seconds:.0f} s"
    )
