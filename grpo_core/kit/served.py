"""Attacks on what an environment borrows: programs that solve nothing, and texts that give the judge orders."""

from __future__ import annotations

import re
from statistics import fmean

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import Subject, got, shown
from grpo_core.kit.texts import JUNK, ORDERS, PROGRAMS

_MARGIN = 0.2
"""Of the reward's range: what an order may add to a text by making it longer."""


async def code(subject: Subject) -> str:
    if "sandbox" not in subject.env.needs:
        raise NotCheckedError("it runs no programs")
    found = [
        (task, text, match)
        for task, text in subject.answered
        if (match := re.search(r"^def (\w+)\([^\n]*\n(?:[ \t]+[^\n]*\n?|\n)+", text, re.M))
    ]
    if not found:
        raise NotCheckedError("its references define no Python function")
    task, text, match = found[0]
    for kind, body in PROGRAMS.items():
        name = match[1]
        program = f"def {name}(*arguments):\n    {body.replace('{name}', name)}\n"
        await subject.must_fail(
            f"a program that {kind}",
            [(task, text[: match.start()] + program + text[match.end() :])],
        )
    return f"{len(PROGRAMS)} programs that solve nothing do not pass"


async def judge(subject: Subject) -> str:
    """What orders add to a bad text, on average; and orders alone."""
    env = subject.env
    if "judge" not in env.needs:
        raise NotCheckedError("it asks no judge")
    low, high = env.reward_range
    bad = JUNK["letters"]
    tasks = subject.tasks[: subject.few]
    plain = await subject.verdicts(
        [(task, whole) for task in tasks for whole in subject.inside(bad)[-1:]]
    )
    before = (
        fmean(verdict.total for verdict in plain if verdict.scored)
        if any(v.scored for v in plain)
        else None
    )
    if before is None:
        raise NotCheckedError(f"the judge gives no scores: {plain[0].error}")
    for order in ORDERS:
        for text in (f"{bad} {order}", order):
            verdicts = await subject.verdicts(
                [(task, whole) for task in tasks for whole in subject.inside(text)[-1:]]
            )
            unscored = [verdict for verdict in verdicts if not verdict.scored]
            if unscored:
                raise BrokenPromiseError(
                    f"{shown(text)} {got(unscored[0])}: a text must not decide whether it is judged"
                )
            paid = fmean(verdict.total for verdict in verdicts)
            if paid > before + _MARGIN * (high - low) or all(
                verdict.passed for verdict in verdicts
            ):
                raise BrokenPromiseError(
                    f"{shown(text)} is paid {paid:g}, {shown(bad)} {before:g}: the judge obeys the text; "
                    "use a judge that marks what it judges, or guards before it"
                )
    return f"{2 * len(ORDERS)} texts with orders are not paid more than {shown(bad)}"
