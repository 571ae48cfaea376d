"""Checks of agents: that they come to an end, repeat, are apart, keep secrets, and leave nothing.

What attempts by agents are paid is the subject of the other checks, which play each text to the
agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.calls.deadline import DeadlineError, within
from grpo_core.kit.agent_ends import ENDS
from grpo_core.kit.agent_policies import (
    Policies,
    calling_policies,
    hostile_policies,
    ordinary_policies,
    tools_of,
)
from grpo_core.kit.agent_replays import Attempted, Meeting, difference
from grpo_core.kit.endings import ATTEMPTS
from grpo_core.kit.episode_ends import LEAST_LEFT
from grpo_core.kit.players import Clock, require_available
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.scripts import split_turns
from grpo_core.kit.second_process import SecondProcess
from grpo_core.kit.subject import Subject, describe_verdict, task_label
from grpo_core.protocol.agent import AgentEnvironment
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.agent_scripts import Refusal, run_script
from grpo_core.verify.agents import AgentConversation
from grpo_core.verify.playing import answer_agent

_TASKS = 2
"""Tasks at which agents hear what is hard to take."""
_SECONDS = 6.0
"""No further attempt is begun after this time."""
_TOGETHER_SECONDS = 60.0
"""The most seconds for agents that run at once."""
_MEETING_SECONDS = 5.0
"""How long the requests of agents that run at once wait for each other."""


def require_agents(subject: Subject) -> None:
    """Raise NotCheckedError unless an agent makes the attempts, and can be run."""
    if not subject.has_agents:
        raise NotCheckedError("no agent makes its attempts")
    require_available(subject)


async def check_talk(subject: Subject) -> str:
    """Check that whatever an agent hears, it asks, ends and returns what is judged, and fails."""
    require_agents(subject)
    kinds = dict[str, int]()
    for index, task in enumerate(subject.tasks[:_TASKS]):
        for kind, turns in hostile_policies(subject, index).items():
            verdict = await _judged(subject, task, kind, turns)
            kinds[kind] = verdict.passed
            if verdict.passed:
                raise BrokenPromiseError(
                    f"an attempt in which the policy says {kind} {describe_verdict(verdict)} at "
                    f"{task_label(task)}; it must not pass"
                )
    await _check_calls(subject, kinds)
    return f"{len(kinds)} kinds of talk are heard to the end, get verdicts, and fail"


async def _check_calls(subject: Subject, kinds: dict[str, int]) -> None:
    """Check policies that call the agent's tools, which may be right at one task by chance."""
    first = await subject.agents.play(subject.tasks[0], _reference(subject, 0))
    tasks = subject.tasks[:_TASKS]
    for kind, turns in calling_policies(tools_of(first.asked)).items():
        verdicts = [await _judged(subject, task, kind, turns) for task in tasks]
        kinds[kind] = sum(verdict.passed for verdict in verdicts)
        if kinds[kind] == len(tasks) == _TASKS and not subject.env.open_ended:
            raise BrokenPromiseError(
                f"attempts in which the policy says {kind} pass at {_TASKS} of {_TASKS} tasks; "
                "what does not depend on the task must not pass"
            )


def _reference(subject: Subject, index: int) -> Sequence[str]:
    return split_turns(subject.references[index] or "")


async def _judged(subject: Subject, task: Task[Any], kind: str, turns: Any) -> Verdict:
    """Return the verdict on an attempt; raise BrokenPromiseError if there is none."""
    played = await subject.agents.play(task, turns, judge=True)
    verdict = played.verdict
    assert verdict is not None
    if not verdict.scored:
        raise BrokenPromiseError(
            f"an attempt in which the policy says {kind} {describe_verdict(verdict)} at "
            f"{task_label(task)}; whatever the agent hears, it has to ask at least once, and to go "
            "on or return JSON data that verify() can judge"
        )
    return verdict


async def check_repeat(subject: Subject) -> str:
    """Check that an agent that hears the same returns the same and gets the same verdict."""
    require_agents(subject)
    subject.require_same_verdicts()
    clock, count = Clock(_SECONDS), 0
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


async def _attempted(subject: Subject, task: Task[Any], kind: str, turns: Any) -> Attempted | None:
    """Return what came of an attempt; None if it got no verdict."""
    played = await subject.agents.play(task, turns, judge=True)
    if played.verdict is None or not played.verdict.scored:
        return None
    return Attempted(task, kind, played.asked, played.rollout, played.verdict)


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
    if meeting.least == 1:
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


_REFUSALS: Mapping[str, Refusal] = {
    "for which max_turns left no completion": "turns_exceeded",
    "for which the context had no room": "context_length_exceeded",
}
"""Requests that are refused, as the end of a sentence."""


async def check_cut_off(subject: Subject) -> str:
    """Check that attempts that are cut off get a verdict and do not pass."""
    require_agents(subject)
    count = 0
    for index, task in enumerate(subject.tasks[:_TASKS]):
        count += await _check_cut_turns(subject, task)
        asked = (await subject.agents.play(task, "banana")).asked
        for number in sorted({1, len(asked) - 1} & set(range(1, len(asked)))):
            for where, refusal in _REFUSALS.items():
                await _check_refused(subject, index, number, where, refusal)
                count += 1
    if not _has_command(subject):
        await _check_nothing_returned(subject)
        count += 1
    return f"{count} attempts that were cut off got verdicts, and did not pass"


def _has_command(subject: Subject) -> bool:
    return isinstance(subject.env, AgentEnvironment) and subject.env.has_command()


async def _check_cut_turns(subject: Subject, task: Task[Any]) -> int:
    """Check an attempt in which the token budget ends every turn; return 1."""
    rollout, verdict = await _cut(subject, task, "banana", is_cut=True)
    _require_failed(
        f"an attempt whose turns are ended by their token budget (finish_reason 'length') at "
        f"{task_label(task)}",
        rollout,
        verdict,
    )
    return 1


async def _check_refused(
    subject: Subject, index: int, number: int, where: str, refusal: Refusal
) -> None:
    """Check an attempt in which the request after some turns is refused."""
    task = subject.tasks[index]
    policies: Policies = {"'banana'": ["banana"] * number}
    right = _reference(subject, index)
    if len(right) > number:
        policies = {**policies, "the beginning of the reference": right[:number]}
    for kind, turns in policies.items():
        rollout, verdict = await _cut(subject, task, turns, max_turns=number, refusal=refusal)
        what = f"an attempt of {kind} with a request {where} at {task_label(task)}"
        if kind == "'banana'":
            _require_failed(what, rollout, verdict)
        elif not verdict.scored:
            raise BrokenPromiseError(f"{what} {describe_verdict(verdict)}; {_ADVICE}")


_ADVICE = (
    "it must get a verdict, and not pass: `returned` is None if the agent lets the refusal through"
)


async def _cut(
    subject: Subject, task: Task[Any], turns: Any, **how: Any
) -> tuple[Rollout, Verdict]:
    """Return what comes of an attempt that is cut off; `how` is for `run_script`."""
    conversation = subject.verifier.conversation(task)
    assert isinstance(conversation, AgentConversation)
    played = await run_script(
        conversation,
        task,
        lambda: answer_agent(turns),
        **{"max_turns": subject.env.max_turns, **how},
    )
    return played.rollout, await conversation.verdict(played.rollout)


def _require_failed(what: str, rollout: Rollout, verdict: Verdict) -> None:
    """Raise BrokenPromiseError unless an attempt got a verdict and did not pass."""
    if not verdict.scored or verdict.passed:
        raise BrokenPromiseError(f"{what} {describe_verdict(verdict)}; {_ADVICE}")


async def _check_nothing_returned(subject: Subject) -> None:
    """Check that a rollout of which nothing was returned gets a verdict and does not pass."""
    task = subject.tasks[0]
    rollout = Rollout((Message("assistant", "banana"),), "length")
    ((verdict,),) = await subject.verifier.verify([task], [[rollout]])
    _require_failed(f"an attempt that was cut off at {task_label(task)}", rollout, verdict)


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
