"""Implement `grpo env card`, which describes an environment on one page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from grpo_core import ConfigError, Services, UserError
from grpo_core.api.calls import plain_markdown
from grpo_core.api.figures import Floor
from grpo_core.api.verify import Card, Sources, make_card
from grpo_core.cli.environment import (
    Level,
    Name,
    Seed,
    Settings,
    open_environment,
    tool_lines,
    turns,
)
from grpo_core.cli.options import AsJson, Rewards
from grpo_core.cli.output import (
    MESSAGE_LIMIT,
    print_columns,
    print_json,
    print_line,
    print_text,
    prints_to_stderr,
)
from grpo_core.cli.progress import progress_bar
from grpo_core.cli.rows import with_rewards
from grpo_kit.probing.card_floors import measured

app = typer.Typer()

_FLOOR_TITLES = ("answer", "mean reward", "passed", "tasks", "note")
_PROMPT_LINES = (15, 10)
"""How many lines of a long prompt to print from its start, and from its end with the question."""


@app.command(epilog="Example: grpo env card arithmetic --tasks 50 --markdown > arithmetic.md")
def card(
    name: Name,
    tasks: Annotated[
        int,
        typer.Option(
            "--tasks",
            min=0,
            help="Number of training tasks on which the floors are measured; 0 omits the floors.",
        ),
    ] = 20,
    level: Level = 0.0,
    seed: Seed = 0,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a repository or a paper.")
    ] = False,
    as_json: AsJson = False,
    reward: Rewards = None,
    settings: Settings = None,
) -> None:
    """Print the description of an environment and its reward floors.

    The floors are the rewards that the verifier gives to answers that ignore the task. If a sandbox
    or a judge is missing, they are not measured, and the rest is printed.
    """
    if markdown and as_json:
        raise ConfigError("--markdown and --json exclude each other; give one of them")
    with prints_to_stderr():
        env_name, sources, missing = _open_with_available_services(
            name, with_rewards(reward, settings)
        )
        env_card = asyncio.run(
            _make_card(sources, env_name, tasks=tasks, seed=seed, level=level, missing=missing)
        )
    if as_json:
        print_json(env_card.to_json())
    elif markdown:
        print_text(_to_markdown(env_card))
    else:
        _print_card(env_card)


def _open_with_available_services(name: str, settings: Sequence[str]) -> tuple[str, Sources, str]:
    """Open an environment, without its services if one of them is missing.

    Returns:
        The environment's name in task keys, its sources, and why a service is missing, or "".
    """
    try:
        return (*open_environment(name, settings), "")
    except UserError as error:
        # Without services the second call fails again, unless the error was about a service.
        return (
            *open_environment(name, settings, services_for=lambda *_: Services()),
            str(error),
        )


async def _make_card(
    sources: Sources, name: str, *, tasks: int, seed: int, level: float, missing: str
) -> Card:
    """Return the card of an environment, with the floors unless a service is missing.

    Args:
        sources: the opened environment.
        name: the environment's name in task keys.
        tasks: training tasks on which the floors are measured; 0 for no floors.
        seed: random seed of generated tasks.
        level: difficulty of the tasks, from 0 to 1.
        missing: why a service is missing, or "".
    """
    async with sources:
        unmeasured_card = await make_card(sources[name], seed=seed, level=level)
        if missing or not tasks:
            return replace(unmeasured_card, unmeasured=missing or "--tasks is 0")
        with progress_bar("scoring answers that ignore the task") as update:
            return await measured(
                unmeasured_card, sources, tasks=tasks, tried=lambda: update(advance=1)
            )


def _print_card(card: Card) -> None:
    print_line(f"{card.name}  {card.summary}".rstrip(), limit=MESSAGE_LIMIT, bold=True)
    for label, value in _facts(card):
        print_text(f"{label:<14} {value}", limit=MESSAGE_LIMIT)
    print_line()
    print_text(f"{_format_prompt(card)}\n")
    if card.floors:
        print_columns(_FLOOR_TITLES, [_floor_row(floor) for floor in card.floors])
    else:
        print_line(f"floors: not measured: {card.unmeasured}", limit=MESSAGE_LIMIT)


def _facts(card: Card) -> list[tuple[str, str]]:
    """Return the (label, value) lines of the card."""
    low, high = card.reward_range
    distribution = (
        ["not packaged"]
        if card.origin is None
        else [
            f"{card.origin.distribution} {card.origin.version}",
            card.origin.license or "no licence stated",
            card.origin.home_page or "no home page stated",
        ]
    )
    return [
        *([("about", card.about)] if card.about else []),
        ("distribution", ", ".join(distribution)),
        ("fingerprint", card.fingerprint),
        (
            "settings",
            ", ".join(f"{key}={value!r}" for key, value in card.settings.items()) or "none",
        ),
        ("reward parts", ", ".join(f"{name} x {weight:g}" for name, weight in card.parts.items())),
        ("total", f"{low:g} .. {high:g}, the worst answer gets {card.floor:g}"),
        (
            "declares",
            ", ".join(
                [
                    *(f"{flag}={'yes' if on else 'no'}" for flag, on in card.flags.items()),
                    *([f"tolerance={card.tolerance:g}"] if card.tolerance else []),
                    *([f"answer_at={card.answer_at}"] if card.answer_at else []),
                ]
            ),
        ),
        *(("waived", f"{check}: {reason}") for check, reason in card.waived.items()),
        ("needs", ", ".join(card.needs) or "nothing"),
        (
            "tasks",
            ", ".join(
                f"{split} {'without end' if size is None else size}"
                for split, size in card.tasks.items()
            ),
        ),
        *(("tool", line) for line in tool_lines(card.tools)),
        ("turns", f"{card.turns}, of at most {card.max_new_tokens} tokens each"),
        *_episode_lines(card),
        ("deadline", f"{card.timeout_seconds:g} s for each verdict"),
    ]


def _episode_lines(card: Card) -> list[tuple[str, str]]:
    """Return what a card says of attempts with state; nothing where there are none."""
    if not card.episodes:
        return []
    replay = (
        "can be judged again from a log" if card.replayable else "are judged only by themselves"
    )
    return [("episodes", f"attempts have state, and {replay}")]


def _floor_row(floor: Floor) -> tuple[str, ...]:
    """Return the table cells of a floor, one for each of `_FLOOR_TITLES`."""
    if floor.reward is None or floor.pass_rate is None:
        return (floor.answer, "", "", "0", floor.note)
    unscored = f"{floor.unscored} could not be judged" if floor.unscored else ""
    note = "; ".join(filter(None, [floor.note, unscored]))
    return (floor.answer, f"{floor.reward:.3f}", f"{floor.pass_rate:.0%}", str(floor.tasks), note)


def _to_markdown(card: Card) -> str:
    """Return the card as a Markdown page."""
    prompt = _format_prompt(card)
    fence = "```"
    while fence in prompt:
        fence += "`"
    parts = [
        f"# {plain_markdown(card.name)}",
        plain_markdown(card.summary),
        _markdown_table(("", ""), _facts(card)),
        "## First prompt",
        f"{fence}text\n{prompt}\n{fence}",
        "## Rewards of answers that ignore the task",
        _markdown_table(_FLOOR_TITLES, [_floor_row(floor) for floor in card.floors])
        if card.floors
        else f"Not measured: {plain_markdown(card.unmeasured)}",
    ]
    return "\n\n".join(filter(None, parts))


def _format_prompt(card: Card) -> str:
    """Return the first prompt; of a long one only the first and last lines."""
    lines = [
        line
        for role, content in turns(card.prompt)
        for line in (f"[{role}]", *content.splitlines())
    ]
    omitted = len(lines) - sum(_PROMPT_LINES)
    if omitted > 0:
        first, last = _PROMPT_LINES
        lines = [
            *lines[:first],
            f"... {omitted} lines that `grpo env show {card.name}` prints ...",
            *lines[-last:],
        ]
    return "\n".join(lines)


def _markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        "| " + " | ".join(plain_markdown(" ".join(cell.split())) for cell in line) + " |"
        for line in lines
    )
