"""`grpo env probe`: whether an environment can be trained on with a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_core.cli.envs import AsJson, Name
from grpo_core.cli.measuring import with_trainer
from grpo_core.cli.options import Device, Dtype, MaxNewTokens, Model, Seed, Settings
from grpo_core.cli.output import INTERRUPTED, console, print_json, print_line, remark
from grpo_core.protocol.errors import ConfigError

if TYPE_CHECKING:
    from grpo_core.config.config import RunConfig
    from grpo_core.report.probe import Bin, LevelReport, Quantiles, Report, Sampled
    from grpo_core.train.trainer import Trainer
    from grpo_core.verify.sources import Source

LEVELS = (0.0, 0.5, 1.0)
_BAR = 8
_HEIGHTS = "▁▂▃▄▅▆▇█"


def register(app: typer.Typer) -> None:
    app.command(
        "probe",
        epilog="Example: grpo env probe arithmetic --model smollm2-135m --level 0 --level 0.2",
    )(probe)


def probe(
    name: Name,
    model: Model = None,
    tasks: Annotated[
        int,
        typer.Option(
            "--tasks",
            min=2,
            help="Training tasks at each level, those that a run would begin with.",
        ),
    ] = 32,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", min=2, help="Attempts at each task: pass@k is known up to that k."
        ),
    ] = 8,
    level: Annotated[
        list[float] | None,
        typer.Option(
            "--level",
            min=0.0,
            max=1.0,
            help="Difficulty, from 0 to 1; may be repeated. [default: 0, 0.5 and 1]",
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="Of the attempts. [default: 1]")
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say whether an environment can be trained on with a model, and at which level, group size and token budget.

    Samples several attempts at some training tasks, level by level. Status 0: trainable at a probed level; 1: at none. An environment is
    untrainable where under 5 % of tasks have an attempt that passes, or one that fails, or attempts with different rewards; if it is
    open-ended, only the last counts. Ctrl-C prints what was sampled so far.
    """
    from grpo_core.verify.sources import Sources

    options = {
        "model.name": model,
        "sampling.max_new_tokens": max_new_tokens,
        "sampling.temperature": temperature,
        "seed": seed,
        "model.device": device,
        "model.dtype": dtype,
    }
    config = _config(name, options, settings or [])
    sources = Sources.of(config, {})
    (source,) = sources
    started = time.monotonic()
    levels = _levels(source, level or [])

    def probing(
        trainer: Trainer, progress: Callable[[int, int], None]
    ) -> Coroutine[Any, Any, list[Sampled]]:
        from grpo_core.train.probing import probe as sample

        return sample(trainer, tasks=tasks, samples=samples, levels=levels, progress=progress)

    trainer, sampled = with_trainer(config, sources, probing, title="attempting training tasks")
    found = _report(sampled, config, source, budget=trainer.budgets[source.name].turn)
    seconds = round(time.monotonic() - started, 1)
    if as_json:
        print_json(
            {
                "environment": source.name,
                "model": config.model.name,
                "samples": samples,
                "seconds": seconds,
                **found.to_json(),
            }
        )
    else:
        _print(
            found,
            f"{config.model.name}: {samples} attempts at each training task of {source.name}",
            seconds,
        )
    if trainer.stop_requested:
        remark("stopped before all tasks were done; these are the statistics of those that were")
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(0 if found.trainable else 1)


def _config(name: str, options: dict[str, Any], settings: Sequence[str]) -> RunConfig:
    """Nothing is trained or evaluated, so neither a reference nor held-out tasks are needed. Verdicts are timed, so none is kept."""
    from grpo_core.cli.training import environments
    from grpo_core.config.overrides import build_config, nested, parse_setting

    given = {key: value for key, value in options.items() if value is not None}
    own = {"kl": {"beta": 0.0}, "eval": {"tasks": 0, "also": []}, "verify": {"cache": "off"}}
    return build_config([environments([name]), nested(given), *map(parse_setting, settings), own])


def _levels(source: Source, asked: Sequence[float]) -> Sequence[float]:
    if source.env.levels:
        return list(dict.fromkeys(asked)) or LEVELS
    if asked:
        raise ConfigError(f"the environment {source.name!r} has no levels; leave --level away")
    return (source.level,)


def _report(
    sampled: Sequence[Sampled], config: RunConfig, source: Source, *, budget: int
) -> Report:
    from grpo_core.report.probe import Terms, probe_report

    terms = Terms(
        parts=tuple(source.env.parts),
        budget=budget,
        open_ended=source.env.open_ended,
        window=(config.curriculum.low, config.curriculum.high),
        max_error_rate=config.verify.max_error_rate,
    )
    return probe_report(sampled, terms)


def _print(found: Report, title: str, seconds: float) -> None:
    from rich.table import Table

    print_line(title, bold=True)
    table = Table("")
    for level in found.levels:
        table.add_column(f"level {level.level:g}", no_wrap=True)
    columns = [list(_cells(level)) for level in found.levels]
    names = dict.fromkeys(name for column in columns for name, _ in column)
    for section in ("shares", "means", "rewards"):
        for name in (name for name in names if name[0] == section):
            cells = [dict(column).get(name, "") for column in columns]
            if any(cells):
                table.add_row(name[1], *cells)
        table.add_section()
    console().print(table)
    print_line(
        f"mixed: shares of tasks; verifier: wall clock of single verdicts, one at a time; {seconds:.0f} s in all"
    )
    _print_verdict(found)


def _print_verdict(found: Report) -> None:
    if found.trainable:
        size = (
            "(none that was tried mixes half of the groups)"
            if found.group_size is None
            else str(found.group_size)
        )
        budget = "" if found.max_new_tokens is None else f", max_new_tokens {found.max_new_tokens}"
        print_line(f"suggested: level {found.level:g}, group_size {size}{budget}")
    verdict, colour = ("trainable", "green") if found.trainable else ("untrainable", "red")
    print_line(f": {found.reason}", lead=verdict, bold=True, fg=colour)


def _cells(level: LevelReport) -> Iterator[tuple[tuple[str, str], str]]:
    """What stands in the column of a level, by section and row."""
    for k, chance in level.pass_at.items():
        yield ("shares", f"pass@{k}"), _bar(chance)
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
    yield ("means", "tokens p50, p99"), _two(level.tokens, ".0f")
    yield ("means", "verifier ms p50, p99"), _two(level.verify_seconds, ".1f", scale=1000)
    yield ("means", "mean reward"), "" if level.reward is None else f"{level.reward:.3f}"
    for part, value in level.parts.items():
        yield ("means", f"part {part}"), f"{_outline(level.part_histograms[part])} {value:.3f}"
    for each in level.histogram:
        yield (
            ("rewards", f"reward {each.low:.3g} .. {each.high:.3g}"),
            _bar(each.share) if each.share else "",
        )


def _outline(histogram: Sequence[Bin]) -> str:
    """The shape of a histogram, from its lowest value to its highest; a dot where there is nothing."""
    return "".join(
        "·" if not each.share else _HEIGHTS[min(len(_HEIGHTS) - 1, int(each.share * len(_HEIGHTS)))]
        for each in histogram
    )


def _bar(share: float) -> str:
    return f"{_blocks(share)} {share:4.0%}"


def _blocks(share: float) -> str:
    return f"{'█' * round(_BAR * min(1.0, max(0.0, share))):<{_BAR}}"


def _two(found: Quantiles | None, form: str, *, scale: float = 1) -> str:
    return "" if found is None else f"{found.median * scale:{form}}, {found.p99 * scale:{form}}"
