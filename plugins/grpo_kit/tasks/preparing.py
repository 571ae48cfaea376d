"""Give a subject its tasks, its references and the verdicts on them, and try its services."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from grpo_core import Environment, GrpoError, JudgeRequest, Program, Task, TaskKey
from grpo_core.api.calls import DeadlineError, describe, within
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.subject import QUICK_SECONDS, Subject, task_keys
from grpo_kit.tasks.sample import LEAST_TASKS, MOST_CHARACTERS, make_sample, prompt_length

_SERVICE_SECONDS = 120.0
"""The timeout of a service's first call, in which a judge loads its model."""


async def prepare(subject: Subject, *, count: int, held_out: int) -> None:
    """Give the subject its tasks, references and the verdicts on the references.

    Tasks are made in this process, where their data can be compared, under the deadline of a run.

    Args:
        subject: The subject without tasks.
        count: The most training tasks.
        held_out: The most held-out tasks.

    Raises:
        GrpoError: A task cannot be made.
    """
    env, verifier, name, seed = subject.env, subject.verifier, subject.name, subject.seed
    # the run's own engine first: its error says clearly whether no task can be made, and where
    await verifier.tasks(task_keys(env, name, "train", min(count, 1), seed))
    subject.tasks = await _tasks(subject, task_keys(env, name, "train", count, seed))
    subject.eval_tasks = await _tasks(subject, task_keys(env, name, "eval", held_out, seed))
    started = time.monotonic()
    try:
        subject.references = [join_turns(await verifier.reference(task)) for task in subject.tasks]
    except GrpoError as error:
        subject.references, subject.reference_error = [None] * len(subject.tasks), str(error)
    subject.reference_seconds = (time.monotonic() - started) / max(1, len(subject.tasks))
    quick = subject.reference_seconds < QUICK_SECONDS and not subject.reference_error
    subject.wide = await make_sample(env, name, seed, with_references=quick)
    subject.unavailable = subject.unavailable or await _find_unavailable_service(env)
    if not subject.unavailable and subject.has_agents:
        await subject.agents.start(subject.tasks[0])
    if not subject.unavailable and subject.answered:
        subject.reference_verdicts = await subject.verdicts(subject.answered)


async def _tasks(subject: Subject, keys: Sequence[TaskKey]) -> list[Task[Any]]:
    """Return the tasks of `keys`, fewer if their prompts are very long."""
    tasks, characters = list[Task[Any]](), 0
    for key in keys:
        if characters >= MOST_CHARACTERS and len(tasks) >= LEAST_TASKS:
            break
        tasks.append(await subject.make_task(key))
        characters += prompt_length(tasks[-1])
    return tasks


async def _find_unavailable_service(env: Environment[Any]) -> str:
    """Return why the sandbox or a judge of `env` does not work, or "" if all work."""
    try:
        return await within(_service_error(env), _SERVICE_SECONDS)
    except GrpoError as error:
        return str(error)
    except DeadlineError:
        return f"a service that it needs does not answer within {_SERVICE_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - a service may raise anything
        return f"a service that it needs does not work: {describe(error)}"


async def _service_error(env: Environment[Any]) -> str:
    """Call each service of `env` once; return the error that a service reports, or ""."""
    if "sandbox" in env.needs:
        ((outcome,),) = await env.services.sandbox().run(
            [Program("def f(x): return x", "f", [(1,)])]
        )
        if outcome.status == "infra_error":
            return f"the sandbox does not work: {outcome.error}"
    if "judge" in env.needs:
        env.services.judge()
        for name, judge in env.services.judges.items():
            (judgement,) = await judge.judge(
                [
                    JudgeRequest(
                        "A text.",
                        context="Write a text. ",
                        reference="A text.",
                        rubric="Is it a text?",
                    )
                ]
            )
            if judgement.error:
                return f"the judge {name!r} does not work: {judgement.error}"
    return ""
