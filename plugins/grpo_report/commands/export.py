"""Implement `grpo export`: a run's good rollouts as examples, its merged model, or an upload."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grpo_core import ConfigError, TaskKey
from grpo_core.api.calls import printable_json
from grpo_core.api.runs import (
    Layer,
    RunFolder,
    checked_config,
    refuse_changed_environments,
    write_whole,
    writing,
)
from grpo_core.api.settings import RunConfig
from grpo_core.api.verify import Sources
from grpo_core.cli.given import takes
from grpo_core.cli.options import Trust
from grpo_core.cli.output import new_file, remark
from grpo_core.cli.run_config import finished_run
from grpo_core.extract import is_text
from grpo_core.plugins.services import fingerprint
from grpo_report.export import ExportChoice, Rewarded, choose, examples
from grpo_report.hub import check_push, push
from grpo_report.indexes.index import Filter, RolloutIndex
from grpo_report.inspect_log import write_inspect_log
from grpo_report.weights import write_gguf_file, write_weights

app = typer.Typer()
_USED = (
    *("environment", "mixture", "env", "eval"),
    *("verify", "sandbox", "judges", "endpoint"),
)
"""The sections and settings of a run with which its environments are opened."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Hold the options of `grpo export`, in the order of its help page."""

    run: Annotated[Path, typer.Argument(help="A run folder.", readable=False, show_default=False)]
    rollouts: Annotated[
        Path | None,
        typer.Option(
            "--rollouts",
            help="JSONL file for the run's good rollouts, for `grpo sft --data`.",
            show_default=False,
        ),
    ] = None
    min_reward: Annotated[
        float | None,
        typer.Option(
            "--min-reward",
            help="Export rollouts with at least this reward. \\[default: those that passed]",
        ),
    ] = None
    best: Annotated[
        int | None,
        typer.Option(
            "--best", min=1, help="Export only the N best rollouts per task. \\[default: all]"
        ),
    ] = None
    split: Annotated[
        Literal["train", "eval", "all"],
        typer.Option(
            "--split",
            help="Export rollouts of training tasks, of held-out tasks "
            "(to read, not to train on) or of both.",
        ),
    ] = "train"
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            help="Folder for the model with the adapter merged in, loadable by transformers.",
            show_default=False,
        ),
    ] = None
    gguf: Annotated[
        Path | None,
        typer.Option(
            "--gguf",
            help="GGUF file for the same model, which llama.cpp and Ollama run.",
            show_default=False,
        ),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option("--dtype", help="Data type of these weights; GGUF has no bfloat16 here."),
    ] = "float32"
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="REPO",
            help="Upload final/, or what --weights writes, to OWNER/NAME on the Hugging Face hub.",
            show_default=False,
        ),
    ] = None
    private: Annotated[
        bool,
        typer.Option("--private", help="Make a repository that does not exist yet private."),
    ] = False
    to: Annotated[
        Literal["inspect"] | None,
        typer.Option(
            "--to",
            help="Format of --log: inspect, for `inspect view` (extra `inspect`).",
            show_default=False,
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            help="File, NAME.eval or NAME.json, for all rollouts of --split, with their verdicts.",
            show_default=False,
        ),
    ] = None
    step: Annotated[
        list[int] | None,
        typer.Option(
            "--step",
            help="Only the rollouts of this step in --log; may be repeated.",
            show_default=False,
        ),
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="NAME",
            help="An environment that may have changed since the run; may be repeated.",
        ),
    ] = None
    trust: Trust = False


@app.command(
    epilog="Example: grpo export runs/first --rollouts good.jsonl && grpo sft --data good.jsonl"
)
@takes(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write the good rollouts of a run as examples (rejection sampling), or its merged weights.

    With --push, upload the adapter or the merged weights. With --to inspect, write the rollouts as
    a log that `inspect view` opens.
    """
    _check(options)
    opened = RunFolder.open(options.run)
    rollouts = new_file(options.rollouts, "--rollouts")
    weights = new_file(options.weights, "--weights")
    gguf_file = new_file(options.gguf, "--gguf")
    log = new_file(options.log, "--log")
    split = None if options.split == "all" else options.split
    if weights is not None or gguf_file is not None or options.push is not None:
        finished_run(options.run)
    if options.push is not None:
        check_push(options.push)
    if rollouts is not None:
        _write_examples(
            opened,
            rollouts,
            ExportChoice(options.min_reward, options.best, split),
            options.allow or [],
            trust=options.trust,
        )
    if weights is not None:
        write_weights(opened, weights, options.dtype)
    if options.push is not None:
        push(opened, weights, options.push, private=options.private)
    if gguf_file is not None:
        write_gguf_file(opened, gguf_file, options.dtype)
    if log is not None:
        _write_log(opened, log, split, options.step or [])


def _check(options: ExportOptions) -> None:
    """Raise ConfigError if the options do not say what to export, or exclude each other."""
    if not any((options.rollouts, options.weights, options.gguf, options.push, options.to)):
        raise ConfigError(
            "say what to export: --rollouts FILE.jsonl, --weights FOLDER, --gguf FILE.gguf, "
            "--push REPO or --to inspect"
        )
    if options.weights is not None and options.weights.suffix == ".gguf":
        raise ConfigError(
            f"--weights {options.weights} names a folder of safetensors; for a GGUF file give "
            f"--gguf {options.weights}"
        )
    if options.gguf is not None and options.dtype == "bfloat16":
        raise ConfigError("--gguf takes --dtype float32 or float16")
    if options.private and options.push is None:
        raise ConfigError("--private is for --push REPO; give both or none")
    if (options.to is None) != (options.log is None):
        raise ConfigError("--to inspect and --log FILE.eval go together; give both or none")


def _write_log(opened: RunFolder, path: Path, split: str | None, steps: Collection[int]) -> None:
    """Write the rollouts of a split, or of all, as a log of inspect-ai.

    Raises:
        ConfigError: there is no such rollout, or the log cannot be written.
    """
    with RolloutIndex.open(opened.path) as index:
        chosen = [
            group.id
            for group in index.groups(Filter(split=split), limit=-1)
            if not steps or group.step in steps
        ]
        if not chosen:
            raise ConfigError(
                f"no rollout in {opened.path} fits; nothing was written. Try --split all"
            )
        with writing(path, then="export again"):
            count = write_inspect_log(
                path,
                (index.read(group) for group in chosen),
                config=opened.config(),
                created=datetime.fromtimestamp((opened.path / "config.json").stat().st_mtime, UTC),
            )
    remark(f"{count} rollouts are in {path}; see them with: inspect view --log-dir {path.parent}")


def _write_examples(
    opened: RunFolder, path: Path, choice: ExportChoice, allow: Collection[str], *, trust: bool
) -> None:
    """Write the chosen rollouts of a run, with their prompts, to a JSONL file.

    Args:
        opened: the run folder.
        path: the file to write.
        choice: which rollouts are exported.
        allow: names of environments that may have changed since the run.
        trust: whether the command line has --trust.

    Raises:
        ConfigError: no rollout is chosen, the run is not trusted, or an environment has changed.
    """
    stored = opened.config()
    config = checked_config([Layer(stored, opened.path)], trust=trust, used=_USED)
    chosen = choose(opened.rollout_lines(), choice)
    if not chosen:
        raise ConfigError(
            f"no rollout in {opened.path} fits; nothing was written. "
            "Lower --min-reward, or try --split all"
        )
    all_lines = asyncio.run(_make_examples(_open_unchanged(config, stored, allow), chosen))
    lines = [printable_json(line) for line in all_lines if is_text(line)]
    if len(lines) < len(all_lines):
        remark(
            f"{len(all_lines) - len(lines)} rollouts hold half of a surrogate pair, "
            "which is not valid text, and are left out"
        )
    with writing(path, then="export again"):
        write_whole(path, "".join(f"{line}\n" for line in lines))
    remark(f"{len(lines)} examples of {len(chosen)} tasks are in {path}")


def _open_unchanged(
    config: RunConfig, stored: Mapping[str, Any], allow: Collection[str]
) -> Sources:
    """Return the sources of a run.

    Prompts are made again from the task keys, as logs of older versions hold none; that gives the
    same prompts only if the environment is unchanged.

    Args:
        config: the settings of the run.
        stored: the same as they were recorded, with the provenance.
        allow: names of environments that may have changed since the run.

    Raises:
        ConfigError: an environment has changed.
    """
    sources = Sources.of(config, {})
    refuse_changed_environments(
        stored["provenance"]["environments"],
        {source.name: fingerprint(source.env) for source in sources},
        allowed=allow,
    )
    return sources


async def _make_examples(
    sources: Sources, chosen: Mapping[TaskKey, Sequence[Rewarded]]
) -> list[str]:
    """Return the chosen rollouts with their prompts, each as a line of JSON."""
    async with sources:
        tasks = await sources.tasks(list(chosen))
    return [json.dumps(example, ensure_ascii=False) for example in examples(chosen.values(), tasks)]
