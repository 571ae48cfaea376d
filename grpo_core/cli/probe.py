"""Implement `grpo env probe`, which tells whether a model can be trained on an environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from grpo_core.cli.environment import AsJson, Name
from grpo_core.cli.measuring import run_with_actor
from grpo_core.cli.options import Device, Dtype, MaxNewTokens, Model, Seed, Settings
from grpo_core.cli.output import INTERRUPTED, print_json, print_line, remark
from grpo_core.cli.run_config import environments
from grpo_core.cli.screen import console
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, nested, parse_setting
from grpo_core.protocol.errors import ConfigError
from grpo_core.report.probe import Bin, LevelReport, Quantiles, Report, Sampled, Terms, probe_report
from grpo_core.verify.sources import Source, Sources

if TYPE_CHECKING:
    from grpo_core.train.actor import Actor

app = typer.Typer()

LEVELS = (0.0, 0.5, 1.0)
"""The levels that are probed by default."""
_BAR_WIDTH = 8
_BAR_HEIGHTS = "▁▂▃▄▅▆▇█"


@app.command(epilog="Example: grpo env probe arithmetic --model smollm2-135m --level 0 --level 0.2")
def probe(
    name: Name,
    model: Model = None,
    tasks: Annotated[
        int,
        typer.Option(
            "--tasks",
            min=2,
            help="Training tasks per level, the first ones of a run.",
        ),
    ] = 32,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", min=2, help="Completions per task; also the largest k of pass@k."
        ),
    ] = 8,
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
    count. Ctrl-C prints the statistics of what was sampled so far.
    """
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

    def start_probing(
        actor: Actor, progress: Callable[[int, int], None]
    ) -> Coroutine[Any, Any, list[Sampled]]:
        from grpo_core.train.run.probing import probe as sample

        return sample(actor, tasks=tasks, samples=samples, levels=levels, progress=progress)

    actor, sampled = run_with_actor(config, sources, start_probing, title="sampling training tasks")
    report = _make_report(sampled, config, source, budget=actor.budgets[source.name].turn)
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
        _print_report(
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
    given = {key: value for key, value in options.items() if value is not None}
    fixed = {"kl": {"beta": 0.0}, "eval": {"tasks": 0, "also": []}, "verify": {"cache": "off"}}
    return build_config([environments([name]), nested(given), *map(parse_setting, settings), fixed])


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


def _make_report(
    sampled: Sequence[Sampled], config: RunConfig, source: Source, *, budget: int
) -> Report:
    """Return the report on the sampled groups; `budget` is the token budget of a turn."""
    terms = Terms(
        parts=tuple(source.env.parts),
        budget=budget,
        open_ended=source.env.open_ended,
        window=(config.curriculum.low, config.curriculum.high),
        max_error_rate=config.verify.max_error_rate,
    )
    return probe_report(sampled, terms)


def _print_report(report: Report, title: str, seconds: float) -> None:
    print_line(title, bold=True)
    table = Table("")
    for level in report.levels:
        table.add_column(f"level {level.level:g}", no_wrap=True)
    columns = [list(_cells(level)) for level in report.levels]
    row_keys = dict.fromkeys(row_key for column in columns for row_key, _ in column)
    for section in ("shares", "means", "rewards"):
        for row_key in (row_key for row_key in row_keys if row_key[0] == section):
            cells = [dict(column).get(row_key, "") for column in columns]
            if any(cells):
                table.add_row(row_key[1], *cells)
        table.add_section()
    console().print(table)
    print_line(
        "mixed: shares of tasks; verifier: wall clock of single verdicts, one at a time; "
        f"{seconds:.0f} s in all"
    )
    _print_conclusion(report)


def _print_conclusion(report: Report) -> None:
    if report.trainable:
        size = (
            "(none that was tried mixes half of the groups)"
            if report.group_size is None
            else str(report.group_size)
        )
        budget = (
            "" if report.max_new_tokens is None else f", max_new_tokens {report.max_new_tokens}"
        )
        print_line(f"suggested: level {report.level:g}, group_size {size}{budget}")
    conclusion, colour = ("trainable", "green") if report.trainable else ("untrainable", "red")
    print_line(f": {report.reason}", lead=conclusion, bold=True, fg=colour)


def _cells(level: LevelReport) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield ((section, row), text) for each cell in the table column of a level."""
    for k, probability in level.pass_at.items():
        yield ("shares", f"pass@{k}"), _bar(probability)
    for name, share in (
        ("mixed in passing", level.mixed_passed),
        ("mixed in reward", level.mixed_reward),
        ("no answer", level.unparsed),
        ("cut off", level.clipped),
        ("not judged", level.unscored),
    ):
        yield ("shares", name), "" if share is None else _bar(share)
    yield ("means", "trainable"), "yes" if level.trainable else "no"
    yield ("means", "tasks, attempts"), f"{level.tasks}, {level.attempts}"
    yield ("means", "tokens p50, p99"), _format_quantiles(level.tokens, ".0f")
    yield (
        ("means", "verifier ms p50, p99"),
        _format_quantiles(level.verify_seconds, ".1f", scale=1000),
    )
    yield ("means", "mean reward"), "" if level.reward is None else f"{level.reward:.3f}"
    for part, value in level.parts.items():
        yield ("means", f"part {part}"), f"{_sparkline(level.part_histograms[part])} {value:.3f}"
    for reward_bin in level.histogram:
        yield (
            ("rewards", f"reward {reward_bin.low:.3g} .. {reward_bin.high:.3g}"),
            _bar(reward_bin.share) if reward_bin.share else "",
        )


def _sparkline(histogram: Sequence[Bin]) -> str:
    """Return one character per bin, from the lowest value to the highest; a dot if it is empty."""
    heights = len(_BAR_HEIGHTS)
    return "".join(
        _BAR_HEIGHTS[min(heights - 1, int(value_bin.share * heights))] if value_bin.share else "·"
        for value_bin in histogram
    )


def _bar(share: float) -> str:
    """Return a horizontal bar and the share as a percentage."""
    return f"{_blocks(share)} {share:4.0%}"


def _blocks(share: float) -> str:
    return f"{'█' * round(_BAR_WIDTH * min(1.0, max(0.0, share))):<{_BAR_WIDTH}}"


def _format_quantiles(quantiles: Quantiles | None, spec: str, *, scale: float = 1) -> str:
    """Return "MEDIAN, P99", each times `scale` in the given format, or "" if there are none."""
    if quantiles is None:
        return ""
    return f"{quantiles.median * scale:{spec}}, {quantiles.p99 * scale:{spec}}"
