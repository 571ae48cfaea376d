"""Check that references are answers, and not what is left of a row that has none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpo_core import Verdict
from grpo_core.words import prompt_text, shorten
from grpo_kit.answers.forms import tagged_parts
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Attempt, Subject, task_label

_MISSING = frozenset({"None", "nan", "NaN", "null", "NULL", "<NA>", "NaT", "undefined"})
"""What str() and other languages make of a value that is missing."""
_CONTAINER = re.compile(r"\[(?:'.*'|None|nan|)\]|\{(?:'.*|)\}", re.DOTALL)
"""What str() makes of a list of texts, of an object, and of one that is empty."""
_MINORITY = 0.5
"""References of which more than this share look alike were meant so."""


def blank_references(subject: Subject) -> list[Attempt]:
    """Return the tasks whose reference of one turn has no answer in it, with the reference."""
    texts = subject.answers.last_turns
    in_tags = tagged_parts(texts) or texts
    form = (subject.answers.form.before + subject.answers.form.after).strip()
    verdicts = subject.reference_verdicts or [Verdict()] * len(texts)
    return [
        attempt
        for attempt, text, part, verdict in zip(
            subject.answered, texts, in_tags, verdicts, strict=True
        )
        if len(split_turns(attempt[1])) == 1
        and (not part.strip() or text.strip() == form or (verdict.passed and verdict.answer == ""))
    ]


@check(
    "task.truth",
    "warning",
    asks="Is no reference what str() makes of a missing value, or of a list of answers?",
)
async def check_truth(subject: Subject) -> str:
    """Check that no reference is the text of a missing value, or of a list or object of Python."""
    truths = list(_truths(subject))
    if not truths:
        raise NotCheckedError("reference() gives no answers")
    missing = [
        (attempt, answer)
        for attempt, answer in truths
        if answer in _MISSING and not _is_named(answer, attempt)
    ]
    containers = [(attempt, answer) for attempt, answer in truths if answer[:1] in ("[", "{")]
    if not all(_CONTAINER.fullmatch(answer) for _, answer in containers):
        containers = []  # where lists of numbers are answers, lists of texts are, too
    for kind, advice, cases in (
        ("a missing value", "a row without an answer: leave such rows out", missing),
        ("a list or an object of Python", "a row with several answers: accept each", containers),
    ):
        if 0 < len(cases) <= _MINORITY * len(truths):
            (task, text), answer = cases[0]
            raise BrokenPromiseError(
                f"{len(cases)} of {len(truths)} references are the text of {kind}, such as "
                f"{shorten(text)} of {task_label(task)}; str() may have made {shorten(answer)} of "
                f"{advice}; where it is meant, waive this check with the reason"
            )
    return f"none of {len(truths)} references is the text of a missing value"


def _truths(subject: Subject) -> Iterator[tuple[Attempt, str]]:
    """Yield the references of one turn with their bare answers."""
    seen = set()
    for index, attempt in enumerate(subject.answered):
        if len(split_turns(attempt[1])) == 1:
            seen.add(attempt[0].key)
            answer = subject.answers.bare_answer(index) or subject.answers.without_form(attempt[1])
            yield attempt, answer.strip()
    for attempt in subject.wide.answered:
        if attempt[0].key not in seen:
            yield attempt, subject.answers.without_form(attempt[1]).strip()


def _is_named(answer: str, attempt: Attempt) -> bool:
    """Return whether the prompt names the answer, as one that may be given."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt_text(attempt[0])) is not None
