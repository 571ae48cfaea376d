"""Implement `grpo env score`, which scores one answer."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_core import Environment, GrpoError, Message, Rollout, Task, TaskKey, UserError, Verdict
from grpo_core.api.runs import split_older_turns
from grpo_core.api.verify import ReplayError, Sources, check_replayable, compare_messages, play
from grpo_core.cli.environment import (
    Index,
    Level,
    Name,
    Seed,
    Settings,
    SplitOption,
    open_task,
    print_detail,
    print_verdict,
)
from grpo_core.cli.options import AsJson, Rewards
from grpo_core.cli.output import environment_output, fail, print_json, remark
from grpo_core.cli.rows import with_rewards
from grpo_core.config.user_files import decode_text, user_text
from grpo_core.words import cut, last_text
from grpo_kit.commands.recorded_answers import is_turn, read_dialogue, read_recorded

app = typer.Typer()
PROMPT_LIMIT = 300
"""The most characters that are shown of the last message of a task."""

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
            help="File with the completion to score, with a dialogue as JSON lines, one message "
            "with role and content in each, or with a line of rollouts.jsonl of an agent; - reads "
            "it from stdin.",
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
    reward: Rewards = None,
    settings: Settings = None,
) -> None:
    """Score one answer to one task.

    A dialogue as JSON lines is played again: what the environment says must be what the file says.
    Any other text is the policy's only turn; `grpo env play` holds a dialogue. An agent is run, and
    hears the last turn again if it goes on to ask; with a line of rollouts.jsonl, what it returned
    then is judged. Exits with 0 whatever the score is, and with 1 if the answer could not be
    judged.
    """
    text = _read_answer(answer)
    with environment_output():
        sources, key = open_task(name, with_rewards(reward, settings), split, index, seed, level)
        task, verdict = asyncio.run(_score(sources, key, draw=draw, text=text))
        env = sources[key.env].env
        paths = [] if pictures is None else _draw_pictures(env, key, text, pictures)
    if not as_json:
        remark(f"task {key.index}: {cut(last_text(task), PROMPT_LIMIT)!r}")
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
        if not as_json:
            print_detail(verdict)
        fail(f"the answer could not be judged: {verdict.error}", status=1)


def _read_answer(source: str) -> str:
    """Return the content of a text file, or of stdin if `source` is "-".

    Line ends of Windows become line feeds, as in what a model writes.

    Raises:
        UserError: it cannot be read.
    """
    holds, name = "a text file (or - for stdin)", f"--answer {source!r}"
    if source != "-" and not os.path.lexists(source):
        raise UserError(
            f"{name} cannot be read: there is no such file; name {holds}. To score this text: "
            f"echo {shlex.quote(source)} | grpo env score NAME --answer -"
        )
    text = (
        decode_text(sys.stdin.buffer.read(), name=name, holds=holds)
        if source == "-"
        else user_text(Path(source), holds=holds, name=name)
    )
    return text.replace("\r\n", "\n").replace("\r", "\n")


async def _score(
    sources: Sources, key: TaskKey, *, draw: int, text: str
) -> tuple[Task[Any], Verdict]:
    """Return a task and the verdict on an answer to it: a text, or a dialogue as JSON lines."""
    async with sources:
        (task,) = await sources.tasks([key], draw)
        source = sources[key.env]
        recorded = read_recorded(text, key) if source.verifier.has_agents else None
        messages = read_dialogue(text) if source.env.max_turns > 1 else None
        is_played = source.verifier.has_episodes or source.verifier.has_agents
        if recorded is not None or (messages is None and not is_played):
            ((verdict,),) = await sources.verify([task], [[recorded or Rollout.of(text)]])
            return task, verdict
        if messages is None:
            return task, await _played(sources, task, [text])
        try:
            check_replayable(source.env)
            return task, await _played(sources, task, messages)
        except ReplayError as error:
            return task, Verdict.failed(str(error))


async def _played(
    sources: Sources, task: Task[Any], script: Sequence[str] | Sequence[Message]
) -> Verdict:
    """Play the policy's turns and return the verdict.

    Args:
        sources: the environment.
        task: the task.
        script: the turns, or all messages of a dialogue.

    Raises:
        ReplayError: the environment says something else than in the dialogue.
    """
    recorded: Sequence[Message] = [item for item in script if isinstance(item, Message)]
    recorded = split_older_turns(recorded)
    turns = [item for item in recorded if is_turn(item)]
    turns += [Message.turn(item) for item in script if isinstance(item, str)]
    source = sources[task.key.env]
    played = await play(sources, task, turns, max_turns=source.env.max_turns, judge=True)
    assert played.verdict is not None
    said: Sequence[Message] = played.rollout.messages
    if source.verifier.has_agents:  # whose calls are apart from the text of a turn
        said, recorded = _without_turns(said), _without_turns(recorded)
    if recorded and played.verdict.scored:
        compare_messages(said, recorded)
    return played.verdict


def _without_turns(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if not is_turn(message)]


def _draw_pictures(
    environment: Environment[Any], key: TaskKey, text: str, folder: Path
) -> Sequence[Path]:
    """Have the environment render an answer into a folder, and return the paths of the pictures.

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
