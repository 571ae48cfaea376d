"""Implement `grpo rescore`, which judges the saved rollouts of a run again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from grpo_core import ConfigError, UnknownNameError
from grpo_core.api.calls import PrintableConsole
from grpo_core.api.plugins import PluginHost
from grpo_core.api.runs import JsonObject, RunFolder, append_line
from grpo_core.api.settings import RunConfig, split_setting
from grpo_core.api.verify import Sources
from grpo_core.cli.given import takes
from grpo_core.cli.options import Settings, Trust
from grpo_core.cli.output import new_file, print_json, print_line, prints_to_stderr, remark
from grpo_core.cli.progress import progress_bar
from grpo_core.cli.run_config import read_rescore_config
from grpo_report.rescoring import Rescored, rescore, reweighed, splits_turns

app = typer.Typer()
_CHANGES = {
    "passes": "passes now",
    "fails": "fails now",
    "total": "has another reward",
    "parts": "has other parts, and the same reward",
    "error": "cannot be judged now",
    "scored": "can be judged now",
}
"""What may have changed, in words."""
_SHOWN = 10
"""How many changed verdicts are listed."""


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """Hold the options of `grpo rescore`, in the order of its help page."""

    run: Annotated[Path, typer.Argument(help="Folder of the run.", show_default=False)]
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Environment that judges in place of the run's, such as a new version of it in "
            "a file; it gets the run's task keys.",
            show_default=False,
        ),
    ] = None
    settings: Settings = None
    step: Annotated[
        list[int] | None,
        typer.Option(
            "--step", help="Only the rollouts of this step; may be repeated.", show_default=False
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Also write both verdicts of every rollout to this JSONL file.",
            show_default=False,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False
    trust: Trust = False


@app.command("rescore", epilog="Example: grpo rescore runs/first --set weights.format=0.1")
@takes(RescoreOptions)
def rescore_run(options: RescoreOptions) -> None:
    """Judge the saved rollouts of a run again, and list which verdicts changed.

    With new settings, a new version of the environment, or the same ones: then equal verdicts show
    that the log and the verifier agree. If only weights of parts are set, the recorded parts are
    weighted anew and nothing is judged. Exits with 0 whatever has changed.
    """
    folder = RunFolder.open(options.run)
    record = folder.config()
    config = read_rescore_config(
        options.run,
        [options.env] if options.env else [],
        options.settings or [],
        trust=options.trust,
    )
    host = PluginHost()
    out = new_file(options.out, "--out")
    lines = list(folder.rollout_lines(options.step))
    if not lines:
        which = " of these steps" if options.step else ""
        raise ConfigError(
            f"the run {options.run} has no saved rollouts{which} (rollouts.jsonl); there is "
            "nothing to judge"
        )
    if all("texts_left_out" in line for line in lines):
        raise ConfigError(
            f"the run {options.run} logged no completions (log.rollouts=none), so they cannot be "
            "judged again; train with log.rollouts=sample or all"
        )
    if (
        options.env is None
        and options.settings
        and all(_is_weight(text) for text in options.settings)
    ):
        pairs = list(reweighed(lines, _checked_weights(config, host, lines)))
    else:
        with prints_to_stderr():
            names = {} if options.env is None else _names(record, host, options.env, lines)
            sources = Sources.of(config, {}, host=host, names=names)
            pairs = _judge(lines, sources, is_split=splits_turns(record))
    if out is not None:
        for pair in pairs:
            append_line(out, json.dumps(pair.to_json(), default=str))
    summary = _summary(pairs, left_out=len(lines) - len(pairs))
    if options.as_json:
        print_json(summary)
    else:
        _print(options.run, pairs, summary)


def _names(
    record: JsonObject, host: PluginHost, env: str, lines: Sequence[JsonObject]
) -> dict[str, str]:
    """Return the name in the run's task keys of the environment that judges in its place.

    Raises:
        ConfigError: the run has several environments.
    """
    own = list(record["mixture"] or [record["environment"]])
    if len(own) != 1:
        raise ConfigError(
            f"the run has the environments {', '.join(own)}, so --env does not say which of them "
            f"{env} replaces; change their settings by --set mixture.NAME.env..."
        )
    return {host.get("environment", env).name: lines[0]["key"]["env"]}


def _is_weight(setting: str) -> bool:
    """Return whether a setting is the weight of a part."""
    name = split_setting(setting)[0]
    parts = name.split(".")
    return parts[0] == "weights" or (parts[0] == "mixture" and parts[2:3] == ["weights"])


def _checked_weights(
    config: RunConfig, host: PluginHost, lines: Sequence[JsonObject]
) -> dict[str, dict[str, float]]:
    """Return the weights of parts that the config sets, by environment.

    Raises:
        UnknownNameError: the recorded verdicts have no such part.
    """
    weights = {
        host.get("environment", name).name: dict(member.weights)
        for name, member in config.members().items()
    }
    for env, own in weights.items():
        parts = {
            part
            for line in lines
            if line["key"]["env"] == env
            for part in line["verdict"]["rewards"]
        }
        for name in own:
            if name not in parts:
                hint = f"The verdicts have {', '.join(sorted(parts))}."
                raise UnknownNameError("reward part", name, sorted(parts), hint=hint)
    return weights


def _judge(lines: Sequence[JsonObject], sources: Sources, *, is_split: bool) -> list[Rescored]:
    """Return the rollouts that could be judged again, with a progress bar on stderr."""

    async def run(update: Any) -> list[Rescored]:
        async with sources:
            judged: AsyncIterator[Rescored] = rescore(
                lines,
                sources,
                is_split=is_split,
                progress=lambda done: update(completed=done, total=len(lines)),
            )
            async with aclosing(judged):  # type: ignore[type-var]
                return [pair async for pair in judged]

    with progress_bar("judging", MofNCompleteColumn(), TimeRemainingColumn()) as update:
        return asyncio.run(run(update))


def _summary(pairs: Sequence[Rescored], *, left_out: int) -> dict[str, Any]:
    """Return the counts of changes, and the means before and after over what is scored in both."""
    both = [pair for pair in pairs if pair.before.scored and pair.after.scored]
    counts = Counter(pair.change for pair in pairs)
    return {
        "rollouts": len(pairs),
        "left_out": left_out,
        "changed": len(pairs) - counts[""],
        "changes": {name: counts[name] for name in _CHANGES if counts[name]},
        "reward": _means([(pair.before.total, pair.after.total) for pair in both]),
        "pass_rate": _means([(pair.before.passed, pair.after.passed) for pair in both]),
    }


def _means(pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    """Return the mean before and after."""
    if not pairs:
        return None
    return [fmean(before for before, _ in pairs), fmean(after for _, after in pairs)]


def _print(run: Path, pairs: Sequence[Rescored], summary: dict[str, Any]) -> None:
    table = Table("", "before", "now", title=f"{run}: {len(pairs)} rollouts", title_justify="left")
    for title, name in (("mean reward", "reward"), ("pass rate", "pass_rate")):
        if (means := summary[name]) is not None:
            table.add_row(title, *(f"{mean:.4f}" for mean in means))
    PrintableConsole().print(table)
    if not summary["changed"]:
        print_line("no verdict has changed")
    for name, count in summary["changes"].items():
        print_line(f"{count:6} {_CHANGES[name]}")
    changed = [pair for pair in pairs if pair.change]
    for pair in changed[:_SHOWN]:
        print_line(f"  {_line(pair)}")
    if len(changed) > _SHOWN:
        print_line(f"  and {len(changed) - _SHOWN} more (--out FILE writes all)")
    if summary["left_out"]:
        remark(
            f"{summary['left_out']} rollouts were left out: their dialogues failed, their "
            "environment is not among these, or the log does not hold what the agent returned"
        )


def _line(pair: Rescored) -> str:
    key = pair.key
    before, after = (
        f"{verdict.total:.4g}{' passed' if verdict.passed else ''}"
        if verdict.scored
        else f"error: {verdict.error}"
        for verdict in (pair.before, pair.after)
    )
    return (
        f"step {pair.step}, {key.env} {key.split} {key.index}, attempt {pair.attempt}: "
        f"{before} -> {after} ({_CHANGES[pair.change]})"
    )
