"""Check that answers that ignore the task do not pay.

They are silence, junk, the prompt and other tasks' answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from grpo_core import Verdict
from grpo_core.api.figures import Floor
from grpo_core.words import shorten
from grpo_core.words.hostile_texts import JUNK, KINDS_OF_SILENCE
from grpo_kit.check import check
from grpo_kit.dialogues.players import judged, silent
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import (
    MIN_TASKS_FOR_SHARE,
    TOLERANCE,
    Attempt,
    Subject,
    describe_verdict,
    task_label,
)

FOR_ECHO = 0.2
"""The least pay for an echo of the prompt, as a share of that for a right answer."""
_ACCOUNT = (
    "First, we look at it. Then we think step by step. Next, we check each part again, because "
    "that is how it is done. So, finally, the rest follows, and therefore it is clear."
)
"""The words by which an explanation is known, without one."""
_SHARED_WORDS = 3
"""With fewer words that all references share there is no text around their answers."""
DIFFERING = "what differs in the prompt"
_TIMES = 20
"""How often a long account says the same."""
_MOST_TURNS = 20
"""Turns of a dialogue in which junk is said."""
_MOST_FOR_FORM = 0.6
"""The most that answers may earn by their form, as a share of what right ones earn."""
MOST_TASKS = 0.75
"""A worthless answer may not pass or pay this share of tasks.

Where there are few possible answers, one may be right by chance, but not this often.
"""


@check("floor.empty", "fault", asks="Do silence and white space get the floor?")
async def check_empty(subject: Subject) -> str:
    """Check that silence gets the floor, also a rollout without any message."""
    attempts = [
        (task, text)
        for task in subject.tasks[: subject.small_count]
        for text in KINDS_OF_SILENCE.values()
    ]
    await subject.must_fail("silence", attempts, floor=True)
    if subject.has_agents:  # one that hears nothing at all has no attempt
        return f"{len(KINDS_OF_SILENCE)} kinds of silence get the floor"
    for task in subject.tasks[: subject.small_count]:
        _, verdict = await judged(subject, task, silent)
        if not verdict.scored or verdict.passed or verdict.total > subject.env.floor + TOLERANCE:
            raise BrokenPromiseError(
                f"an attempt without a message {describe_verdict(verdict)} at {task_label(task)}; "
                "it must get the floor"
            )
    return f"{len(KINDS_OF_SILENCE) + 1} kinds of silence get the floor"


@check(
    "floor.junk",
    "fault",
    asks=(
        "Does junk get the floor, bare and in the form of an answer, and is the form paid "
        "less than the answer?"
    ),
)
async def check_junk(subject: Subject) -> str:
    """Check that junk never passes and is not paid on most tasks.

    Bare junk must get the floor. Junk in the form of an answer may earn the reward parts that every
    answer in that form earns.
    """
    form_parts = await find_form_parts(subject)
    _check_pay_for_form(subject, form_parts)
    tasks, kinds = subject.tasks[: max(MIN_TASKS_FOR_SHARE, subject.small_count)], 0
    right = {spoken(text) for _, text in [*subject.answered, *subject.wide.answered]}
    for kind, text, replies in _junk(subject):
        for reply in replies:
            if spoken(reply) in right:
                continue
            verdicts = await subject.verdicts([(task, reply) for task in tasks])
            kinds += 1
            paid = 0
            for task, verdict in zip(tasks, verdicts, strict=True):
                if not verdict.scored or verdict.passed:
                    raise BrokenPromiseError(
                        f"{kind}, {shorten(reply)}, {describe_verdict(verdict)} at "
                        f"{task_label(task)}; it must get the floor"
                    )
                earned = math.fsum(
                    reward.weight * reward.value
                    for name, reward in verdict.rewards.items()
                    if reply == text or name not in form_parts
                )
                paid += earned > subject.env.floor + TOLERANCE
            # on fewer tasks, junk can only be required not to pass
            if len(tasks) >= MIN_TASKS_FOR_SHARE and paid >= MOST_TASKS * len(tasks):
                raise BrokenPromiseError(
                    f"{kind}, {shorten(reply)}, {describe_verdict(verdicts[0])} at "
                    f"{task_label(tasks[0])} and is paid on {paid} of {len(tasks)} tasks; junk "
                    f"must get the floor {subject.env.floor:g}"
                )
    if len(tasks) < MIN_TASKS_FOR_SHARE:
        raise NotCheckedError(
            f"{kinds} kinds of junk do not pass; whether they are paid is checked from "
            f"{MIN_TASKS_FOR_SHARE} tasks on"
        )
    return f"{kinds} kinds of junk never pass, and are not paid on most tasks"


def _junk(subject: Subject) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield each kind of junk with its text, and the replies that hold it.

    They are the text alone and in the form of an answer; in a dialogue also at each turn.
    """
    shared = _shared_words(subject)
    words = {"the words of all references, in another order": shared} if shared else {}
    accounts = {"words of an account": _ACCOUNT, "a long account": f"{_ACCOUNT}\n" * _TIMES}
    for kind, text in {**JUNK, **accounts, **words}.items():
        replies = [
            *subject.answers.reply_variants(text),
            subject.answers.frame.before + text + subject.answers.frame.after,
        ]
        yield kind, text, list(filter(None, dict.fromkeys(replies)))  # floor.empty: silence
    turns = min(subject.env.max_turns, _MOST_TURNS)
    if turns > 1 and not subject.has_agents:
        word = JUNK["a word"]
        talk = join_turns([word] * turns)
        yield f"a word at each of {turns} turns", talk, [talk]


def spoken(text: str) -> str:
    """Return the words of a text without the marks between them; a text without words as it is."""
    return " ".join(re.findall(r"\w+", text)) or text.strip()


def _shared_words(subject: Subject) -> str:
    """Return the words that all references have, backwards and without marks; "" if few have."""
    references = [re.findall(r"[^\W\d_]+", text) for text in subject.answers.last_turns]
    if len(set(subject.answers.last_turns)) < MIN_TASKS_FOR_SHARE:
        return ""
    shared = set.intersection(*map(set, references))
    words = [word for word in dict.fromkeys(references[0]) if word in shared]
    return " ".join(words[::-1]) if len(words) >= _SHARED_WORDS else ""


def _check_pay_for_form(subject: Subject, form_parts: frozenset[str]) -> None:
    """Raise BrokenPromiseError if most of what references earn is paid for their form."""
    right = [verdict for verdict in subject.reference_verdicts if verdict.passed]
    if not form_parts or not right or subject.env.open_ended:
        return
    for_form = fmean(
        math.fsum(verdict.rewards[name].weight * verdict.rewards[name].value for name in form_parts)
        for verdict in right
    )
    best = fmean(verdict.total for verdict in right) - subject.env.floor
    if for_form > _MOST_FOR_FORM * best > 0:
        names = ", ".join(sorted(form_parts))
        raise BrokenPromiseError(
            f"answers of other tasks earn {for_form / best:.0%} of the reward of a right answer "
            f"by their form alone ({names}); give the parts that pay for the form a smaller weight"
        )


async def find_form_parts(subject: Subject) -> frozenset[str]:
    """Return the parts that well-formed wrong answers earn in full, if there are other parts.

    Such parts pay for the form, not for the answer. The wrong answers are references of other tasks
    that did not pass.
    """
    pairs = subject.other_references[: subject.small_count * 2]
    right_verdicts = [
        verdict for verdict in subject.reference_verdicts if verdict.scored and verdict.rewards
    ]
    if len(subject.env.parts) < 2 or not pairs or not right_verdicts:
        return frozenset()
    wrong_verdicts = [
        verdict
        for verdict in await subject.verdicts(pairs)
        if verdict.scored and not verdict.passed
    ]
    if not wrong_verdicts:
        return frozenset()
    return frozenset(
        name
        for name in subject.env.parts
        if fmean(verdict.rewards[name].value for verdict in wrong_verdicts)
        >= MOST_TASKS * fmean(verdict.rewards[name].value for verdict in right_verdicts)
        > 0
    )


def earned_by(subject: Subject, verdict: Verdict, form_parts: frozenset[str]) -> float:
    """Return what a verdict pays above the floor, but for the parts that pay for the form."""
    return (
        math.fsum(
            reward.weight * reward.value
            for name, reward in verdict.rewards.items()
            if name not in form_parts
        )
        - subject.env.floor
    )


def holds_form(subject: Subject, text: str) -> bool:
    """Return whether a text holds what stands before and after answers; False if nothing does."""
    before, after = subject.answers.form.before.strip(), subject.answers.form.after.strip()
    return bool(before and after) and before in text and after in text


@check("floor.other", "fault", asks="Does the reference of another task fail?")
async def check_other(subject: Subject) -> str:
    """Check that the reference of another task rarely passes or pays."""
    require_best_answer(subject)
    return await must_rarely_pass(
        subject, {"the reference of another task": subject.other_references}
    )


def require_best_answer(subject: Subject) -> None:
    """Raise NotCheckedError if the environment has no best answer."""
    if subject.env.open_ended:
        raise NotCheckedError("there is no best answer: one for another task may be as good")


async def must_rarely_pass(
    subject: Subject, candidates: Mapping[str, Sequence[Attempt]], *, unpaid: bool = True
) -> str:
    """Check that each kind of attempts gets verdicts and does not pass most tasks.

    Args:
        subject: The environment.
        candidates: The attempts of each kind.
        unpaid: Whether they may not be paid much, either.
    """
    summaries = []
    for kind, pairs in candidates.items():
        if len(pairs) < MIN_TASKS_FOR_SHARE:
            raise NotCheckedError(
                f"there are fewer than {MIN_TASKS_FOR_SHARE} tasks to try {kind} on"
            )
        verdicts = await subject.scored_verdicts(kind, pairs)
        floor = Floor.of(kind, verdicts)
        summary = f"{kind} passes {floor.passed} of {floor.tasks} tasks"
        if floor.passed >= MOST_TASKS * floor.tasks:
            raise BrokenPromiseError(f"{summary}; the verifier does not look at the task")
        paid = sum(subject.is_paid(verdict) for verdict in verdicts)
        if unpaid and not subject.env.open_ended and paid >= MOST_TASKS * floor.tasks:
            raise BrokenPromiseError(
                f"{kind} is paid nearly what the references are on {paid} of {floor.tasks} tasks, "
                "although it does not pass; what a run maximises is the reward, not `passed`"
            )
        summaries.append(summary)
    return "; ".join(summaries)
