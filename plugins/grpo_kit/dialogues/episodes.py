"""Checks of episodes: that they can be replayed, are apart, survive any talk, and judge by turn.

What episodes leave behind is the subject of `episode_ends`, and what they show of their verifier
that of `episode_files`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from grpo_core import Rollout, Task, Verdict
from grpo_core.api.calls import DeadlineError, within
from grpo_core.api.verify import Player, play, scripted, size_of
from grpo_core.words import shorten
from grpo_kit.answers.verdicts import comparable_fields
from grpo_kit.check import check
from grpo_kit.dialogues.players import (
    PlayClock,
    judged,
    ordinary_players,
    require_available,
    silent,
)
from grpo_kit.dialogues.rota import Rota, asked_twice
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject, describe_verdict, task_label

_NEW_INDEX = 700_001
"""The number of a task that no other check makes."""
_REPLAYS = 3
"""Attempts at that task, and turns of each."""
SECONDS = 6.0
"""No further episode is begun after this time."""
_TOGETHER_SECONDS = 60.0
"""The most seconds for episodes that are open at once."""
_LATER = 4
"""Further attempts, which tell chance from leftovers."""
MB = 1_000_000
STALLING = ("banana", "apple")
"""What a policy says before a reference, so that its turns are more."""


def require_episodes(subject: Subject) -> None:
    """Raise NotCheckedError unless attempts are episodes that can be played."""
    if not subject.has_episodes:
        raise NotCheckedError("its attempts are no episodes")
    require_available(subject)


def _players(subject: Subject, index: int) -> Mapping[str, Player]:
    """Return ordinary policies, and one that stops in the middle of the reference."""
    turns = split_turns(subject.references[index] or "")
    begun = {"the beginning of the reference": scripted(turns[:-1])} if len(turns) > 1 else {}
    return {**begun, **ordinary_players(subject, index)}


@check(
    "episode.replay",
    "fault",
    asks="Does a fresh episode that hears the same turns say the same and give the same verdict?",
)
async def check_replay(subject: Subject) -> str:
    """Check that a fresh episode that hears the same turns says and gives the same."""
    require_episodes(subject)
    subject.require_replays()
    clock, count = PlayClock(SECONDS), await _replays_of_a_new_task(subject)
    for index, task in enumerate(subject.tasks[: subject.small_count]):
        for kind, player in _players(subject, index).items():
            if clock.up and count:
                break
            rollout, verdict = await judged(subject, task, player)
            if not verdict.scored:
                continue  # the subject of episode.talk and verdict.form
            ((again,),) = await subject.verifier.verify([task], [[rollout]])
            count += 1
            if _differ(subject, verdict, again):
                raise BrokenPromiseError(
                    f"an attempt of {kind} at {task_label(task)} {describe_verdict(verdict)}, and "
                    f"played again it {describe_verdict(again)}; take random numbers from "
                    "task.key.rng(), and keep nothing between episodes, or set replayable = False"
                )
    if not count:
        raise NotCheckedError("no episode got a verdict (see verdict.form)")
    return f"{count} attempts said the same and got the same verdict when they were played again"


async def _replays_of_a_new_task(subject: Subject) -> int:
    """Return how many further attempts at a task that nobody has played yet are as the first one.

    What attempts keep about their task may be as much as it can be after the first ones.
    """
    size = size_of(subject.env, "train")
    key = replace(subject.tasks[0].key, index=_NEW_INDEX if size is None else size - 1)
    task = await subject.make_task(key)
    player = scripted([STALLING[0]] * _REPLAYS)
    first, *others = [await judged(subject, task, player) for _ in range(_REPLAYS)]
    if not first[1].scored:
        return 0  # the subject of episode.talk and verdict.form
    for rollout, verdict in others:
        if rollout != first[0] or _differ(subject, first[1], verdict):
            part = _Part(task, "the same word in every turn", player, *first)
            how = _difference(part, rollout, verdict, "the first time", "when it is tried again")
            raise BrokenPromiseError(
                f"an attempt of {part.kind} at {task_label(task)} {how}; take random numbers from "
                "task.key.rng(), and keep nothing between episodes, or set replayable = False"
            )
    return len(others)


def _differ(subject: Subject, first: Verdict, second: Verdict) -> bool:
    """Return whether two verdicts on the same turns are not as they have to be."""
    if not first.scored or not second.scored or not subject.env.deterministic:
        return first.scored != second.scored
    return comparable_fields(first) != comparable_fields(second)


@check(
    "episode.repeat",
    "fault",
    asks="Does an open episode give the same verdict when it is asked again?",
)
async def check_repeat(subject: Subject) -> str:
    """Check that an open episode that is asked for its verdict twice gives the same one twice."""
    require_episodes(subject)
    clock, count = PlayClock(SECONDS), 0
    for index, task in enumerate(subject.tasks[: subject.small_count]):
        for kind, player in _players(subject, index).items():
            if clock.up and count:
                break
            conversations, verdicts = asked_twice(subject.replies)
            await play(conversations, task, player, max_turns=subject.env.max_turns, judge=True)
            first, second = verdicts
            if not first.scored:
                continue
            count += 1
            if _differ(subject, first, second):
                raise BrokenPromiseError(
                    f"an episode of {kind} at {task_label(task)} {describe_verdict(first)}, and "
                    f"asked again it {describe_verdict(second)}; verdict() is asked again after a "
                    "failure, so let it use up nothing"
                )
    if not count:
        raise NotCheckedError("no episode got a verdict (see verdict.form)")
    return f"{count} episodes gave the same verdict when they were asked twice"


@dataclass(frozen=True, slots=True)
class _Part:
    """A scripted policy in an episode, and what came of it without other episodes."""

    task: Task[Any]
    kind: str
    player: Player
    rollout: Rollout
    verdict: Verdict


@check("episode.apart", "fault", asks="Do episodes that are open at once not see each other?")
async def check_apart(subject: Subject) -> str:
    """Check that episodes that are open at once do not see each other."""
    require_episodes(subject)
    subject.require_replays()
    parts = await _alone(subject)
    if len(parts) < 2:
        raise NotCheckedError("fewer than 2 episodes got a verdict (see verdict.form)")
    groups = [[*parts, parts[0]]]
    if subject.env.needs:  # a service may have room for two
        groups = [[first, second] for first, second in pairwise([*parts, parts[0]])]
        groups.append([parts[0], parts[0]])
    clock = PlayClock(SECONDS)
    for number, group in enumerate(groups):
        if number and clock.up:
            break
        try:
            outcomes = await within(_together(subject, group), _TOGETHER_SECONDS)
        except DeadlineError:
            raise NotCheckedError(
                f"{len(group)} episodes were not over together after {_TOGETHER_SECONDS:g} s; the "
                "service that they need may have no room for so many"
            ) from None
        for part, (rollout, verdict) in zip(group, outcomes, strict=True):
            if rollout == part.rollout and not _differ(subject, part.verdict, verdict):
                continue
            await _require_same_alone(subject, part)
            raise BrokenPromiseError(
                f"an episode of {part.kind} at {task_label(part.task)} "
                f"{_difference(part, rollout, verdict)}; keep what an attempt changes on its "
                "episode, not on the environment, a class, a module, or in a file with a fixed name"
            )
    return f"{len(parts)} episodes went on as they do alone while others were open"


async def _alone(subject: Subject) -> list[_Part]:
    """Return some attempts, each played while no other episode is open."""
    parts = []
    for index, task in enumerate(subject.tasks[:2]):
        # one without a turn is closed while the others go on
        players = {"no turn": silent, **ordinary_players(subject, index)}
        chosen = ("the reference", "no turn", "the reference of another task", "a word")
        for kind in [kind for kind in chosen if kind in players]:
            rollout, verdict = await judged(subject, task, players[kind])
            if verdict.scored:
                parts.append(_Part(task, kind, players[kind], rollout, verdict))
    return parts


async def _together(subject: Subject, group: Sequence[_Part]) -> list[tuple[Rollout, Verdict]]:
    """Return what comes of attempts whose turns alternate."""
    rota = Rota(subject.replies, len(group))

    async def outcome(part: _Part) -> tuple[Rollout, Verdict]:
        talk = await play(rota, part.task, part.player, max_turns=subject.env.max_turns, judge=True)
        assert talk.verdict is not None
        return talk.rollout, talk.verdict

    return list(await asyncio.gather(*map(outcome, group)))


async def _require_same_alone(subject: Subject, part: _Part) -> None:
    """Raise NotCheckedError if an attempt alone leads elsewhere each time.

    What is left by earlier attempts leads elsewhere than at first, and then to the same.
    """
    later = [await judged(subject, part.task, part.player) for _ in range(_LATER)]
    rollout, verdict = later[0]
    same_as_first = rollout == part.rollout and not _differ(subject, part.verdict, verdict)
    settled = all(
        other == rollout and not _differ(subject, verdict, judgement) for other, judgement in later
    )
    if not same_as_first and not settled:
        raise NotCheckedError("the same turns lead elsewhere in any episode (see episode.replay)")


def _difference(
    part: _Part,
    rollout: Rollout,
    verdict: Verdict,
    first: str = "alone",
    second: str = "while other episodes are open",
) -> str:
    """Return how an attempt differs from the one of `part`; say when the first and second were."""
    pairs = zip(part.rollout.messages, rollout.messages, strict=False)
    said = next(((alone, beside) for alone, beside in pairs if alone != beside), None)
    if said is not None:
        alone, beside = said
        return f"hears {shorten(alone.content)} {first}, and {shorten(beside.content)} {second}"
    if len(part.rollout.messages) != len(rollout.messages):
        return (
            f"has {len(part.rollout.messages)} messages {first}, and {len(rollout.messages)} "
            f"{second}{f' ({rollout.error})' if rollout.error else ''}"
        )
    return f"{describe_verdict(part.verdict)} {first}, and {describe_verdict(verdict)} {second}"
