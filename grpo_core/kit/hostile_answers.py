"""Check that hostile answers get verdicts and do not pass."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_core.kit.result import NotCheckedError
from grpo_core.kit.subject import Subject, canary_attempts
from grpo_core.kit.texts import JUNK


async def check_texts(subject: Subject, texts: Mapping[str, str]) -> str:
    """Check that hostile texts get verdicts and do not pass.

    They are tried bare, in the form of an answer, and in a form that is never closed.

    Args:
        subject: The environment.
        texts: The texts by their kind.
    """
    count, tasks = 0, subject.tasks[: 1 if subject.env.needs else 2]
    for kind, text in texts.items():
        replies = subject.reply_variants(text)
        if subject.form is not None and subject.form.before:
            replies = [*replies, subject.form.before + text]
        count += await subject.must_fail(
            kind, [(task, reply) for task in tasks for reply in dict.fromkeys(replies)]
        )
    return f"{count} attempts of {len(texts)} kinds get verdicts and never pass"


async def check_cheats(subject: Subject) -> str:
    """Check that the author's cheats get the floor."""
    attempts = [
        (task, text)
        for task in subject.tasks[: subject.small_count]
        for text in subject.env.cheats(task)
    ]
    if not attempts:
        raise NotCheckedError("cheats() gives no answers; list what a model might try")
    return f"{await subject.must_fail('the cheat', attempts, floor=True)} cheats get the floor"


async def check_canaries(subject: Subject) -> str:
    """Check that answers to canary tasks get the floor."""
    texts = [
        *list(JUNK.values())[1:3],
        *dict.fromkeys(text for _, text in subject.answered[: subject.small_count]),
    ]
    attempts = canary_attempts(subject, texts)
    if not attempts:
        raise NotCheckedError(
            "canaries() names no tasks; one whose honest reward is the floor shows a policy that "
            "cheats"
        )
    await subject.must_fail("an answer to a canary", attempts, floor=True)
    return f"{len(attempts)} answers to canaries get the floor"
