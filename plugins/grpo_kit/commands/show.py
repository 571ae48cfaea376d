"""Implement `grpo env show`, which prints one task."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Any

import typer

from grpo_core import Task, TaskKey
from grpo_core.api.verify import Sources, described_tools
from grpo_core.cli.environment import (
    Index,
    Level,
    Name,
    Seed,
    Settings,
    SplitOption,
    open_task,
    print_prompt,
    print_reference,
    print_tools,
)
from grpo_core.cli.options import AsJson, Rewards
from grpo_core.cli.output import environment_output, print_json
from grpo_core.cli.rows import with_rewards

app = typer.Typer()


@app.command(epilog="Example: grpo env show arithmetic --split eval --index 3 --reference")
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
    reward: Rewards = None,
    settings: Settings = None,
) -> None:
    """Print the prompt of one task, and the tools that the policy may call."""
    with environment_output():
        sources, key = open_task(name, with_rewards(reward, settings), split, index, seed, level)
        tools = described_tools(sources[key.env].env)
        task, answer = asyncio.run(_make_task(sources, key, reference=reference))
    if as_json:
        prompt = (
            task.prompt
            if isinstance(task.prompt, str)
            else [message.to_json() for message in task.prompt]
        )
        print_json(
            {"key": dataclasses.asdict(task.key), "prompt": prompt}
            | ({"tools": tools} if tools else {})
            | ({"reference": answer} if reference else {})
        )
        return
    print_prompt(task)
    print_tools(tools)
    if reference:
        print_reference(answer)


async def _make_task(
    sources: Sources, key: TaskKey, *, reference: bool
) -> tuple[Task[Any], str | tuple[str, ...] | None]:
    """Return a task, and its reference answer if `reference` is true."""
    async with sources:
        (task,) = await sources.tasks([key])
        return task, await sources[key.env].verifier.reference(task) if reference else None
