"""Check what episodes pay for single turns, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core import Message, Task
from grpo_core.api.protocol import same_number
from grpo_core.api.verify import Player
from grpo_core.words import shorten
from grpo_kit.check import check
from grpo_kit.dialogues.episodes import MB, SECONDS, STALLING, require_episodes
from grpo_kit.dialogues.players import (
    PlayClock,
    affordable_turns,
    always,
    first_then,
    judged,
    limited,
)
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.dialogues.tool_calls import call_text
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import TOLERANCE, Subject, describe_verdict, task_label


@check(
    "episode.talk",
    "fault",
    asks=(
        "Do silence, endless talk, calls of unknown tools and 1 MB get a verdict at the end, "
        "and not pass?"
    ),
)
async def check_talk(subject: Subject) -> str:
    """Check that silence, endless talk, unknown tools and 1 MB get a verdict and do not pass."""
    require_episodes(subject)
    limit = affordable_turns(subject, dialogues=1, most=subject.env.max_turns)
    for task in subject.tasks[: subject.small_count]:
        for kind, player in _TALK.items():
            _, verdict = await judged(
                subject, task, player if limit == subject.env.max_turns else limited(player, limit)
            )
            if not verdict.scored or verdict.passed:
                raise BrokenPromiseError(
                    f"an episode in which the policy says {kind} {describe_verdict(verdict)} at "
                    f"{task_label(task)}; it must get a verdict, and not pass"
                )
    return f"{len(_TALK)} kinds of talk up to the last of {limit} turns get verdicts, and fail"


_TALK: Mapping[str, Player] = {
    "nothing, in every turn,": always(""),
    "the same word in every turn": always("banana"),
    "a call of a tool that there is not": always(call_text("no_such_tool", {"x": 1})),
    "calls of 1 MB": first_then(call_text("no_such_tool", {}) * (MB // 60), "banana"),
    "1 MB in a turn": first_then("a " * (MB // 2), "banana"),
}
"""Policies that talk as long as they may, by what they say."""


@check("episode.turns", "fault", asks="Does what a turn earned not depend on later turns?")
async def check_turns(subject: Subject) -> str:
    """Check that what a turn earned does not depend on later turns."""
    require_episodes(subject)
    subject.require_same_verdicts()
    clock, count, has_turns = PlayClock(SECONDS), 0, False
    for task, reference in subject.answered[: subject.small_count]:
        for script in _long_scripts(subject, reference):
            if clock.up and count:
                break
            earned = await _earned(subject, task, script)
            has_turns |= bool(earned)
            turns = max(map(len, earned.values()), default=0)
            for length in range(2, turns):
                before = await _earned(subject, task, script[:length])
                count += 1
                # The last turn of the shorter attempt may be paid for the end that it brought.
                for part, values in before.items():
                    if _changed(values[: length - 1], earned.get(part, ())):
                        raise BrokenPromiseError(
                            f"in {part!r} the first {length - 1} of {length} turns earned "
                            f"{_listed(values[: length - 1])} at {task_label(task)}, and "
                            f"{_listed(earned[part][: length - 1])} when further turns followed "
                            f"({shorten(script[length])}); what a turn earned must depend on what "
                            "came before it only, so give a late success to the turn that brought "
                            "it"
                        )
    if not has_turns:
        raise NotCheckedError("no part says what each turn earned (Reward.turns)")
    if not count:
        raise NotCheckedError("no attempt has three turns, so no earlier turns can be compared")
    return f"what turns earned was the same in {count} attempts that ended earlier"


def _long_scripts(subject: Subject, reference: str) -> list[tuple[str, ...]]:
    """Return scripts that come to the right answer late, or go on after it, in several turns."""
    turns, most = split_turns(reference), subject.env.max_turns
    return [
        script
        for script in (
            (*turns[:-1], *STALLING[: max(1, 3 - len(turns))], turns[-1])[:most],
            (*STALLING, *turns)[:most],
            (STALLING[0], *turns, *STALLING)[:most],
            tuple([*turns] + [turns[-1]] * most)[:most],
        )
        if len(script) > 2
    ]


async def _earned(
    subject: Subject, task: Task[Any], script: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """Return what each turn of a script earned, by the reward part; only of parts that say so."""

    def player(messages: Sequence[Message]) -> str | None:
        said = sum(message.role == "assistant" for message in messages)
        return script[said] if said < len(script) else None

    _, verdict = await judged(subject, task, player)
    rewards = verdict.rewards if verdict.scored else {}
    return {name: reward.turns for name, reward in rewards.items() if reward.turns is not None}


def _changed(before: Sequence[float], later: Sequence[float]) -> bool:
    """Return whether the first values of `later` are not `before`."""
    pairs = zip(before, later, strict=False)
    return len(later) < len(before) or any(
        not same_number(a, b, absolute=TOLERANCE) for a, b in pairs
    )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
