"""`grpo export`: what a run leaves for other programs: its good attempts as examples, its model in one piece."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grpo_core.cli.options import Trust
from grpo_core.cli.output import new_file, remark
from grpo_core.protocol.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from grpo_core.report.export import Choice
    from grpo_core.runs.folder import RunFolder


def register(app: typer.Typer) -> None:
    app.command(
        "export",
        epilog="Example: grpo export runs/first --rollouts good.jsonl && grpo sft --data good.jsonl",
    )(export)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.", readable=False, show_default=False)],
    rollouts: Annotated[
        Path | None,
        typer.Option(
            "--rollouts",
            help="JSONL file for its good attempts, for `grpo sft --data`.",
            show_default=False,
        ),
    ] = None,
    min_reward: Annotated[
        float | None,
        typer.Option(
            "--min-reward",
            help="Take attempts with at least this reward. [default: those that passed]",
        ),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            "--best", min=1, help="Take at most so many of each task, the best. [default: all]"
        ),
    ] = None,
    split: Annotated[
        Literal["train", "eval", "all"],
        typer.Option(
            "--split",
            help="Of training tasks, held-out ones (for looking, not for training) or both.",
        ),
    ] = "train",
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            help="Folder for the model with its adapter added, loadable by transformers.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        typer.Option("--dtype", help="Type of those weights. [default: the run's]"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="NAME",
            help="An environment that may have changed since; may be repeated.",
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Write the attempts of a run that are worth learning from (rejection sampling), or its merged weights."""
    from grpo_core.report.export import Choice
    from grpo_core.runs.folder import RunFolder

    if rollouts is None and weights is None:
        raise ConfigError("say what to export: --rollouts FILE.jsonl, --weights FOLDER or both")
    opened = RunFolder.open(run)
    rollouts = new_file(rollouts, "--rollouts")
    weights = new_file(weights, "--weights")
    if weights is not None and not opened.finished:
        raise ConfigError(
            f"the run {run} is not finished (it has no final/); continue it with grpo run --resume {run}"
        )
    if rollouts is not None:
        _write_examples(
            opened,
            rollouts,
            Choice(min_reward, best, None if split == "all" else split),
            allow or [],
            trust=trust,
        )
    if weights is not None:
        _write_weights(opened, weights, dtype)


def _write_examples(
    opened: RunFolder, path: Path, choice: Choice, allow: Collection[str], *, trust: bool
) -> None:
    import asyncio

    from grpo_core.calls.printable import printable_json
    from grpo_core.config.overrides import build_config
    from grpo_core.extract import is_text
    from grpo_core.plugins.services import fingerprint
    from grpo_core.report.export import choose, examples
    from grpo_core.runs.atomic import write_whole
    from grpo_core.runs.lines import writing
    from grpo_core.runs.trust import require_trust
    from grpo_core.train.run.resume import refuse_changed_environments
    from grpo_core.verify.sources import Sources

    stored = opened.config()
    require_trust(opened.path, stored, used={**stored, "model": {}}, trust=trust)
    chosen = choose(opened.rollout_lines(), choice)
    if not chosen:
        raise ConfigError(
            f"no attempt in {opened.path} fits; nothing was written. Lower --min-reward, or look at `--split all`"
        )
    sources = Sources.of(build_config([stored]), {})
    # The log holds no prompts: they are made again from their keys, which only the same environment can do.
    found = {source.name: fingerprint(source.env) for source in sources}
    refuse_changed_environments(stored["provenance"]["environments"], found, allowed=allow)

    async def prompts() -> list[str]:
        async with sources:
            tasks = await sources.tasks(list(chosen))
        return [
            json.dumps(example, ensure_ascii=False) for example in examples(chosen.values(), tasks)
        ]

    found_lines = asyncio.run(prompts())
    lines = [printable_json(line) for line in found_lines if is_text(line)]
    if len(lines) < len(found_lines):
        remark(
            f"{len(found_lines) - len(lines)} attempts hold half of a surrogate pair, which is no text, and are left out"
        )
    with writing(path, then="export again"):
        write_whole(path, "".join(f"{line}\n" for line in lines))
    remark(f"{len(lines)} examples of {len(chosen)} tasks are in {path}")


def _write_weights(opened: RunFolder, path: Path, dtype: str | None) -> None:
    try:
        from grpo_core.train.models.merging import save_merged
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "grpo export --weights", "train", package=error.name or ""
        ) from None
    save_merged(opened.path / "final", path, dtype=dtype or opened.config()["model"]["dtype"])
    remark(f"the model is in {path}")
