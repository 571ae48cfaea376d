"""Implement `grpo env probe`, which tells whether a model can be trained on an environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_core.cli.environment import AsJson, Name
from grpo_core.cli.measuring import run_with_actor
from grpo_core.cli.options import Device, Dtype, MaxNewTokens, Model, Seed, Settings
from grpo_core.cli.output import INTERRUPTED, print_json, remark
from grpo_core.cli.probe_table import print_report
from grpo_core.cli.run_config import environments, given
from grpo_core.cli.shortcuts import TASKS as SHORTCUT_TASKS
from grpo_core.cli.shortcuts import refuse_model_options, search
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, nested, parse_setting
from grpo_core.figures.summary import Sampled
from grpo_core.protocol.errors import ConfigError
from grpo_core.report.probe import Terms, cut_off_warnings, probe_report
from grpo_core.runs.observer import Observer
from grpo_core.verify.sources import Source, Sources

if TYPE_CHECKING:
    from grpo_core.train.actor import Actor

app = typer.Typer()

LEVELS = (0.0, 0.5, 1.0)
"""The levels that are probed by default."""
TASKS = 32
SAMPLES = 8


@app.command(epilog="Example: grpo env probe arithmetic --model smollm2-135m --level 0 --level 0.2")
def probe(
    name: Name,
    model: Model = None,
    shortcuts: Annotated[
        bool,
        typer.Option(
            "--shortcuts",
            help="Ask no model: try short wrong answers, and show those that earn most.",
        ),
    ] = False,
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            min=2,
            help="Tasks per level, the first ones of a run. \\[default: 32, with --shortcuts 200]",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            min=2,
            help="Completions per task; also the largest k of pass@k. \\[default: 8]",
        ),
    ] = None,
    split: Annotated[
        Literal["train", "eval"] | None,
        typer.Option(
            "--split",
            help="With --shortcuts: training or held-out tasks. \\[default: train]",
        ),
    ] = None,
    level: Annotated[
        list[float] | None,
        typer.Option(
            "--level",
            min=0.0,
            max=1.0,
            help="Difficulty, from 0 to 1; may be repeated. \\[default: 0, 0.5 and 1]",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Sampling temperature. \\[default: 1]"),
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
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
    if shortcuts:
        refuse_model_options(
            {
                "--model": model,
                "--samples": samples,
                "--temperature": temperature,
                "--max-new-tokens": max_new_tokens,
                "--device": device,
                "--dtype": dtype,
            }
        )
        search(
            name,
            settings or [],
            choose_levels=lambda source: _choose_levels(source, level or []),
            tasks=tasks or SHORTCUT_TASKS,
            split=split or "train",
            seed=seed or 0,
            as_json=as_json,
        )
    if split is not None:
        raise ConfigError("--split is used by --shortcuts alone, and training tasks are probed")
    tasks, samples = tasks or TASKS, samples or SAMPLES
    options = {
        "model.name": model,
        "sampling.max_new_tokens": max_new_tokens,
        "sampling.temperature": temperature,
        "seed": seed,
        "model.device": device,
        "model.dtype": dtype,
    }
    config = _read_config(name, options, settings or [])
    sources = Sources.of(config, {})
    (source,) = sources
    started = time.monotonic()
    levels = _choose_levels(source, level or [])
    heard = _Warnings()
    actor, sampled = _sample(config, sources, levels, heard, tasks=tasks, samples=samples)
    budget = actor.budgets[source.name].turn
    report = probe_report(
        sampled,
        Terms(
            parts=tuple(source.env.parts),
            budget=budget,
            open_ended=source.env.open_ended,
            window=(config.curriculum.low, config.curriculum.high),
            max_error_rate=config.verify.max_error_rate,
        ),
    )
    report = replace(
        report, warnings=(*dict.fromkeys(heard.warnings), *cut_off_warnings(report.levels, budget))
    )
    seconds = round(time.monotonic() - started, 1)
    if as_json:
        print_json(
            {
                "environment": source.name,
                "model": config.model.name,
                "samples": samples,
                "seconds": seconds,
                **report.to_json(),
            }
        )
    else:
        print_report(
            report,
            f"{config.model.name}: {samples} attempts at each training task of {source.name}",
            seconds,
        )
    if actor.stop.is_made:
        remark("stopped before all tasks were done; these are the statistics of those that were")
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(0 if report.trainable else 1)


def _read_config(name: str, options: dict[str, Any], settings: Sequence[str]) -> RunConfig:
    """Return the config of the probe.

    Nothing is trained or evaluated, so it needs neither a reference policy nor held-out tasks.
    Verdicts are timed, so they are not cached.

    Args:
        name: the environment.
        options: the other options, by the dotted name of the setting that each stands for.
        settings: the values of --set.
    """
    fixed = {"kl": {"beta": 0.0}, "eval": {"tasks": 0, "also": []}, "verify": {"cache": "off"}}
    return build_config(
        [environments([name]), nested(given(options)), *map(parse_setting, settings), fixed]
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


class _Warnings(Observer):
    """Keeps what a run would warn of before its first step."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def _sample(
    config: RunConfig,
    sources: Sources,
    levels: Sequence[float],
    observer: Observer,
    *,
    tasks: int,
    samples: int,
) -> tuple[Actor, list[Sampled]]:
    """Sample the training tasks, and return the actor with the groups of each level.

    Args:
        config: the settings.
        sources: the sources of `config`.
        levels: the levels.
        observer: receives warnings.
        tasks: training tasks per level.
        samples: completions per task.
    """

    def start_probing(
        actor: Actor, progress: Callable[[int, int], None]
    ) -> Coroutine[Any, Any, list[Sampled]]:
        from grpo_core.train.run.measure import probe as sample

        return sample(
            actor, tasks=tasks, samples=samples, levels=levels, progress=progress, observer=observer
        )

    return run_with_actor(
        config, sources, start_probing, title="sampling training tasks", observer=observer
    )
