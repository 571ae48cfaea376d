"""Implement `grpo env score`, which scores one answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_core.cli.environment import (
    AsJson,
    Index,
    Level,
    Name,
    Seed,
    Settings,
    SplitOption,
    open_task,
    print_verdict,
)
from grpo_core.cli.output import fail, print_json, prints_to_stderr, remark
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError, UserError
from grpo_core.protocol.types import Rollout, TaskKey, Verdict
from grpo_core.verify.sources import Sources

app = typer.Typer()

Draw = Annotated[
    int,
    typer.Option("--draw", help="Random draw of hidden test inputs, as rollouts.jsonl records it."),
]


@app.command(
    epilog="Example: echo '<answer>4</answer>' | grpo env score arithmetic --index 3 --answer -"
)
def score(
    name: Name,
    answer: Annotated[
        str,
        typer.Option(
            "--answer",
            metavar="FILE_OR_-",
            help="File with the completion to score; - reads it from stdin.",
            show_default=False,
        ),
    ],
    split: SplitOption = "train",
    index: Index = 0,
    seed: Seed = 0,
    level: Level = 0.0,
    draw: Draw = 0,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            metavar="DIR",
            help="Folder for pictures of what the answer does, if the environment can draw them.",
        ),
    ] = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Score one answer to one task.

    In a dialogue it is the only turn; `grpo env play` holds a dialogue, also with a file as stdin.
    Exits with 0 whatever the score is, and with 1 if the answer could not be judged.
    """
    text = _read_answer(answer)
    with prints_to_stderr():
        sources, key = open_task(name, settings or [], split, index, seed, level)
        verdict = asyncio.run(_score(sources, key, draw=draw, text=text))
        paths = (
            [] if pictures is None else _draw_pictures(sources[key.env].env, key, text, pictures)
        )
    if as_json:
        print_json(_without_seconds(verdict.to_json()))
    elif verdict.scored:
        print_verdict(verdict)
    if pictures is not None:
        remark(
            f"pictures: {', '.join(map(str, paths))}"
            if paths
            else "this environment draws no picture of this answer"
        )
    if not verdict.scored:
        fail(f"the answer could not be judged: {verdict.error}", status=1)


def _read_answer(source: str) -> str:
    """Return the content of a text file, or of stdin if `source` is "-".

    Raises:
        UserError: it cannot be read.
    """
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--answer {source!r} cannot be read: {error}; name a text file, or - for stdin"
        ) from None


async def _score(sources: Sources, key: TaskKey, *, draw: int, text: str) -> Verdict:
    """Return the verdict on the answer `text` to a task."""
    async with sources:
        ((verdict,),) = await sources.verify(await sources.tasks([key], draw), [[Rollout.of(text)]])
    return verdict


def _draw_pictures(
    environment: Environment[Any], key: TaskKey, text: str, folder: Path
) -> Sequence[Path]:
    """Let the environment draw an answer into a folder, and return the paths of the pictures.

    Raises:
        UserError: the folder cannot be written.
        GrpoError: the environment raises an error.
    """
    try:
        return environment.render(environment.task(key), Rollout.of(text), folder)
    except OSError as error:
        raise UserError(
            f"the pictures cannot be written to {folder}: {error.strerror or error}; "
            "name another folder"
        ) from None
    except GrpoError:
        raise
    except Exception as error:
        raise GrpoError(
            f"the environment cannot draw this answer: {type(error).__name__}: {error}"
        ) from error


def _without_seconds(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict without its timings, so that the same answer prints the same JSON."""
    return verdict | {
        "rewards": {
            name: {k: v for k, v in part.items() if k != "seconds"}
            for name, part in verdict["rewards"].items()
        }
    }
