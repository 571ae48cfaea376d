"""Answers that must not pay: nothing, junk, the prompt, other tasks' answers, all answers, near misses, hostile text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import (
    ENOUGH,
    TOLERANCE,
    Attempt,
    Subject,
    canary_attempts,
    got,
    place,
    prompt_text,
    shown,
)
from grpo_core.kit.texts import CHARACTERS, COMMON, JUNK, LARGE, NESTED, NUMBERS, PATTERNS, SILENCE
from grpo_core.protocol.types import Rollout, Verdict

_AS_A_RULE = 0.75  # an answer may be right by chance, where answers are few; not this often
_LISTED = 30
_CONSTANTS = 6


async def empty(subject: Subject) -> str:
    """Also an attempt in which the policy said nothing at all: there is no message to look at."""
    attempts = [(task, text) for task in subject.tasks[: subject.few] for text in SILENCE.values()]
    await subject.must_fail("silence", attempts, floor=True)
    for task in subject.tasks[: subject.few]:
        ((verdict,),) = await subject.verifier.verify([task], [[Rollout(())]])
        if not verdict.scored or verdict.passed or verdict.total > subject.env.floor + TOLERANCE:
            raise BrokenPromiseError(
                f"an attempt without a message {got(verdict)} at {place(task)}; it must get the floor"
            )
    return f"{len(SILENCE) + 1} kinds of silence get the floor"


async def junk(subject: Subject) -> str:
    """Bare, it has to get the floor. In the form of an answer it may earn what every answer in that form does, by parts of their own."""
    free = await _paid_for_form(subject)
    tasks, kinds = subject.tasks[: max(ENOUGH, subject.few)], 0
    for kind, text in JUNK.items():
        for whole in subject.inside(text):
            verdicts = await subject.verdicts([(task, whole) for task in tasks])
            kinds += 1
            paid = 0
            for task, verdict in zip(tasks, verdicts, strict=True):
                if not verdict.scored or verdict.passed:
                    raise BrokenPromiseError(
                        f"{kind}, {shown(whole)}, {got(verdict)} at {place(task)}; it must get the floor"
                    )
                earned = _without(verdict, free) if whole != text else verdict.total
                paid += earned > subject.env.floor + TOLERANCE
            if len(tasks) >= ENOUGH and paid >= _AS_A_RULE * len(
                tasks
            ):  # of fewer nothing is known but that none passes
                raise BrokenPromiseError(
                    f"{kind}, {shown(whole)}, {got(verdicts[0])} at {place(tasks[0])} and is paid at {paid} of {len(tasks)} tasks; "
                    f"junk must get the floor {subject.env.floor:g}"
                )
    if len(tasks) < ENOUGH:
        raise NotCheckedError(
            f"{kinds} kinds of junk do not pass; whether they are paid is told from {ENOUGH} tasks"
        )
    return f"{kinds} kinds of junk never pass, and are not paid as a rule"


async def _paid_for_form(subject: Subject) -> frozenset[str]:
    """The parts that a well-formed wrong answer earns in full, where there are others: they pay the form and say nothing of the answer."""
    if len(subject.env.parts) < 2:
        return frozenset()
    wrong = await _crossed(subject)
    if not wrong:
        return frozenset()
    best = [verdict for verdict in subject.told if verdict.scored and verdict.rewards]
    return frozenset(
        name
        for name in subject.env.parts
        if fmean(v.rewards[name].value for v in wrong)
        >= _AS_A_RULE * fmean(v.rewards[name].value for v in best)
        > 0
    )


async def _crossed(subject: Subject) -> list[Verdict]:
    """The verdicts on references given to other tasks that did not pass."""
    pairs = _other(subject)
    if not pairs or not any(verdict.rewards for verdict in subject.told):
        return []
    return [
        verdict
        for verdict in await subject.verdicts(pairs[: subject.few * 2])
        if verdict.scored and not verdict.passed
    ]


def _without(verdict: Verdict, parts: frozenset[str]) -> float:
    return math.fsum(
        reward.weight * reward.value
        for name, reward in verdict.rewards.items()
        if name not in parts
    )


async def echo(subject: Subject) -> str:
    ways: dict[str, list[Attempt]] = {}
    for task in subject.sample:
        for number, text in enumerate(subject.inside(prompt_text(task))):
            ways.setdefault(
                ("the prompt echoed", "the prompt in the form of an answer")[number], []
            ).append((task, text))
    return await _not_as_a_rule(subject, ways)


async def other(subject: Subject) -> str:
    _one_is_best(subject)
    return await _not_as_a_rule(subject, {"the reference of another task": _other(subject)})


async def constant(subject: Subject) -> str:
    """The best constant answer over all tasks: no answer passes tasks whose reference is another one as a rule, nor clearly most of all."""
    _one_is_best(subject)
    if len(subject.tasks) < ENOUGH:
        raise NotCheckedError(f"there are fewer than {ENOUGH} tasks to try a constant answer on")
    known = [
        text for text, _ in Counter(text for _, text in subject.answered).most_common(_CONSTANTS)
    ]
    common = (
        [whole for text in COMMON for whole in subject.inside(text)[-1:]]
        if not subject.env.needs
        else []
    )
    tried = dict.fromkeys([*known, *common])
    right = {id(task): text for task, text in subject.answered}
    tasks = subject.sample
    best, most = "", 0
    for text in tried:
        passed = [
            verdict.passed for verdict in await subject.verdicts([(task, text) for task in tasks])
        ]
        elsewhere = [
            each for each, task in zip(passed, tasks, strict=True) if right.get(id(task)) != text
        ]
        if (len(elsewhere) >= ENOUGH and fmean(elsewhere) >= _AS_A_RULE) or _surely_most(
            sum(passed), len(passed)
        ):
            raise BrokenPromiseError(
                f"the constant answer {shown(text)} passes {sum(passed)} of {len(tasks)} tasks, without a look at them"
            )
        if sum(passed) > most:
            best, most = text, sum(passed)
    return f"the best of {len(tried)} constant answers passes {most} of {len(tasks)} tasks" + (
        f" ({shown(best)})" if best else ""
    )


def _surely_most(passed: int, tasks: int) -> bool:
    """Whether more than half of all tasks pass, by the lower end of the 99 % interval of Wilson."""
    share, z = passed / tasks, 2.58
    margin = z * math.sqrt(share * (1 - share) / tasks + z * z / (4 * tasks * tasks))
    return (share + z * z / (2 * tasks) - margin) / (1 + z * z / tasks) > 0.5


async def listed(subject: Subject) -> str:
    """Finds verifiers that look for the answer anywhere, take the first or take the last.

    Of several whole replies, each in its form, the first or the last may count, as the last block of code does: to put the answer there is
    to commit to it. One in the middle may not.
    """
    _one_is_best(subject)
    whole = list(dict.fromkeys(text for _, text in subject.answered))
    programs = "sandbox" in subject.env.needs  # several of them in one block are one program
    known = {
        index: inner
        for index in range(len(subject.answered))
        if not programs and (inner := subject.inner(index)) and inner.strip()
    }
    if len(set(known.values()) | set(whole)) < ENOUGH:
        raise NotCheckedError("fewer than 4 different answers are known; write reference()")
    lists: dict[str, list[Attempt]] = {}
    for index, (task, reference) in enumerate(subject.answered[: subject.few]):
        others = [text for text in whole if text != reference][:_LISTED]
        lists.setdefault("all references, the right one in the middle", []).append(
            (task, "\n".join(_middle(others, reference)))
        )
        inner = known.get(index)
        if inner is None:
            continue
        rest = [text for text in dict.fromkeys(known.values()) if text != inner][:_LISTED]
        for order, texts in (
            ("last", [*rest, inner]),
            ("first", [inner, *rest]),
            ("in the middle", _middle(rest, inner)),
        ):
            for between in (" ", ", ", "\n"):
                bare = between.join(texts)
                lists.setdefault(f"all answers, the right one {order}", []).append((task, bare))
                filled = subject.with_answer(index, bare)
                if filled is not None and filled != bare:
                    lists.setdefault(f"all answers in one form, the right one {order}", []).append(
                        (task, filled)
                    )
    for kind, attempts in lists.items():
        await subject.must_fail(kind, attempts)
    return f"{len(lists)} ways to list all answers never pass"


def _middle(others: Sequence[str], right: str) -> list[str]:
    return [*others[::2], right, *others[1::2]]


_ADDED = ("x", " or not", "abc", "!?", " 7", "0", "; DROP", " and everything else")


async def suffix(subject: Subject) -> str:
    """Where the answer ends in the form of the reference; behind the form an explanation may follow."""
    if "sandbox" in subject.env.needs:
        raise NotCheckedError(
            "the answers are programs, which may end in many ways and still be right"
        )
    attempts = []
    for index in range(len(subject.answered)):
        inner = subject.inner(index)
        for added in _ADDED:
            changed = (
                subject.with_answer(index, f"{inner}{added}") if inner and inner.strip() else None
            )
            if changed is not None:
                attempts.append((subject.answered[index][0], changed))
        if len(attempts) >= subject.few * len(_ADDED):
            break
    if not attempts:
        raise NotCheckedError(
            "the answer is not known apart from what stands around it; give what was extracted as the verdict's answer"
        )
    passed: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for (task, text), verdict, added in zip(
        attempts, await subject.verdicts(attempts), _ADDED * len(attempts), strict=False
    ):
        if not verdict.scored:
            raise BrokenPromiseError(
                f"the right answer with something added, {shown(text)}, {got(verdict)} at {place(task)}"
            )
        asked[added] += 1
        passed[added] += verdict.passed
    for added, count in passed.items():
        if count > _AS_A_RULE * asked[added]:
            raise BrokenPromiseError(
                f"the right answer with {added!r} added passes {count} of {asked[added]} tasks; compare the whole answer"
            )
    return f"the right answer with any of {len(_ADDED)} endings does not pass"


async def near(subject: Subject) -> str:
    """A tolerance is a hole as wide as the numbers are large."""
    attempts: dict[str, list[Attempt]] = {}
    for index in range(len(subject.answered)):
        value = _number(subject.inner(index))
        for kind, number in _close(value).items() if value is not None else ():
            changed = subject.with_answer(index, number)
            if changed is not None:
                attempts.setdefault(kind, []).append((subject.answered[index][0], changed))
    attempts = {kind: pairs for kind, pairs in attempts.items() if len(pairs) >= ENOUGH}
    if not attempts:
        raise NotCheckedError(
            f"fewer than {ENOUGH} answers are numbers that are known apart from what stands around them"
        )
    for kind, pairs in attempts.items():
        verdicts = await subject.verdicts(pairs)
        passed = [
            text for (_, text), verdict in zip(pairs, verdicts, strict=True) if verdict.passed
        ]
        if len(passed) >= _AS_A_RULE * len(pairs):
            raise BrokenPromiseError(
                f"{kind}, such as {shown(passed[0])}, passes {len(passed)} of {len(pairs)} tasks; compare exactly"
            )
    return f"{len(attempts)} kinds of near misses do not pass"


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None and len(text) < 30 else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def _close(value: float) -> Mapping[str, str]:
    found = {}
    if value == int(value) and abs(value) < 1e15:
        found = {"a number 1 above": str(int(value) + 1), "a number half above": f"{int(value)}.5"}
    if abs(value) >= 1:
        found |= {
            "a number 0.5 % above": f"{value * 1.005:.6g}",
            "a number 0.01 % above": f"{value * 1.0001:.9g}",
        }
    return {kind: number for kind, number in found.items() if float(number) != value}


async def digits(subject: Subject) -> str:
    return await _hostile(subject, NUMBERS)


async def characters(subject: Subject) -> str:
    return await _hostile(subject, CHARACTERS)


async def nested(subject: Subject) -> str:
    return await _hostile(subject, NESTED)


async def large(subject: Subject) -> str:
    return await _hostile(subject, {**PATTERNS, **LARGE})


async def _hostile(subject: Subject, texts: Mapping[str, str]) -> str:
    """Bare, as an answer in its form, and in a form that is never closed."""
    count, tasks = 0, subject.tasks[: 1 if subject.env.needs else 2]
    for kind, text in texts.items():
        wholes = subject.inside(text)
        if subject.form is not None and subject.form.before:
            wholes = [*wholes, subject.form.before + text]
        count += await subject.must_fail(
            kind, [(task, whole) for task in tasks for whole in dict.fromkeys(wholes)]
        )
    return f"{count} attempts of {len(texts)} kinds get verdicts and never pass"


async def cheats(subject: Subject) -> str:
    pairs = [
        (task, text) for task in subject.tasks[: subject.few] for text in subject.env.cheats(task)
    ]
    if not pairs:
        raise NotCheckedError("cheats() gives no answers; list what a model might try")
    return f"{await subject.must_fail('the cheat', pairs, floor=True)} cheats get the floor"


async def canaries(subject: Subject) -> str:
    texts = [
        *list(JUNK.values())[1:3],
        *dict.fromkeys(text for _, text in subject.answered[: subject.few]),
    ]
    attempts = canary_attempts(subject, texts)
    if not attempts:
        raise NotCheckedError(
            "canaries() names no tasks; one whose honest reward is the floor shows a policy that cheats"
        )
    return f"{await subject.must_fail('an answer to a canary', attempts, floor=True)} answers to canaries get the floor"


def _one_is_best(subject: Subject) -> None:
    if subject.env.open_ended:
        raise NotCheckedError("there is no best answer: one for another task may be as good")


def _other(subject: Subject) -> list[Attempt]:
    """Each task with the reference of another one, where that is not its own."""
    answered, sample = subject.answered, {id(task) for task in subject.sample}
    return [
        (task, text)
        for index, (task, own) in enumerate(answered)
        if id(task) in sample
        if (
            text := next(
                (text for _, text in [*answered[index + 1 :], *answered[:index]] if text != own),
                None,
            )
        )
        is not None
    ]


async def _not_as_a_rule(subject: Subject, candidates: Mapping[str, Sequence[Attempt]]) -> str:
    told = []
    for kind, pairs in candidates.items():
        if len(pairs) < ENOUGH:
            raise NotCheckedError(f"there are fewer than {ENOUGH} tasks to try {kind} on")
        verdicts = await subject.verdicts(pairs)
        for (task, text), verdict in zip(pairs, verdicts, strict=True):
            if not verdict.scored:
                raise BrokenPromiseError(f"{kind}, {shown(text)}, {got(verdict)} at {place(task)}")
        passed = sum(verdict.passed for verdict in verdicts)
        if passed >= _AS_A_RULE * len(pairs):
            raise BrokenPromiseError(
                f"{kind} passes {passed} of {len(pairs)} tasks; the verifier does not look at the task"
            )
        paid = _share_paid(subject, [verdict for verdict in verdicts if not verdict.passed])
        if paid >= _AS_A_RULE:
            raise BrokenPromiseError(
                f"{kind} is paid {paid:.0%} of what the references are, although it does not pass; "
                "what a run maximises is the reward, not `passed`"
            )
        told.append(f"{kind} passes {passed} of {len(pairs)} tasks")
    return "; ".join(told)


def _share_paid(subject: Subject, wrong: Sequence[Verdict]) -> float:
    """What wrong answers earn above the floor, by what the references do; 0 where that is not known."""
    right = [verdict.total for verdict in subject.told if verdict.scored and verdict.passed]
    if subject.env.open_ended or len(wrong) < ENOUGH or len(right) < ENOUGH:
        return 0.0
    best = fmean(right) - subject.env.floor
    return (
        (fmean(verdict.total for verdict in wrong) - subject.env.floor) / best
        if best > TOLERANCE
        else 0.0
    )
