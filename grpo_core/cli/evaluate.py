"""Implement `grpo eval`, which samples a run or a model several times on each held-out task."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_core.cli.given import settings_of, takes
from grpo_core.cli.launching import is_later_rank, launch, processes_to_start
from grpo_core.cli.measuring import ActorResult, ShowProgress, run_with_actor
from grpo_core.cli.options import (
    AsJson,
    Data,
    Device,
    Dtype,
    Envs,
    Levels,
    MaxNewTokens,
    Model,
    Processes,
    Rewards,
    Samples,
    Seed,
    Settings,
    Stop,
    Tasks,
    Temperature,
    TopP,
    Trust,
)
from grpo_core.cli.output import new_file, print_json
from grpo_core.cli.recorded import print_recorded
from grpo_core.cli.rows import with_rows
from grpo_core.cli.run_config import read_eval_config
from grpo_core.cli.summary_table import print_summaries
from grpo_core.figures.summary import Summary
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import write_attempts
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.train.actor import Actor

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Hold the options of `grpo eval`, in the order of its help page."""

    env: Envs = None
    data: Data = None
    reward: Rewards = None
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="A finished run: its model, and its environments and settings "
            "unless others are named.",
            readable=False,
        ),
    ] = None
    model: Model = None
    tasks: Tasks = 128
    samples: Samples = 8
    level: Levels = None
    temperature: Temperature = None
    top_p: TopP = None
    stop: Stop = None
    max_new_tokens: MaxNewTokens = None
    seed: Seed = None
    device: Device = None
    dtype: Dtype = None
    settings: Settings = None
    attempts: Annotated[
        Path | None,
        typer.Option(
            "--attempts",
            help="Also write every rollout with its verdict to this JSONL file.",
            show_default=False,
        ),
    ] = None
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            help="With --run: print what the run measured itself, from its logs; "
            "nothing is sampled.",
        ),
    ] = False
    as_json: AsJson = False
    processes: Processes = None
    trust: Trust = False


@app.command(
    "eval",
    epilog="Example: grpo eval --env arithmetic --run runs/first --samples 8 --level 0 --level 0.2",
)
@takes(EvalOptions)
def evaluate(options: EvalOptions) -> None:
    """Measure a run or a model on held-out tasks.

    Prints pass@k, reward, best of k, majority of k, and every reward part, with standard errors by
    bootstrap over tasks. All runs are evaluated on the same tasks, so models can be compared.
    Ctrl-C finishes the rollouts that were started and prints what was measured. With --endpoint
    the model is behind a server: `grpo eval --endpoint URL --help` shows the options for it.
    """
    if options.recorded:
        print_recorded(options.run, as_json=options.as_json)
        return
    if options.run is not None and options.model is not None:
        raise ConfigError("--run and --model exclude each other; give one of them")
    _evaluate_here(options)


def _evaluate_here(options: EvalOptions) -> None:
    """Measure a model of this machine, and print the result.

    Raises:
        ConfigError: an option or a setting is wrong.
        typer.Exit: with the status of an interruption, if it was stopped.
    """
    # With several processes, the first one writes and prints.
    attempts = None if is_later_rank() else new_file(options.attempts, "--attempts")
    envs, settings = with_rows(
        options.env or [], options.data, options.reward or [], options.settings or []
    )
    config = read_eval_config(
        envs,
        options.run,
        settings_of(options),
        settings,
        trust=options.trust,
    )
    if to_start := processes_to_start(options.processes):
        launch(to_start, folder=None)

    def start_measuring(actor: Actor, progress: ShowProgress) -> Coroutine[Any, Any, list[Summary]]:
        from grpo_core.train.run.measure import measure

        return measure(
            actor,
            tasks=options.tasks,
            samples=options.samples,
            levels=options.level or [],
            params=config.sampling.params(config.eval.temperature),
            progress=progress,
            on_group=lambda group: None if attempts is None else write_attempts(attempts, group),
        )

    title = "sampling held-out tasks"
    measured = run_with_actor(config, Sources.of(config, {}), start_measuring, title=title)
    if not is_later_rank():
        _print_result(config.model.name, measured, as_json=options.as_json)
    measured.exit_if_stopped()


def _print_result(model: str, measured: ActorResult[list[Summary]], *, as_json: bool) -> None:
    summaries, seconds = measured.result, measured.seconds
    if as_json:
        results = [summary.to_json() for summary in summaries]
        print_json({"model": model, "seconds": round(seconds, 1), "results": results})
    else:
        print_summaries(model, summaries, seconds)
