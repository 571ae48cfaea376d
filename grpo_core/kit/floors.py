"""Check that worthless answers do not pay.

They are silence, junk, the prompt, other tasks' answers, all answers at once, near misses and
hostile text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import (
    MIN_TASKS_FOR_SHARE,
    TOLERANCE,
    Attempt,
    Subject,
    canary_attempts,
    describe_verdict,
    prompt_text,
    shorten,
    task_label,
)
from grpo_core.kit.texts import CHARACTERS, COMMON, JUNK, LARGE, NESTED, NUMBERS, PATTERNS, SILENCE
from grpo_core.protocol.types import Rollout, Verdict
from grpo_core.report.statistics import wilson_interval

_MOST_TASKS = 0.75
"""A worthless answer may not pass or pay this share of tasks.

Where there are few possible answers, one may be right by chance, but not this often.
"""
_MAX_LISTED = 30
"""Wrong answers in a list of all answers."""
_MAX_REFERENCES = 6
"""References that are tried as constant answers."""


async def check_empty(subject: Subject) -> str:
    """Check that silence gets the floor, also a rollout without any message."""
    attempts = [
        (task, text) for task in subject.tasks[: subject.small_count] for text in SILENCE.values()
    ]
    await subject.must_fail("silence", attempts, floor=True)
    for task in subject.tasks[: subject.small_count]:
        ((verdict,),) = await subject.verifier.verify([task], [[Rollout(())]])
        if not verdict.scored or verdict.passed or verdict.total > subject.env.floor + TOLERANCE:
            raise BrokenPromiseError(
                f"an attempt without a message {describe_verdict(verdict)} at {task_label(task)}; "
                "it must get the floor"
            )
    return f"{len(SILENCE) + 1} kinds of silence get the floor"


async def check_junk(subject: Subject) -> str:
    """Check that junk never passes and is not paid on most tasks.

    Bare junk must get the floor. Junk in the form of an answer may earn the reward parts that every
    answer in that form earns.
    """
    form_parts = await _form_parts(subject)
    tasks, kinds = subject.tasks[: max(MIN_TASKS_FOR_SHARE, subject.small_count)], 0
    for kind, text in JUNK.items():
        for reply in subject.reply_variants(text):
            verdicts = await subject.verdicts([(task, reply) for task in tasks])
            kinds += 1
            paid = 0
            for task, verdict in zip(tasks, verdicts, strict=True):
                if not verdict.scored or verdict.passed:
                    raise BrokenPromiseError(
                        f"{kind}, {shorten(reply)}, {describe_verdict(verdict)} at "
                        f"{task_label(task)}; it must get the floor"
                    )
                earned = _total_without(verdict, form_parts) if reply != text else verdict.total
                paid += earned > subject.env.floor + TOLERANCE
            # on fewer tasks, junk can only be required not to pass
            if len(tasks) >= MIN_TASKS_FOR_SHARE and paid >= _MOST_TASKS * len(tasks):
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


async def _form_parts(subject: Subject) -> frozenset[str]:
    """Return the parts that well-formed wrong answers earn in full, if there are other parts.

    Such parts pay for the form, not for the answer.
    """
    if len(subject.env.parts) < 2:
        return frozenset()
    wrong_verdicts = await _wrong_reference_verdicts(subject)
    if not wrong_verdicts:
        return frozenset()
    right_verdicts = [
        verdict for verdict in subject.reference_verdicts if verdict.scored and verdict.rewards
    ]
    return frozenset(
        name
        for name in subject.env.parts
        if fmean(verdict.rewards[name].value for verdict in wrong_verdicts)
        >= _MOST_TASKS * fmean(verdict.rewards[name].value for verdict in right_verdicts)
        > 0
    )


async def _wrong_reference_verdicts(subject: Subject) -> list[Verdict]:
    """Return the verdicts on references of other tasks that did not pass."""
    pairs = _other_references(subject)
    if not pairs or not any(verdict.rewards for verdict in subject.reference_verdicts):
        return []
    return [
        verdict
        for verdict in await subject.verdicts(pairs[: subject.small_count * 2])
        if verdict.scored and not verdict.passed
    ]


def _total_without(verdict: Verdict, parts: frozenset[str]) -> float:
    """Return the total reward without the given parts."""
    return math.fsum(
        reward.weight * reward.value
        for name, reward in verdict.rewards.items()
        if name not in parts
    )


async def check_echo(subject: Subject) -> str:
    """Check that the prompt as an answer rarely passes or pays."""
    candidates: dict[str, list[Attempt]] = {}
    for task in subject.sample:
        for number, text in enumerate(subject.reply_variants(prompt_text(task))):
            candidates.setdefault(
                ("the prompt echoed", "the prompt in the form of an answer")[number], []
            ).append((task, text))
    return await _must_rarely_pass(subject, candidates)


async def check_other(subject: Subject) -> str:
    """Check that the reference of another task rarely passes or pays."""
    _require_best_answer(subject)
    return await _must_rarely_pass(
        subject, {"the reference of another task": _other_references(subject)}
    )


async def check_constant(subject: Subject) -> str:
    """Check that no constant answer passes most tasks.

    A constant fails the check if it passes most of the tasks with another reference, or if it
    clearly passes more than half of all tasks.
    """
    _require_best_answer(subject)
    if len(subject.tasks) < MIN_TASKS_FOR_SHARE:
        raise NotCheckedError(
            f"there are fewer than {MIN_TASKS_FOR_SHARE} tasks to try a constant answer on"
        )
    references = Counter(text for _, text in subject.answered)
    frequent = [text for text, _ in references.most_common(_MAX_REFERENCES)]
    common = (
        [reply for text in COMMON for reply in subject.reply_variants(text)[-1:]]
        if not subject.env.needs
        else []
    )
    constants = dict.fromkeys([*frequent, *common])
    reference_by_task = {id(task): text for task, text in subject.answered}
    tasks = subject.sample
    best, most = "", 0
    for text in constants:
        passed = [
            verdict.passed for verdict in await subject.verdicts([(task, text) for task in tasks])
        ]
        passed_elsewhere = [
            task_passed
            for task_passed, task in zip(passed, tasks, strict=True)
            if reference_by_task.get(id(task)) != text
        ]
        if (
            len(passed_elsewhere) >= MIN_TASKS_FOR_SHARE and fmean(passed_elsewhere) >= _MOST_TASKS
        ) or wilson_interval(fmean(passed), len(passed), confidence=0.99)[0] > 0.5:
            raise BrokenPromiseError(
                f"the constant answer {shorten(text)} passes {sum(passed)} of {len(tasks)} tasks, "
                "although it ignores them"
            )
        if sum(passed) > most:
            best, most = text, sum(passed)
    return f"the best of {len(constants)} constant answers passes {most} of {len(tasks)} tasks" + (
        f" ({shorten(best)})" if best else ""
    )


async def check_listed(subject: Subject) -> str:
    """Check that a list of all answers, the right one among them, does not pass.

    This detects verifiers that search the answer anywhere in a reply, or that take the first or the
    last answer. If complete answers, each in its form, are listed, a verifier may take the first or
    the last (as with blocks of code), since the policy commits to an answer by its position; it may
    not take one in the middle.
    """
    _require_best_answer(subject)
    references = list(dict.fromkeys(text for _, text in subject.answered))
    programs = "sandbox" in subject.env.needs  # several programs in one block are one program
    bare_answers = {
        index: answer
        for index in range(len(subject.answered))
        if not programs and (answer := subject.bare_answer(index)) and answer.strip()
    }
    if len(set(bare_answers.values()) | set(references)) < MIN_TASKS_FOR_SHARE:
        raise NotCheckedError("fewer than 4 different answers are known; write reference()")
    lists: dict[str, list[Attempt]] = {}
    for index, (task, reference) in enumerate(subject.answered[: subject.small_count]):
        others = [text for text in references if text != reference][:_MAX_LISTED]
        lists.setdefault("all references, the right one in the middle", []).append(
            (task, "\n".join(_insert_in_middle(others, reference)))
        )
        right = bare_answers.get(index)
        if right is None:
            continue
        wrong = [text for text in dict.fromkeys(bare_answers.values()) if text != right]
        wrong = wrong[:_MAX_LISTED]
        for order, texts in (
            ("last", [*wrong, right]),
            ("first", [right, *wrong]),
            ("in the middle", _insert_in_middle(wrong, right)),
        ):
            for separator in (" ", ", ", "\n"):
                bare = separator.join(texts)
                lists.setdefault(f"all answers, the right one {order}", []).append((task, bare))
                filled = subject.replace_answer(index, bare)
                if filled is not None and filled != bare:
                    lists.setdefault(f"all answers in one form, the right one {order}", []).append(
                        (task, filled)
                    )
    for kind, attempts in lists.items():
        await subject.must_fail(kind, attempts)
    return f"{len(lists)} ways to list all answers never pass"


def _insert_in_middle(others: Sequence[str], right: str) -> list[str]:
    """Return all texts with `right` in the middle."""
    return [*others[::2], right, *others[1::2]]


_SUFFIXES = ("x", " or not", "abc", "!?", " 7", "0", "; DROP", " and everything else")


async def check_suffix(subject: Subject) -> str:
    """Check that the right answer with something added to it does not pass.

    The addition is inside the form of the answer; behind the form, an explanation may follow.
    """
    if "sandbox" in subject.env.needs:
        raise NotCheckedError(
            "the answers are programs, which may end in many ways and still be right"
        )
    attempts = []
    for index in range(len(subject.answered)):
        answer = subject.bare_answer(index)
        for added in _SUFFIXES:
            changed = (
                subject.replace_answer(index, f"{answer}{added}")
                if answer and answer.strip()
                else None
            )
            if changed is not None:
                attempts.append((subject.answered[index][0], changed))
        if len(attempts) >= subject.small_count * len(_SUFFIXES):
            break
    if not attempts:
        raise NotCheckedError(
            "the answer inside the references is not known; return the extracted text as the "
            "verdict's answer"
        )
    passed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for (task, text), verdict, added in zip(
        attempts, await subject.verdicts(attempts), _SUFFIXES * len(attempts), strict=False
    ):
        if not verdict.scored:
            raise BrokenPromiseError(
                f"the right answer with something added, {shorten(text)}, "
                f"{describe_verdict(verdict)} at {task_label(task)}"
            )
        tried[added] += 1
        passed[added] += verdict.passed
    for added, count in passed.items():
        if count > _MOST_TASKS * tried[added]:
            raise BrokenPromiseError(
                f"the right answer with {added!r} added passes {count} of {tried[added]} tasks; "
                "compare the whole answer"
            )
    return f"the right answer with any of {len(_SUFFIXES)} endings does not pass"


async def check_near(subject: Subject) -> str:
    """Check that numbers close to the right one do not pass most tasks, as with a tolerance."""
    attempts: dict[str, list[Attempt]] = {}
    for index in range(len(subject.answered)):
        value = _parse_number(subject.bare_answer(index))
        for kind, number in _near_numbers(value).items() if value is not None else ():
            changed = subject.replace_answer(index, number)
            if changed is not None:
                attempts.setdefault(kind, []).append((subject.answered[index][0], changed))
    attempts = {
        kind: pairs for kind, pairs in attempts.items() if len(pairs) >= MIN_TASKS_FOR_SHARE
    }
    if not attempts:
        raise NotCheckedError(
            f"fewer than {MIN_TASKS_FOR_SHARE} answers are numbers that are known apart from what "
            "stands around them"
        )
    for kind, pairs in attempts.items():
        verdicts = await subject.verdicts(pairs)
        passed = [
            text for (_, text), verdict in zip(pairs, verdicts, strict=True) if verdict.passed
        ]
        if len(passed) >= _MOST_TASKS * len(pairs):
            raise BrokenPromiseError(
                f"{kind}, such as {shorten(passed[0])}, passes {len(passed)} of {len(pairs)} "
                "tasks; compare exactly"
            )
    return f"{len(attempts)} kinds of near misses do not pass"


def _parse_number(text: str | None) -> float | None:
    """Return the number that `text` is, or None."""
    try:
        value = float(text) if text is not None and len(text) < 30 else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def _near_numbers(value: float) -> Mapping[str, str]:
    """Return numbers close to `value` by their kind."""
    candidates = {}
    if value == int(value) and abs(value) < 1e15:
        candidates = {
            "a number 1 above": str(int(value) + 1),
            "a number half above": f"{int(value)}.5",
        }
    if abs(value) >= 1:
        candidates |= {
            "a number 0.5 % above": f"{value * 1.005:.6g}",
            "a number 0.01 % above": f"{value * 1.0001:.9g}",
        }
    return {kind: number for kind, number in candidates.items() if float(number) != value}


async def check_digits(subject: Subject) -> str:
    """Check that hostile numbers get verdicts and do not pass."""
    return await _check_hostile(subject, NUMBERS)


async def check_characters(subject: Subject) -> str:
    """Check that control characters and lone surrogates get verdicts and do not pass."""
    return await _check_hostile(subject, CHARACTERS)


async def check_nested(subject: Subject) -> str:
    """Check that deeply nested text gets verdicts and does not pass."""
    return await _check_hostile(subject, NESTED)


async def check_large(subject: Subject) -> str:
    """Check that large text, and text that makes patterns backtrack, does not pass."""
    return await _check_hostile(subject, {**PATTERNS, **LARGE})


async def _check_hostile(subject: Subject, texts: Mapping[str, str]) -> str:
    """Check texts bare, in the form of an answer, and in a form that is never closed."""
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
    count = await subject.must_fail("an answer to a canary", attempts, floor=True)
    return f"{count} answers to canaries get the floor"


def _require_best_answer(subject: Subject) -> None:
    """Raise NotCheckedError if the environment has no best answer."""
    if subject.env.open_ended:
        raise NotCheckedError("there is no best answer: one for another task may be as good")


def _other_references(subject: Subject) -> list[Attempt]:
    """Return each task of the sample with a reference of another task that is not its own."""
    answered = subject.answered
    sampled = {id(task) for task in subject.sample}
    return [
        (task, text)
        for index, (task, own) in enumerate(answered)
        if id(task) in sampled
        if (
            text := next(
                (text for _, text in [*answered[index + 1 :], *answered[:index]] if text != own),
                None,
            )
        )
        is not None
    ]


async def _must_rarely_pass(subject: Subject, candidates: Mapping[str, Sequence[Attempt]]) -> str:
    """Check that each kind of attempts gets verdicts and does not pass or pay most tasks."""
    summaries = []
    for kind, pairs in candidates.items():
        if len(pairs) < MIN_TASKS_FOR_SHARE:
            raise NotCheckedError(
                f"there are fewer than {MIN_TASKS_FOR_SHARE} tasks to try {kind} on"
            )
        verdicts = await subject.verdicts(pairs)
        for (task, text), verdict in zip(pairs, verdicts, strict=True):
            if not verdict.scored:
                raise BrokenPromiseError(
                    f"{kind}, {shorten(text)}, {describe_verdict(verdict)} at {task_label(task)}"
                )
        passed = sum(verdict.passed for verdict in verdicts)
        if passed >= _MOST_TASKS * len(pairs):
            raise BrokenPromiseError(
                f"{kind} passes {passed} of {len(pairs)} tasks; the verifier does not look at the "
                "task"
            )
        paid = _share_paid(subject, [verdict for verdict in verdicts if not verdict.passed])
        if paid >= _MOST_TASKS:
            raise BrokenPromiseError(
                f"{kind} is paid {paid:.0%} of what the references are, although it does not pass; "
                "what a run maximises is the reward, not `passed`"
            )
        summaries.append(f"{kind} passes {passed} of {len(pairs)} tasks")
    return "; ".join(summaries)


def _share_paid(subject: Subject, wrong: Sequence[Verdict]) -> float:
    """Return what wrong answers earn above the floor, as a share of what references earn.

    0 where there are too few verdicts, or the environment has no best answer.
    """
    right_totals = [
        verdict.total for verdict in subject.reference_verdicts if verdict.scored and verdict.passed
    ]
    if (
        subject.env.open_ended
        or len(wrong) < MIN_TASKS_FOR_SHARE
        or len(right_totals) < MIN_TASKS_FOR_SHARE
    ):
        return 0.0
    best = fmean(right_totals) - subject.env.floor
    return (
        (fmean(verdict.total for verdict in wrong) - subject.env.floor) / best
        if best > TOLERANCE
        else 0.0
    )
