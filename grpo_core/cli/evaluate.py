"""Implement `grpo eval`, which samples a run or a model several times on each held-out task."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_core.cli.endpoint_options import (
    Cache,
    Concurrency,
    EndpointUrl,
    KeyEnv,
    ModelName,
    OutFolder,
    PerMinute,
    PriceIn,
    PriceOut,
    RequestFields,
    Retries,
    Timeout,
)
from grpo_core.cli.evaluate_endpoint import evaluate_endpoint
from grpo_core.cli.given import Sets, by_flag, settings_of, takes
from grpo_core.cli.launching import is_later_rank, launch, processes_to_start
from grpo_core.cli.measuring import ActorResult, ShowProgress, run_with_actor
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
from grpo_core.cli.output import new_file, print_json
from grpo_core.cli.recorded import print_recorded
from grpo_core.cli.run_config import read_eval_config
from grpo_core.cli.summary_table import print_summaries
from grpo_core.figures.summary import Summary
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import write_attempts
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.train.actor import Actor

app = typer.Typer()


_AT_ENDPOINT = (
    *("--model-name", "--key-env", "--out", "--concurrency", "--per-minute", "--timeout"),
    *("--retries", "--price-in", "--price-out", "--cache", "--request"),
)
"""The options for a model behind an endpoint."""
_ON_THIS_MACHINE = (
    *("--run", "--model", "--device", "--dtype", "--processes", "--attempts", "--recorded"),
)
"""The options for a model on this machine."""


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Hold the options of `grpo eval`, in the order of its help page."""

    env: Envs = None
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
    tasks: Annotated[
        int,
        typer.Option("--tasks", min=1, help="Held-out tasks of each environment at each level."),
    ] = 128
    samples: Annotated[
        int,
        typer.Option(
            "--samples", min=1, help="Completions per task; also the largest k of pass@k."
        ),
    ] = 8
    level: Annotated[
        list[float] | None,
        typer.Option(
            "--level",
            min=0.0,
            max=1.0,
            help="Difficulty, from 0 to 1; may be repeated. \\[default: 0, or the run's]",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.0,
            help="Sampling temperature; 0 is greedy. \\[default: 1, or the run's]",
        ),
        Sets("eval.temperature"),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            min=0.0,
            max=1.0,
            help="Draw from the most likely tokens with this much probability. "
            "\\[default: 1, or the run's]",
        ),
        Sets("sampling.top_p"),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", metavar="TEXT", help="A text that ends a completion; may be repeated."
        ),
        Sets("sampling.stop"),
    ] = None
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False
    processes: Processes = None
    trust: Trust = False
    endpoint: EndpointUrl = None
    model_name: ModelName = None
    key_env: KeyEnv = None
    out: OutFolder = None
    concurrency: Concurrency = None
    per_minute: PerMinute = None
    timeout: Timeout = None
    retries: Retries = None
    price_in: PriceIn = None
    price_out: PriceOut = None
    cache: Cache = None
    request: RequestFields = None


@app.command(
    "eval",
    epilog="Example: grpo eval --env arithmetic --run runs/first --samples 8 --level 0 --level 0.2",
)
@takes(EvalOptions)
def evaluate(options: EvalOptions) -> None:
    """Measure a run or a model on held-out tasks.

    Prints pass@k, reward, best of k, majority of k, and every reward part, with standard errors by
    bootstrap over tasks. All runs are evaluated on the same tasks, so models can be compared.
    Ctrl-C finishes the rollouts that were started and prints what was measured. With --endpoint the
    model is behind a server, and the evaluation can be continued.
    """
    _refuse_number_of_tasks(options.settings or [])
    at_endpoint = by_flag(options, _AT_ENDPOINT)
    if options.endpoint is not None:
        _refuse_given(
            by_flag(options, _ON_THIS_MACHINE),
            "is for a model on this machine, and the one at --endpoint is elsewhere; remove it",
        )
        evaluate_endpoint(
            options.endpoint,
            at_endpoint,
            envs=options.env or [],
            options=settings_of(options),
            settings=options.settings or [],
            attempts={
                "tasks": options.tasks,
                "samples": options.samples,
                "levels": options.level or (),
            },
            as_json=options.as_json,
        )
        return
    _refuse_given(
        at_endpoint, "is for a model behind an endpoint; add --endpoint URL, or remove it"
    )
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
    config = read_eval_config(
        options.env or [],
        options.run,
        settings_of(options),
        options.settings or [],
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


def _refuse_given(options: Mapping[str, object], why: str) -> None:
    """Raise ConfigError for the first option that the command line has.

    Args:
        options: the values by the options' names; None where it is not given.
        why: what the message says of it.
    """
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} {why}")


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


def _print_result(model: str, measured: ActorResult[list[Summary]], *, as_json: bool) -> None:
    summaries, seconds = measured.result, measured.seconds
    if as_json:
        results = [summary.to_json() for summary in summaries]
        print_json({"model": model, "seconds": round(seconds, 1), "results": results})
    else:
        print_summaries(model, summaries, seconds)
