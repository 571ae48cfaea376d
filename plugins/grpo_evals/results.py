"""Sum up the attempts of an evaluation: statistics, what was refused, and answers without text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_core import Group, Task
from grpo_core.api.figures import Summary, summarize
from grpo_core.api.verify import EvalSet
from grpo_evals.attempts import EndpointAttempt
from grpo_evals.types import NoText, Refusal

Attempted = tuple[Task[Any], Sequence[EndpointAttempt]]
"""A task, and the attempts at it that were made."""
_REASONS_KEPT = 3
"""How many of the most common reasons of errors are told."""
_MAX_REASON_CHARACTERS = 300
_WHY_NO_TEXT: Mapping[NoText, str] = {
    "thoughts": "have no text; the server puts it into {fields}: the verdicts are those of the "
    "empty texts, and attempts.jsonl keeps what was put there as thoughts. Start the server "
    "without its reasoning parser, or switch the reasoning off, such as by --request "
    "'chat_template_kwargs={{\"enable_thinking\": false}}'",
    "thoughts_cut": 'have no text; their thoughts took all tokens (finish_reason "length"). Raise '
    "--max-new-tokens, or ask for less reasoning, such as by --request reasoning_effort=low",
    "cut": 'have no text; they were cut off before it (finish_reason "length"). Raise '
    "--max-new-tokens: a model whose thoughts are hidden may have used all of them for thoughts",
    "empty": "are empty, and the server says that the model ended them itself. Look at the "
    "server's chat template and at the stop strings (--stop)",
    "calls": "have no text but calls of tools, which the environment does not offer. Start the "
    "server without its parser of tool calls",
    "refusal": "are refusals that the server sends apart; what they say is judged as the answer",
}
"""What is said of answers without a text, by the reason; the number of them comes before it."""


def summary_of(held_out: EvalSet, attempted: Sequence[Attempted], samples: int) -> Summary:
    """Return the statistics of the judged attempts at a set."""
    groups = []
    for task, attempts in attempted:
        judged = [(each.rollout, each.verdict) for each in attempts if each.verdict is not None]
        if judged:
            groups.append(
                Group(task, [rollout for rollout, _ in judged], [verdict for _, verdict in judged])
            )
    summary = summarize(
        groups,
        environment=held_out.source.name,
        level=held_out.level,
        samples=samples,
        parts=held_out.source.env.parts,
    )
    tokens = sum(sum(rollout.turn_lengths) for group in groups for rollout in group.rollouts)
    return replace(summary, tokens=tokens)


def count_refused(attempts: Iterable[EndpointAttempt]) -> dict[Refusal, int]:
    """Return how many attempts the server refused to answer, by the reason."""
    return dict(Counter(attempt.refused for attempt in attempts if attempt.refused is not None))


def count_no_text(attempts: Iterable[EndpointAttempt]) -> dict[NoText, int]:
    """Return how many answers have no text, by the reason."""
    count: Counter[NoText] = Counter()
    for attempt in attempts:
        count.update(attempt.no_text)
    return dict(count)


def count_errors(attempts: Iterable[EndpointAttempt]) -> dict[str, int]:
    """Return why attempts could not be judged, and how many; the most common reasons alone."""
    errors = Counter(
        attempt.verdict.error.strip().partition("\n")[0][:_MAX_REASON_CHARACTERS]
        for attempt in attempts
        if attempt.verdict is not None and attempt.verdict.error is not None
    )
    return dict(errors.most_common(_REASONS_KEPT))


def remarks_on(attempts: Sequence[EndpointAttempt]) -> list[str]:
    """Return a sentence for each reason for which answers have no text, and what to do about it."""
    answers = sum(len(attempt.rollout.turn_lengths) for attempt in attempts)
    fields = " or ".join(sorted({attempt.thoughts_in for attempt in attempts} - {""}))
    return [
        f"{number} of {answers} answers {_WHY_NO_TEXT[reason].format(fields=fields)}"
        for reason, number in count_no_text(attempts).items()
    ]
