"""Implement `grpo env probe`, which tells whether a model can be trained on an environment."""

from __future__ import annotations

import shlex
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from grpo_core import ConfigError, build_config
from grpo_core.api.figures import Sampled
from grpo_core.api.settings import RunConfig, nested, parse_setting
from grpo_core.api.verify import Source, Sources
from grpo_core.cli.environment import Name
from grpo_core.cli.given import Sets, by_flag, settings_of, takes
from grpo_core.cli.measuring import ActorResult, Remarks, ShowProgress, run_with_actor
from grpo_core.cli.options import (
    AsJson,
    Device,
    Dtype,
    MaxNewTokens,
    Model,
    Rewards,
    Seed,
    Settings,
)
from grpo_core.cli.output import print_json
from grpo_core.cli.rows import with_rewards
from grpo_core.cli.run_config import environments
from grpo_kit.commands.probe_table import print_report
from grpo_kit.commands.shortcuts import TASKS as SHORTCUT_TASKS
from grpo_kit.commands.shortcuts import refuse_model_options, search
from grpo_kit.probing.probe import cut_off_warnings, probe_report
from grpo_kit.probing.probe_report import ProbeReport, Terms

if TYPE_CHECKING:
    from grpo_core.api.training import Actor

app = typer.Typer()

LEVELS = (0.0, 0.5, 1.0)
"""The levels that are probed by default."""
TASKS = 32
SAMPLES = 8


_OF_MODELS = ("--model", "--samples", "--temperature", "--max-new-tokens", "--device", "--dtype")
"""The options that only sampling a model has a use for."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Hold the options of `grpo env probe`, in the order of its help page."""

    name: Name
    model: Model = None
    shortcuts: Annotated[
        bool,
        typer.Option(
            "--shortcuts",
            help="Ask no model: try short wrong answers, and show those that earn most.",
        ),
    ] = False
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            min=2,
            help="Tasks per level, the first ones of a run. \\[default: 32, with --shortcuts 200]",
        ),
    ] = None
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            min=2,
            help="Completions per task; also the largest k of pass@k. \\[default: 8]",
        ),
    ] = None
    split: Annotated[
        Literal["train", "eval"] | None,
        typer.Option(
            "--split",
            help="With --shortcuts: training or held-out tasks. \\[default: train]",
        ),
    ] = None
    level: Annotated[
        list[float] | None,
        typer.Option(
            "--level",
            min=0.0,
            max=1.0,
            help="Difficulty, from 0 to 1; may be repeated. \\[default: 0, 0.5 and 1]",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Sampling temperature. \\[default: 1]"),
        Sets("sampling.temperature"),
    ] = None
    max_new_tokens: MaxNewTokens = None
    seed: Seed = None
    device: Device = None
    dtype: Dtype = None
    reward: Rewards = None
    settings: Settings = None
    as_json: AsJson = False


@app.command(epilog="Example: grpo env probe arithmetic --model smollm2-135m --level 0 --level 0.2")
@takes(ProbeOptions)
def probe(options: ProbeOptions) -> None:
    """Tell whether a model can be trained on an environment, and suggest the settings for it.

    Samples several completions of some training tasks, level by level, and suggests a level, a
    group size and a token budget. Exits with 0 if a probed level is trainable, and with 1 if none
    is. A level is untrainable if under 5 % of its tasks have a completion that passes, one that
    fails, or completions with different rewards; for an open-ended environment only the rewards
    count. It warns of what a run would warn of: answers that are cut off, a chat template without
    a place for tools. Ctrl-C prints the statistics of what was sampled so far.

    With --shortcuts it trains nothing and asks no model. It tries what a lazy policy could learn in
    place of the task: constants, parts and counts of the prompt, frequent references, short
    programs, and references with one mistake. Exits with 1 if one of them pays, with 0 if none of
    those that were tried does, and with 3 if nothing could be judged.
    """
    if options.shortcuts:
        refuse_model_options(by_flag(options, _OF_MODELS))
        search(
            options.name,
            with_rewards(options.reward, options.settings),
            choose_levels=lambda source: _choose_levels(source, options.level or []),
            tasks=options.tasks or SHORTCUT_TASKS,
            split=options.split or "train",
            seed=options.seed or 0,
            as_json=options.as_json,
        )
    if options.split is not None:
        raise ConfigError("--split is used by --shortcuts alone, and training tasks are probed")
    _probe_model(options)


def _probe_model(options: ProbeOptions) -> NoReturn:
    """Sample a model on training tasks, and print the report.

    Raises:
        ConfigError: an option or a setting is wrong.
        typer.Exit: with 0 if a level is trainable, with 1 if none is, and with the status of an
            interruption if it was stopped.
    """
    config = _read_config(options)
    sources = Sources.of(config, {})
    (source,) = sources
    levels = _choose_levels(source, options.level or [])
    samples = options.samples or SAMPLES
    heard = _Warnings()

    def start_probing(actor: Actor, progress: ShowProgress) -> Coroutine[Any, Any, list[Sampled]]:
        from grpo_core.api.training import probe as sample

        return sample(
            actor,
            tasks=options.tasks or TASKS,
            samples=samples,
            levels=levels,
            progress=progress,
            observer=heard,
        )

    title = "sampling training tasks"
    measured = run_with_actor(config, sources, start_probing, title=title, observer=heard)
    report = _report(config, source, measured, heard.warnings)
    model, seconds = config.model.name, round(measured.seconds, 1)
    if options.as_json:
        place = {"environment": source.name, "model": model, "samples": samples}
        print_json({**place, "seconds": seconds, **report.to_json()})
    else:
        what = f"{model}: {samples} attempts at each training task of {source.name}"
        print_report(report, what, seconds)
    measured.exit_if_stopped()
    raise typer.Exit(0 if report.trainable else 1)


def _report(
    config: RunConfig, source: Source, measured: ActorResult[list[Sampled]], warnings: Sequence[str]
) -> ProbeReport:
    """Return the report on what was sampled.

    Args:
        config: the settings.
        source: the environment.
        measured: the groups of each level, and the actor that sampled them.
        warnings: what a run would warn of before its first step.
    """
    budget = measured.actor.budgets[source.name].turn
    terms = Terms(
        parts=tuple(source.env.parts),
        budget=budget,
        environment=shlex.quote(next(iter(config.members()))),
        model=shlex.quote(config.model.name),
        has_levels=source.env.levels,
        open_ended=source.env.open_ended,
        window=(config.curriculum.low, config.curriculum.high),
        max_error_rate=config.verify.max_error_rate,
    )
    report = probe_report(measured.result, terms)
    warnings = (*dict.fromkeys(warnings), *cut_off_warnings(report.levels, budget))
    return replace(report, warnings=warnings)


def _read_config(options: ProbeOptions) -> RunConfig:
    """Return the config of the probe.

    Nothing is trained or evaluated, so it needs neither a reference policy nor held-out tasks.
    Verdicts are timed, so they are not cached.
    """
    fixed = {"kl": {"beta": 0.0}, "eval": {"tasks": 0, "also": []}, "verify": {"cache": "off"}}
    return build_config(
        [
            environments([options.name]),
            nested(settings_of(options)),
            *map(parse_setting, with_rewards(options.reward, options.settings)),
            fixed,
        ]
    )


def _choose_levels(source: Source, requested: Sequence[float]) -> Sequence[float]:
    """Return the levels to probe: the requested ones, or the default.

    Raises:
        ConfigError: a level is requested, and the environment has none.
    """
    if source.env.levels:
        return list(dict.fromkeys(requested)) or LEVELS
    if requested:
        raise ConfigError(f"the environment {source.name!r} has no levels; remove --level")
    return (source.level,)


class _Warnings(Remarks):
    """Keeps what a run would warn of before its first step."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)
