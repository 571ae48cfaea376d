"""Check that attempts by agents that are cut off are judged, and do not pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_core import AgentEnvironment, Message, Rollout, Task, Verdict
from grpo_core.api.verify import AgentConversation, Refusal, answer_agent, run_script
from grpo_kit.check import check
from grpo_kit.dialogues.agent_policies import Turns
from grpo_kit.dialogues.agents import reference_turns, require_agents
from grpo_kit.result import BrokenPromiseError
from grpo_kit.subject import Subject, describe_verdict, task_label

_TASKS = 2
"""Tasks at which attempts are cut off."""
_REFUSALS: Mapping[str, Refusal] = {
    "for which max_turns left no completion": "turns_exceeded",
    "for which the context had no room": "context_length_exceeded",
}
"""Requests that are refused, as the end of a sentence."""


@check(
    "agent.cut_off",
    "fault",
    asks="Do attempts whose turns or context are used up get a verdict, and not pass?",
)
async def check_cut_off(subject: Subject) -> str:
    """Check that attempts that are cut off get a verdict and do not pass."""
    require_agents(subject)
    count = 0
    for index, task in enumerate(subject.tasks[:_TASKS]):
        await _check_ended_turns(subject, task)
        asked = (await subject.agents.play(task, "banana")).asked
        places = {1, len(asked) - 1} & {*range(1, len(asked))}
        for number in sorted(places):
            for where, refusal in _REFUSALS.items():
                await _check_refused(subject, index, number, where, refusal)
        count += 1 + len(places) * len(_REFUSALS)
    if not (isinstance(subject.env, AgentEnvironment) and subject.env.has_command()):
        await _check_nothing_returned(subject)
        count += 1
    return f"{count} attempts that were cut off got verdicts, and did not pass"


async def _check_ended_turns(subject: Subject, task: Task[Any]) -> None:
    """Check an attempt in which the token budget ends every turn."""
    verdict = await _verdict_on_cut(subject, task, "banana", is_cut=True)
    _require_failed(
        "an attempt whose turns are ended by their token budget (finish_reason 'length') at "
        f"{task_label(task)}",
        verdict,
    )


async def _check_refused(
    subject: Subject, index: int, number: int, where: str, refusal: Refusal
) -> None:
    """Check attempts in which the request after `number` turns is refused."""
    task, right = subject.tasks[index], reference_turns(subject, index)
    what = f"an attempt of {{}} with a request {where} at {task_label(task)}"
    cut = {"max_turns": number, "refusal": refusal}
    verdict = await _verdict_on_cut(subject, task, ["banana"] * number, **cut)
    _require_failed(what.format("'banana'"), verdict)
    if len(right) > number:
        verdict = await _verdict_on_cut(subject, task, right[:number], **cut)
        if not verdict.scored:  # it may pass: the answer may be there already
            raise BrokenPromiseError(
                f"{what.format('the beginning of the reference')} {describe_verdict(verdict)}; "
                f"it must get a verdict: {_ADVICE}"
            )


_ADVICE = "`returned` is None if the agent lets the refusal through"


async def _verdict_on_cut(subject: Subject, task: Task[Any], turns: Turns, **how: Any) -> Verdict:
    """Return the verdict on an attempt that is cut off; `how` is for `run_script`."""
    conversation = subject.verifier.conversation(task)
    assert isinstance(conversation, AgentConversation)
    played = await run_script(
        conversation,
        task,
        lambda: answer_agent(turns),
        **{"max_turns": subject.env.max_turns, **how},
    )
    return await conversation.verdict(played.rollout)


async def _check_nothing_returned(subject: Subject) -> None:
    """Check a rollout of which nothing was returned."""
    task = subject.tasks[0]
    rollout = Rollout((Message("assistant", "banana"),), "length")
    ((verdict,),) = await subject.verifier.verify([task], [[rollout]])
    _require_failed(f"an attempt that was cut off at {task_label(task)}", verdict)


def _require_failed(what: str, verdict: Verdict) -> None:
    """Raise BrokenPromiseError unless an attempt got a verdict and did not pass."""
    if not verdict.scored or verdict.passed:
        raise BrokenPromiseError(
            f"{what} {describe_verdict(verdict)}; it must get a verdict, and not pass: {_ADVICE}"
        )
