"""Search for shortcuts in an environment: `grpo env probe --shortcuts`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from grpo_core import ConfigError
from grpo_core.api.calls import StopRequest, stoppable, wait_for
from grpo_core.api.protocol import Split
from grpo_core.api.verify import Source, Sources
from grpo_core.cli.environment import open_environment
from grpo_core.cli.output import print_json, prints_to_stderr, remark
from grpo_core.cli.progress import progress_bar
from grpo_kit.commands.shortcuts_table import print_hunts
from grpo_kit.shortcuts.hunt import HuntPlan, hunt
from grpo_kit.shortcuts.tried import LevelHunt

TASKS = 200
"""Tasks per level on which the best strategies are judged."""
FOUND = 1
"""The exit status if a shortcut was found."""
BLIND = 3
"""The exit status if no verdict could be obtained."""


def refuse_model_options(options: Mapping[str, object]) -> None:
    """Refuse options that only sampling a model has a use for.

    Args:
        options: the values, by the option's name; None where one was not given.

    Raises:
        ConfigError: one was given.
    """
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            f"--shortcuts asks no model, so {', '.join(given)} would not be used; remove it"
        )


def search(
    name: str,
    settings: Sequence[str],
    *,
    choose_levels: Callable[[Source], Sequence[float]],
    tasks: int,
    split: Split,
    seed: int,
    as_json: bool,
) -> NoReturn:
    """Search for shortcuts at each level, and print those that pay.

    Args:
        name: the environment.
        settings: the values of --set.
        choose_levels: returns the levels to try.
        tasks: tasks per level.
        split: the split of the tasks.
        seed: the random seed of generated tasks.
        as_json: whether JSON is printed.

    Raises:
        typer.Exit: with 0 if no shortcut was found, 1 if one was, 3 if there was no verdict, and
            with 128 plus the signal's number if it was stopped.
    """
    started = time.monotonic()
    env_name, sources = open_environment(name, settings)
    levels = choose_levels(sources[env_name])
    plans = [HuntPlan(env_name, tasks, split, seed, level) for level in levels]
    stop = StopRequest()
    with prints_to_stderr(), stoppable(stop, "finishing the answers that are being judged") as end:
        hunts = wait_for(_hunt(sources, plans, stop))
    seconds = round(time.monotonic() - started, 1)
    if as_json:
        print_json(
            {
                "environment": env_name,
                "split": split,
                "seed": seed,
                "seconds": seconds,
                "found": any(level.found for level in hunts),
                "levels": [level.to_json() for level in hunts],
            }
        )
    else:
        print_hunts(hunts, env_name, split, seconds)
    if stop.is_made:
        remark("stopped before everything was judged; this is what was judged until then")
        raise typer.Exit(end.status)
    if hunts and not any(level.attempts > level.errors for level in hunts):
        raise typer.Exit(BLIND)
    raise typer.Exit(FOUND if any(level.found for level in hunts) else 0)


async def _hunt(sources: Sources, plans: Sequence[HuntPlan], stop: StopRequest) -> list[LevelHunt]:
    """Return what strategies got at each level, with a progress bar on stderr."""
    hunts = list[LevelHunt]()
    async with sources:
        for plan in plans:
            title = f"trying shortcuts at level {plan.level:g}"
            columns: tuple[Any, ...] = (MofNCompleteColumn(), TimeRemainingColumn())
            with progress_bar(title, *columns) as update:
                hunts.append(
                    await hunt(
                        sources[plan.name].verifier,
                        plan,
                        progress=lambda done, total: update(completed=done, total=total),
                        stop=stop,
                    )
                )
            if stop.is_made:
                break
    return hunts
