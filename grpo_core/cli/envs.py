"""Implement `grpo envs`, `grpo env show` and `grpo env score`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_core.cli.output import (
    MESSAGE_LIMIT,
    QuickCommand,
    fail,
    print_columns,
    print_json,
    print_line,
    print_text,
    prints_to_stderr,
    remark,
)
from grpo_core.protocol.errors import ConfigError, GrpoError, UserError

if TYPE_CHECKING:
    from grpo_core.protocol.environment import Environment, Services
    from grpo_core.protocol.types import Task, TaskKey, Verdict
    from grpo_core.verify.sources import Sources

env_app = typer.Typer(no_args_is_help=True, help="Inspect, try, check or create an environment.")

Name = Annotated[
    str, typer.Argument(help="Name of the environment; `grpo envs` lists them.", show_default=False)
]
SplitOption = Annotated[
    Literal["train", "eval"],
    typer.Option("--split", help="Use a training task or a held-out task."),
]
Index = Annotated[int, typer.Option("--index", min=0, help="Number of the task within its split.")]
Seed = Annotated[
    int, typer.Option("--seed", help="Random seed of generated tasks; corresponds to a run's seed.")
]
Level = Annotated[
    float, typer.Option("--level", min=0.0, max=1.0, help="Difficulty, from 0 (easiest) to 1.")
]
Draw = Annotated[
    int,
    typer.Option("--draw", help="Random draw of hidden test inputs, as rollouts.jsonl records it."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="env.KEY=VALUE",
        help="Change a setting of the environment (or of judges., sandbox. or verify.); "
        "may be repeated.",
    ),
]
_USED_SECTIONS = ("env", "judges", "sandbox", "verify")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("envs", cls=QuickCommand, epilog="Example: grpo envs --json")(envs)
    env_app.command(
        "show", epilog="Example: grpo env show arithmetic --split eval --index 3 --reference"
    )(show)
    env_app.command(
        "score",
        epilog="Example: echo '<answer>4</answer>' | "
        "grpo env score arithmetic --index 3 --answer -",
    )(score)
    app.add_typer(env_app, name="env")


def envs(as_json: AsJson = False) -> None:
    """List the environments that can be trained on."""
    from grpo_core.plugins.host import PluginHost

    host = PluginHost()
    offers = host.specs("environment")
    rows = [
        {
            "name": offer.spec.name,
            "distribution": offer.plugin.distribution,
            "version": offer.plugin.version,
            "summary": next(iter((offer.spec.summary or "").strip().splitlines()), ""),
            "extra": offer.spec.extra,
        }
        for offer in offers
    ]
    if as_json:
        print_json(rows)
    else:
        _print_environments(rows)
    if host.failures:
        remark(
            f"{len(host.failures)} of the installed plugins cannot be used; "
            "`grpo plugins` says why."
        )


def _print_environments(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print_line(
            "No environment is installed. An environment is a pip package: "
            "pip install grpo-env-NAME"
        )
        return
    titles = ("environment", "distribution", "about")
    print_columns(
        titles,
        [(row["name"], f"{row['distribution']} {row['version']}", row["summary"]) for row in rows],
    )


def show(
    name: Name,
    split: SplitOption = "train",
    index: Index = 0,
    seed: Seed = 0,
    level: Level = 0.0,
    reference: Annotated[
        bool, typer.Option("--reference", help="Also print an answer that passes.")
    ] = False,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Print the prompt of one task."""
    import asyncio

    from grpo_core.protocol.types import TaskKey

    with prints_to_stderr():
        env_name, sources = open_environment(name, settings or [])
        key = check_index(
            sources[env_name].env,
            TaskKey(env=env_name, split=split, index=index, seed=seed, level=level),
        )
        task, answer = asyncio.run(_make_task(sources, key, reference=reference))
    if as_json:
        prompt = (
            task.prompt
            if isinstance(task.prompt, str)
            else [dataclasses.asdict(message) for message in task.prompt]
        )
        print_json(
            {"key": dataclasses.asdict(task.key), "prompt": prompt}
            | ({"reference": answer} if reference else {})
        )
        return
    print_prompt(task)
    if reference:
        print_reference(answer)


def print_prompt(task: Task[Any]) -> None:
    """Print the prompt of a task, message by message."""
    if isinstance(task.prompt, str):
        print_turn("text", task.prompt)
        return
    for message in task.prompt:
        print_turn(message.role, message.content)


def print_reference(answer: str | None) -> None:
    """Print the reference answer of a task, or that there is none."""
    print_turn(
        "reference", "(this environment has no reference answer)" if answer is None else answer
    )


def print_turn(role: str, content: str) -> None:
    """Print a message below its role."""
    print_line(f"[{role}]", bold=True)
    print_text(content)


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

    Exits with 0 whatever the score is, and with 1 if the answer could not be judged.
    """
    import asyncio

    from grpo_core.protocol.types import TaskKey

    text = _read_answer(answer)
    with prints_to_stderr():
        env_name, sources = open_environment(name, settings or [])
        key = check_index(
            sources[env_name].env,
            TaskKey(env=env_name, split=split, index=index, seed=seed, level=level),
        )
        verdict = asyncio.run(_score(sources, key, draw=draw, text=text))
        paths = (
            [] if pictures is None else _draw_pictures(sources[env_name].env, key, text, pictures)
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


def _draw_pictures(
    environment: Environment[Any], key: TaskKey, text: str, folder: Path
) -> Sequence[Path]:
    """Let the environment draw an answer into a folder, and return the paths of the pictures.

    Raises:
        UserError: the folder cannot be written.
        GrpoError: the environment raises an error.
    """
    from grpo_core.protocol.types import Rollout

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


async def _make_task(
    sources: Sources, key: TaskKey, *, reference: bool
) -> tuple[Task[Any], str | None]:
    """Return a task, and its reference answer if `reference` is true."""
    async with sources:
        (task,) = await sources.tasks([key])
        return task, await sources[key.env].verifier.reference(task) if reference else None


async def _score(sources: Sources, key: TaskKey, *, draw: int, text: str) -> Verdict:
    """Return the verdict on the answer `text` to a task."""
    from grpo_core.protocol.types import Rollout

    async with sources:
        tasks = await sources.tasks([key], draw)
        ((verdict,),) = await sources.verify(tasks, [[Rollout.of(text)]])
    return verdict


def _without_seconds(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict without its timings, so that the same answer prints the same JSON."""
    return verdict | {
        "rewards": {
            name: {k: v for k, v in part.items() if k != "seconds"}
            for name, part in verdict["rewards"].items()
        }
    }


def print_verdict(verdict: Verdict) -> None:
    """Print the reward parts, the total and the extracted answer of a verdict."""
    for name, reward in verdict.rewards.items():
        print_text(
            f"{name:<20} {reward.value:>8.4g}  x {reward.weight:<6.4g} {reward.note}".rstrip(),
            limit=MESSAGE_LIMIT,
        )
    print_line(
        f"{'total':<20} {verdict.total:>8.4g}  {'passed' if verdict.passed else 'not passed'}",
        bold=True,
    )
    print_text(
        f"{'answer':<20} {'(none found)' if verdict.answer is None else verdict.answer}",
        limit=MESSAGE_LIMIT,
    )


def open_environment(
    name: str,
    settings: Sequence[str],
    *,
    services_for: Callable[[type[Environment[Any]]], Services] | None = None,
) -> tuple[str, Sources]:
    """Open an environment with the verification engine of a run: same deadlines, same errors.

    Args:
        name: the environment.
        settings: the values of --set.
        services_for: returns the services for an environment class; None to open those that the
            settings name.

    Returns:
        The environment's name in task keys, and its sources.

    Raises:
        ConfigError: a setting is wrong or would not be used.
    """
    from grpo_core.cli.training import read_config
    from grpo_core.verify.sources import Sources

    refuse_other_settings(_USED_SECTIONS, settings)
    sources = Sources.of(read_config([name], [], {}, settings), {}, lend=services_for)
    return next(iter(sources)).name, sources


def refuse_other_settings(sections: Sequence[str], settings: Sequence[str]) -> None:
    """Refuse settings of other sections, which would be read but not used.

    Args:
        sections: the sections that the command uses.
        settings: the values of --set.

    Raises:
        ConfigError: a setting is not in one of the sections.
    """
    for text in settings:
        if text.partition(".")[0] not in sections:
            raise ConfigError(
                f"--set changes settings of {', '.join(sections)} here, "
                f"as in --set env.digits=2; found {text!r}"
            )


def check_index(environment: Environment[Any], key: TaskKey) -> TaskKey:
    """Return the key if its task exists.

    Raises:
        UserError: the index is not below the size of the split.
    """
    from grpo_core.verify.checks import size_of

    size = size_of(environment, key.split)
    if size is not None and key.index >= size:
        raise UserError(
            f"--index {key.index} is too large: the {key.split} split of {key.env!r} "
            f"holds {size} tasks, numbered from 0"
        )
    return key


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
