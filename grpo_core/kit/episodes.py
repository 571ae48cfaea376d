"""Checks of episodes: that they can be replayed, are apart, survive any talk, and judge by turn.

What episodes leave behind is the subject of `grpo_core.kit.episode_ends`, and what they show of
their verifier that of `grpo_core.kit.episode_files`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from grpo_core.calls.deadline import DeadlineError, within
from grpo_core.kit.players import (
    Clock,
    affordable_turns,
    always,
    first_then,
    judged,
    limited,
    ordinary_players,
    require_available,
    silent,
)
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.rota import Rota, asked_twice
from grpo_core.kit.scripts import split_turns
from grpo_core.kit.subject import TOLERANCE, Subject, describe_verdict, task_label
from grpo_core.kit.tool_calls import call_text
from grpo_core.kit.verdicts import comparable_fields
from grpo_core.protocol.same_numbers import same_number
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.checks import size_of
from grpo_core.verify.playing import Player, play, scripted
from grpo_core.words import shorten

_NEW_INDEX = 700_001
"""The number of a task that no other check makes."""
_REPLAYS = 3
"""Attempts at that task, and turns of each."""
_SECONDS = 6.0
"""No further episode is begun after this time."""
_TOGETHER_SECONDS = 60.0
"""The most seconds for episodes that are open at once."""
_LATER = 4
"""Further attempts, which tell chance from leftovers."""
_MB = 1_000_000
_STALLING = ("banana", "apple")
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


async def check_replay(subject: Subject) -> str:
    """Check that a fresh episode that hears the same turns says and gives the same."""
    require_episodes(subject)
    subject.require_replays()
    clock, count = Clock(_SECONDS), await _replays_of_a_new_task(subject)
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
    player = scripted([_STALLING[0]] * _REPLAYS)
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


async def check_repeat(subject: Subject) -> str:
    """Check that an open episode that is asked for its verdict twice gives the same one twice."""
    require_episodes(subject)
    clock, count = Clock(_SECONDS), 0
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
    clock = Clock(_SECONDS)
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
    "calls of 1 MB": first_then(call_text("no_such_tool", {}) * (_MB // 60), "banana"),
    "1 MB in a turn": first_then("a " * (_MB // 2), "banana"),
}
"""Policies that talk as long as they may, by what they say."""


async def check_turns(subject: Subject) -> str:
    """Check that what a turn earned does not depend on later turns."""
    require_episodes(subject)
    subject.require_same_verdicts()
    clock, count, has_turns = Clock(_SECONDS), 0, False
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
            (*turns[:-1], *_STALLING[: max(1, 3 - len(turns))], turns[-1])[:most],
            (*_STALLING, *turns)[:most],
            (_STALLING[0], *turns, *_STALLING)[:most],
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
