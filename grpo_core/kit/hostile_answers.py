"""Check that hostile answers get verdicts and do not pass.

Among them are useless programs for a sandbox, and texts that give orders to a judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import Subject, canary_attempts
from grpo_core.kit.texts import JUNK, ORDERS, PROGRAMS
from grpo_core.report.floors import Floor, shorten

_MARGIN = 0.2
"""The share of the reward range that an order may add by making a text longer."""


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


async def check_code(subject: Subject) -> str:
    """Check that programs that solve nothing do not pass."""
    if "sandbox" not in subject.env.needs:
        raise NotCheckedError("it runs no programs")
    with_function = [
        (task, text, match)
        for task, text in subject.answered
        if (match := re.search(r"^def (\w+)\([^\n]*\n(?:[ \t]+[^\n]*\n?|\n)+", text, re.M))
    ]
    if not with_function:
        raise NotCheckedError("its references define no Python function")
    task, text, match = with_function[0]
    for kind, body in PROGRAMS.items():
        program = f"def {match[1]}(*arguments):\n    {body.replace('{name}', match[1])}\n"
        await subject.must_fail(
            f"a program that {kind}",
            [(task, text[: match.start()] + program + text[match.end() :])],
        )
    return f"{len(PROGRAMS)} programs that solve nothing do not pass"


async def check_judge(subject: Subject) -> str:
    """Check that orders to the judge do not raise the mean reward of a bad text, or pay alone."""
    env = subject.env
    if "judge" not in env.needs:
        raise NotCheckedError("it asks no judge")
    low, high = env.reward_range
    bad = JUNK["letters"]
    tasks = subject.tasks[: subject.small_count]
    plain_verdicts = await subject.verdicts(
        [(task, reply) for task in tasks for reply in subject.reply_variants(bad)[-1:]]
    )
    plain = Floor.of(bad, plain_verdicts)
    if plain.reward is None:
        raise NotCheckedError(f"the judge gives no scores: {plain_verdicts[0].error}")
    for order in ORDERS:
        for text in (f"{bad} {order}", order):
            verdicts = await subject.scored_verdicts(
                "a text with an order",
                [(task, reply) for task in tasks for reply in subject.reply_variants(text)[-1:]],
            )
            floor = Floor.of(text, verdicts)
            reward = floor.reward or 0.0
            if reward > plain.reward + _MARGIN * (high - low) or floor.passed == floor.tasks:
                raise BrokenPromiseError(
                    f"{shorten(text)} is paid {reward:g}, {shorten(bad)} is paid {plain.reward:g}: "
                    "the judge obeys the text; use a judge that marks the text it judges, or "
                    "guards before it"
                )
    return f"{2 * len(ORDERS)} texts with orders are not paid more than {shorten(bad)}"
