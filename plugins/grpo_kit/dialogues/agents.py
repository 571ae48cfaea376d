"""Checks of agents: that they come to an end, repeat, are apart, keep secrets, and leave nothing.

What attempts by agents are paid is the subject of the other checks, which play each text to the
agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpo_core import AgentEnvironment, Task, Verdict
from grpo_core.api.calls import DeadlineError, within
from grpo_kit.check import check
from grpo_kit.dialogues.agent_ends import ENDS
from grpo_kit.dialogues.agent_policies import (
    Turns,
    hostile_policies,
    ordinary_policies,
    right_calls,
    tools_of,
    wrong_calls,
)
from grpo_kit.dialogues.agent_replays import Attempted, Meeting, difference
from grpo_kit.dialogues.endings import ATTEMPTS
from grpo_kit.dialogues.episode_ends import LEAST_LEFT
from grpo_kit.dialogues.players import PlayClock, require_available
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.process.second_process import SecondProcess
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject, describe_verdict, task_label

_TASKS = 2
"""Tasks at which agents hear what is hard to take."""
_SECONDS = 6.0
"""No further attempt is begun after this time."""
_TOGETHER_SECONDS = 60.0
"""The most seconds for agents that run at once."""
_MEETING_SECONDS = 10.0
"""How long the requests of agents that run at once wait for each other."""


def require_agents(subject: Subject) -> None:
    """Raise NotCheckedError unless an agent makes the attempts, and comes to its end."""
    _require_runs(subject)
    if subject.agents.hanging:
        raise NotCheckedError("an agent did not come to its end (see agent.talk)")


def _require_runs(subject: Subject) -> None:
    """Raise NotCheckedError unless an agent makes the attempts, and can be run."""
    if not subject.has_agents:
        raise NotCheckedError("no agent makes its attempts")
    require_available(subject)


@check(
    "agent.talk",
    "fault",
    asks=(
        "Does an agent that hears silence, echoes, unknown tools, broken calls or 1 MB ask, "
        "end, return JSON data that is judged, and fail?"
    ),
)
async def check_talk(subject: Subject) -> str:
    """Check that whatever an agent hears, it asks, ends and returns what is judged, and fails."""
    _require_runs(subject)
    if subject.agents.hanging:
        raise BrokenPromiseError(
            f"an agent did not come to its end: {subject.agents.hanging}; whatever it hears, it "
            "has to go on or to return something"
        )
    kinds = set[str]()
    for index, task in enumerate(subject.tasks[:_TASKS]):
        for kind, turns in hostile_policies(subject, index).items():
            verdict = await _judged(subject, task, kind, turns)
            kinds.add(kind)
            if verdict.passed:
                raise BrokenPromiseError(
                    f"an attempt in which the policy says {kind} {describe_verdict(verdict)} at "
                    f"{task_label(task)}; it must not pass"
                )
    count = len(kinds) + await _check_calls(subject)
    return f"{count} kinds of talk are heard to the end, get verdicts, and fail"


async def _check_calls(subject: Subject) -> int:
    """Check policies that call the agent's tools, and return how many there are.

    One of them may be right at a task by chance, but not at two that have different references.
    """
    played = await subject.agents.play(subject.tasks[0], reference_turns(subject, 0))
    tools = tools_of(played.asked)
    policies = {**right_calls(tools), **wrong_calls(tools)}
    tasks = [
        *subject.tasks[:1],
        *[task for task, text in subject.answered if text != subject.references[0]][:1],
    ]
    for kind, turns in policies.items():
        verdicts = [await _judged(subject, task, kind, turns) for task in tasks]
        if len(tasks) > 1 and all(verdict.passed for verdict in verdicts):
            raise BrokenPromiseError(
                f"attempts in which the policy says {kind} pass at {task_label(tasks[0])} and at "
                f"{task_label(tasks[1])}; what does not depend on the task must not pass"
            )
    return len(policies)


def reference_turns(subject: Subject, index: int) -> Sequence[str]:
    """Return the turns of the reference of the task `index`; one silent turn if it has none."""
    return split_turns(subject.references[index] or "")


async def _judged(subject: Subject, task: Task[Any], kind: str, turns: Turns) -> Verdict:
    """Return the verdict on an attempt; raise BrokenPromiseError if there is none."""
    verdict = (await subject.agents.play(task, turns, judge=True)).verdict
    assert verdict is not None
    if not verdict.scored:
        raise BrokenPromiseError(
            f"an attempt in which the policy says {kind} {describe_verdict(verdict)} at "
            f"{task_label(task)}; whatever the agent hears, it has to ask at least once, and to go "
            "on or return JSON data that verify() can judge"
        )
    return verdict


@check(
    "agent.repeat",
    "fault",
    asks="Does an agent that hears the same again return the same and get the same verdict?",
)
async def check_repeat(subject: Subject) -> str:
    """Check that an agent that hears the same returns the same and gets the same verdict."""
    require_agents(subject)
    subject.require_same_verdicts()
    clock, count = PlayClock(_SECONDS), 0
    for index, task in enumerate(subject.tasks[: subject.small_count]):
        for kind, turns in ordinary_policies(subject, index).items():
            if clock.up and count:
                break
            if (before := await _attempted(subject, task, kind, turns)) is None:
                continue  # the subject of agent.talk and verdict.form
            count += 1
            if found := await difference(subject.verifier, before):
                raise BrokenPromiseError(
                    f"an agent that hears {kind} at {task_label(task)} and then the same again "
                    f"{found}; take random numbers from task.key.rng(), keep nothing between "
                    "attempts and return no times, or set deterministic = False"
                )
    if not count:
        raise NotCheckedError("no attempt got a verdict (see agent.talk)")
    return f"{count} attempts came to the same when the agent heard the same again"


async def _attempted(
    subject: Subject, task: Task[Any], kind: str, turns: Turns
) -> Attempted | None:
    """Return what came of an attempt; None if it got no verdict."""
    played = await subject.agents.play(task, turns, judge=True)
    if played.verdict is None or not played.verdict.scored:
        return None
    return Attempted(task, kind, played.asked, played.rollout, played.verdict)


@check(
    "agent.apart",
    "fault",
    asks="Do agents that run at once not see each other, nor keep each other waiting?",
)
async def check_apart(subject: Subject) -> str:
    """Check that agents that run at once do not see each other, nor keep each other waiting."""
    require_agents(subject)
    subject.require_same_verdicts()
    attempts = await _alone(subject)
    if len(attempts) < 2:
        raise NotCheckedError("fewer than 2 attempts got a verdict (see agent.talk)")
    group = [*attempts, attempts[0]]
    meeting = Meeting(len(group), _MEETING_SECONDS)
    async with subject.agents.alone():
        together = asyncio.gather(
            *(difference(subject.verifier, attempt, meeting) for attempt in group)
        )
        try:
            differences = await within(_result(together), _TOGETHER_SECONDS)
        except DeadlineError:
            raise NotCheckedError(
                f"{len(group)} agents did not come to their end together within "
                f"{_TOGETHER_SECONDS:g} s"
            ) from None
        for attempt, found in zip(group, differences, strict=True):
            if not found:
                continue
            if await difference(subject.verifier, attempt):
                raise NotCheckedError("what an agent does changes from run to run (agent.repeat)")
            raise BrokenPromiseError(
                f"an agent that hears {attempt.kind} at {task_label(attempt.task)} {found}, while "
                "others run; keep what an attempt changes in variables of agent(), not on the "
                "environment, a class, a module, or in a file with a fixed name"
            )
    has_command = isinstance(subject.env, AgentEnvironment) and subject.env.has_command()
    if meeting.least == 1 and not has_command:
        raise BrokenPromiseError(
            f"of {len(group)} agents that were started at once only one had asked after "
            f"{_MEETING_SECONDS:g} s; await the answers of the client that agent() is given, and "
            "call code that blocks by asyncio.to_thread"
        )
    return f"{len(attempts)} agents did what they do alone while others ran"


async def _result(work: asyncio.Future[list[str]]) -> list[str]:
    return await work


async def _alone(subject: Subject) -> list[Attempted]:
    """Return some attempts, each made while no other agent runs."""
    attempts = []
    chosen = ("the reference", "the reference of another task", "a word")
    async with subject.agents.alone():
        for index, task in enumerate(subject.tasks[:_TASKS]):
            policies = ordinary_policies(subject, index)
            for kind in [kind for kind in chosen if kind in policies]:
                played = await subject.agents.play_alone(task, policies[kind], judge=True)
                if played.verdict is not None and played.verdict.scored:
                    attempts.append(
                        Attempted(task, kind, played.asked, played.rollout, played.verdict)
                    )
    return attempts


@check(
    "agent.close",
    "fault",
    asks=(
        "Is nothing left of an agent's run, also when a request was refused and when the run "
        "was cancelled?"
    ),
    second_process=True,
)
async def check_close(process: SecondProcess, subject: Subject) -> str:
    """Check that nothing is left of runs of the agent that end in one of several ways."""
    require_agents(subject)
    report = (await process.report())["agents"]
    if report["failure"]:
        raise NotCheckedError(f"the agent failed in a second process: {report['failure'][0]}")
    if report["left"] is None:
        raise NotCheckedError("this platform does not tell what a process holds")
    for how, leftovers in report["left"].items():
        for kind, found in leftovers.items():
            if found["late"] >= LEAST_LEFT:
                raise BrokenPromiseError(
                    f"{ATTEMPTS} agents that {ENDS[how]} left {found['late']} {kind} behind, such "
                    f"as {found['first'][0]!r}; release in agent() what it holds, also if it is "
                    "cancelled or an answer raises: by `with`, `async with` or `finally`"
                )
    return f"agents left nothing behind that {', that '.join(ENDS[how] for how in report['left'])}"
