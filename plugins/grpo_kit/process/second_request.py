"""Make the request that tells the second process what to build and to do, as JSON data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grpo_core import Spec, Task
from grpo_core.api.verify import boot_message
from grpo_core.words import common_prefix
from grpo_core.words.hostile_texts import COMMANDS, EXECUTABLE, MARKER
from grpo_kit.answers.ordinary import ordinary_attempts
from grpo_kit.dialogues.players import PlayClock
from grpo_kit.dialogues.scripts import join_turns, split_turns, with_last_turn
from grpo_kit.dialogues.tool_calls import usable_tools
from grpo_kit.result import NotCheckedError
from grpo_kit.scaffold.recorded import UNSEEN, address, packed
from grpo_kit.subject import Attempt, Subject

_REFERENCE_SECONDS = 1.0
"""A reference that takes longer is not computed in the second process."""
_MOST_COMMANDS = 4
"""First words of turns behind which code is said."""
_MAX_WIDE_CHARACTERS = 4_000_000
"""Characters of the attempts at the wide sample."""
_FURTHER_SECONDS = 3.0
"""No further attempt at the wide sample is played to an agent after this time."""


async def make_request(subject: Subject, spec: Spec | None) -> dict[str, Any]:
    """Return the request; agents have no run in it.

    Args:
        subject: The environment with its tasks.
        spec: How the process finds the environment; None: by its class.

    Raises:
        ConfigError: Another process cannot build the environment.
    """
    attempts, wide = list[Attempt](), list[Attempt]()
    if not subject.services and not (subject.has_agents and subject.unavailable):
        attempts = ordinary_attempts(subject)[::-1]
        wide = [attempt for _, attempt in wide_attempts(subject)]
    recorded = await _recorded(subject, attempts, wide)
    if subject.has_agents:
        wide = wide[: max(0, len(recorded) - len(attempts) - 1)]
    return {
        "boot": boot_message(subject.env, spec, None if spec is None else subject.settings),
        "brief": False,
        "references": subject.reference_seconds < _REFERENCE_SECONDS
        and not subject.reference_error,
        "keys": [asdict(task.key) for task in compared_tasks(subject)],
        "attempts": addressed(attempts),
        "calls": addressed(_executable_calls(subject)),
        "executable": addressed(_executable_texts(subject)),
        "wide": addressed(wide),
        "form": [subject.answers.form.before, subject.answers.form.after],
        "recorded": recorded,
        "agents": None,
    }


async def _recorded(
    subject: Subject, attempts: Sequence[Attempt], further: Sequence[Attempt]
) -> list[list[Any]]:
    """Return attempts by agents with their rollouts.

    Args:
        subject: The environment.
        attempts: The attempts.
        further: More of them, of which as many are played as there is time for.
    """
    if not subject.has_agents or not attempts:
        return []
    form = subject.answers.form
    unseen = (attempts[0][0], f"{form.before}{UNSEEN}{form.after}")
    played = [(task, text, await subject.rollout(task, text)) for task, text in (*attempts, unseen)]
    clock = PlayClock(_FURTHER_SECONDS)
    for task, text in further:
        if clock.up:
            break
        played.append((task, text, await subject.rollout(task, text)))
    return packed(played)


def _executable_calls(subject: Subject) -> list[Attempt]:
    """Return calls of the environment's tools whose arguments are code."""
    if subject.services:
        return []
    try:
        tools = usable_tools(subject.env)
    except NotCheckedError:  # the subject of tool.form
        return []
    calls = [call for tool in tools for text in COMMANDS for call in tool.calls_with_text(text)]
    return [(task, call) for task in subject.tasks[:1] for call in calls]


def _executable_texts(subject: Subject) -> list[Attempt]:
    """Return attempts that are code; those for agents are said in runs of their own."""
    if subject.services or subject.has_agents:
        return []
    shared = (
        common_prefix(subject.answers.last_turns)
        if len(set(subject.answers.last_turns)) > 2
        else ""
    )
    alone = [
        (task, reply)
        for task in subject.tasks[:2]
        for text in EXECUTABLE
        for reply in dict.fromkeys([*subject.answers.reply_variants(text), f"{shared}{text}"])
    ]
    # a verifier may look at the beginning before it executes the rest
    behind = [
        (task, with_last_turn(text, f"{split_turns(text)[-1]}{mark} {MARKER}"))
        for task, text in subject.answered[:2]
        for mark in (";", " &&", "\n")
    ]
    return alone + behind + _executable_turns(subject)


def _executable_turns(subject: Subject) -> list[Attempt]:
    """Return dialogues whose first turn is code, alone and behind the first word of a reference.

    Nothing is replied to the last turn of a dialogue, so there is a second one.
    """
    if subject.env.max_turns < 2:
        return []
    words = dict.fromkeys([""])
    for _, text in subject.answered[:2]:
        for turn in split_turns(text)[:-1]:
            command, space, _ = turn.partition(" ")
            if space and "<" not in command:
                words[f"{command} "] = None
    return [
        (task, join_turns([f"{word}{code}", code]))
        for task in subject.tasks[:1]
        for word in list(words)[:_MOST_COMMANDS]
        for code in EXECUTABLE
    ]


def compared_tasks(subject: Subject) -> list[Task[Any]]:
    """Return the tasks that the second process makes: the few, and the wide sample."""
    few = list(reversed(subject.tasks))
    keys = {task.key for task in few}
    return [*few, *(task for task in subject.wide.tasks if task.key not in keys)]


def wide_attempts(subject: Subject) -> list[tuple[str, Attempt]]:
    """Return attempts at the wide sample with their kind: "reference", "other" or "empty"."""
    answered = subject.wide.answered
    empty = subject.answers.form.before + subject.answers.form.after
    attempts, characters = list[tuple[str, Attempt]](), 0
    for index, (task, text) in enumerate(answered):
        other = answered[(index + 1) % len(answered)][1]
        characters += len(text) + len(other)
        if characters > _MAX_WIDE_CHARACTERS:
            break
        attempts += [("reference", (task, text)), ("empty", (task, empty))]
        if other != text:
            attempts.append(("other", (task, other)))
    return attempts


def addressed(attempts: Sequence[Attempt]) -> list[list[Any]]:
    """Return attempts as the second process reads them."""
    return [[address(task), text] for task, text in attempts]
