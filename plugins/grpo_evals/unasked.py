"""Name the tasks whose prompts a server refuses for their length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from grpo_core import Task
from grpo_core.api.figures import Summary
from grpo_core.figures.statistics import over_tasks
from grpo_core.words import last_text, shorten
from grpo_core.words.unasked import Unasked
from grpo_evals.attempts import EndpointAttempt

ASKED_TASKS = "pass rate of tasks asked"
"""Name of the pass rate without the tasks whose prompts are refused."""


def with_unasked(
    summary: Summary, attempted: Sequence[tuple[Task[Any], Sequence[EndpointAttempt]]]
) -> Summary:
    """Return a summary that names the tasks whose prompts were refused for their length.

    Their attempts have been judged as they are, so they count as not passed in its pass rate; the
    pass rate of the others is added.

    Args:
        summary: of all attempts that were judged.
        attempted: the tasks, with the attempts at each.
    """
    unasked = [task for task, attempts in attempted if _is_refused(attempts)]
    if not unasked:
        return summary
    verdicts = [
        [attempt.verdict for attempt in attempts if attempt.verdict is not None]
        for _, attempts in attempted
        if not _is_refused(attempts)
    ]
    passed = [
        fmean(verdict.passed for verdict in task if verdict.scored)
        for task in verdicts
        if any(verdict.scored for verdict in task)
    ]
    more = {ASKED_TASKS: over_tasks(passed)} if passed else {}
    return replace(
        summary,
        statistics={**summary.statistics, **more},
        unasked=[
            Unasked(
                task.key,
                "the server refuses its prompt as longer than the context",
                beginning=shorten(last_text(task), 40),
            )
            for task in unasked
        ],
    )


def _is_refused(attempts: Sequence[EndpointAttempt]) -> bool:
    """Return whether the first turn of each attempt was refused for the length of the prompt.

    A later turn that is refused leaves the turns before it, and drops the reply to them.
    """
    return bool(attempts) and all(
        attempt.refused == "context"
        and attempt.rollout.turns == 1
        and not attempt.rollout.text
        and not attempt.rollout.reply_dropped
        for attempt in attempts
    )
