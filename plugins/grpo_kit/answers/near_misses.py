"""Check that answers that are almost right, or one of which is right, do not pass."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from grpo_core.api.figures import ADVICE_BESIDE_RIGHT
from grpo_core.api.protocol import same_number
from grpo_core.words import prompt_text, shorten
from grpo_kit.answers.floors import MOST_TASKS, require_best_answer
from grpo_kit.answers.near_texts import CUT, EXCHANGED, near_texts, not_as_asked
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import split_turns, with_last_turn
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import (
    MIN_TASKS_FOR_SHARE,
    Attempt,
    Subject,
)

_SUFFIXES = ("x", " or not", "abc", " 7", "0", "; DROP", " and everything else", "\nno", " (or 7)")
_GLUED = ("x", "abc", "0")
"""The endings that belong to the answer's last word."""
_COMMITTED: Mapping[str | None, str] = {"start": "first", "end": "last"}
"""Where in a list the answer counts, by the declared `answer_at`."""
_DEFINITION = re.compile(r"^(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_LEAST_LISTED = 2
"""Different answers from which a list can be made."""
_MAX_LISTED = 30
"""Wrong answers in a list of all answers."""


@check("floor.listed", "fault", asks="Does a list of all answers, the right one among them, fail?")
async def check_listed(subject: Subject) -> str:
    """Check that a list of all answers, the right one among them, does not pass.

    This detects verifiers that search the answer anywhere in a reply, or that take the first or the
    last answer. If complete answers, each in its form, are listed, a verifier may take the first or
    the last (as with blocks of code), since the policy commits to an answer by its position; it may
    not take one in the middle. Programs are listed under the name that the task asks for: one of
    another name is no answer to it.
    """
    require_best_answer(subject)
    references = list(dict.fromkeys(subject.answers.last_turns))
    programs = "sandbox" in subject.env.needs  # several programs in one block are one program
    bare_answers = {
        index: answer
        for index in range(len(subject.answered))
        if not programs and (answer := subject.answers.bare_answer(index)) and answer.strip()
    }
    if len(set(bare_answers.values()) | set(references)) < _LEAST_LISTED:
        raise NotCheckedError("fewer than 2 different answers are known; write reference()")
    lists: dict[str, list[Attempt]] = {}
    for index, (task, reference) in enumerate(subject.answered[: subject.small_count]):
        own = subject.answers.last_turns[index]
        others = [text for text in references if text != own][:_MAX_LISTED]
        if programs:
            others = [text for other in others if (text := _under_name_of(own, other)) != own]
        if len(others) > 1:  # what has a middle
            lists.setdefault("all references, the right one in the middle", []).append(
                (task, with_last_turn(reference, "\n".join(_insert_in_middle(others, own))))
            )
        if (right := bare_answers.get(index)) is None:
            continue
        wrong = [text for text in dict.fromkeys(bare_answers.values()) if text != right]
        is_json = right == own.strip() and right[0] in "[{"
        for order, texts in _orders(subject, right, wrong[:_MAX_LISTED], is_json=is_json):
            for form, text in _listed(subject, index, texts):
                lists.setdefault(f"{form}, the right one {order}", []).append((task, text))
    if not lists:
        raise NotCheckedError("no different answers are known apart from what stands around them")
    for kind, attempts in lists.items():
        advice = ADVICE_BESIDE_RIGHT.get(kind.rpartition(" ")[2], "")
        advice = f"; {advice}" if advice else ""
        await subject.must_fail(kind, attempts, beside_right=True, advice=advice)
    return f"{len(lists)} ways to list all answers never pass"


def _orders(
    subject: Subject, right: str, wrong: Sequence[str], *, is_json: bool
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the lists of answers that must not pass, by where the right one stands in them.

    Args:
        subject: The environment that is checked.
        right: The right answer.
        wrong: The other answers.
        is_json: Whether the answer is JSON alone: it ends where it ends, so that with the right one
            first or last these are complete answers.
    """
    orders = {"in the middle": _insert_in_middle(wrong, right)} if len(wrong) > 1 else {}
    if wrong and not is_json:
        orders["last"] = [*wrong, right]
        orders["first"] = [right, *wrong]  # what passes this way alone ignores the ending
    orders.pop(_COMMITTED.get(subject.env.answer_at, ""), None)
    yield from orders.items()


def _listed(subject: Subject, index: int, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield lists of answers, bare and in the form of the answer at `index`."""
    for separator in (" ", ", ", "\n"):
        bare = separator.join(texts)
        yield "all answers", bare
        filled = subject.answers.replace_answer(index, bare)
        if filled is not None and filled != bare:
            yield "all answers in one form", filled


def _insert_in_middle(others: Sequence[str], right: str) -> list[str]:
    """Return all texts with `right` in the middle."""
    return [*others[::2], right, *others[1::2]]


def _under_name_of(own: str, other: str) -> str:
    """Return the program `other` with what it alone defines under the name that `own` alone has."""
    names, others = (_DEFINITION.findall(text) for text in (own, other))
    wanted = [name for name in names if name not in others]
    given = [name for name in others if name not in names]
    if not wanted or not given:
        return other
    return re.sub(rf"\b{re.escape(given[-1])}\b", wanted[-1], other)


@check("floor.suffix", "fault", asks="Does the right answer with something added fail?")
async def check_suffix(subject: Subject) -> str:
    """Check that the right answer with something added to it does not pass.

    The addition is inside the form of the answer; behind the form, an explanation may follow.
    """
    if "sandbox" in subject.env.needs:
        raise NotCheckedError(
            "the answers are programs, which may end in many ways and still be right"
        )
    if "judge" in subject.env.needs:
        raise NotCheckedError("a judge compares, and may find the answer right with an ending")
    if subject.env.open_ended:
        raise NotCheckedError("there is no best answer: a longer one may be as good")
    attempts_by_suffix = _suffixed_answers(subject)
    if not any(attempts_by_suffix.values()):
        raise NotCheckedError(
            "the answer inside the references is not known; return the extracted text as the "
            "verdict's answer"
        )
    for added, attempts in attempts_by_suffix.items():
        kind = f"the right answer with {added!r} added"
        verdicts = await subject.scored_verdicts(kind, attempts)
        paid = sum(subject.is_paid(verdict, beside_right=True) for verdict in verdicts)
        if paid >= MOST_TASKS * len(attempts):
            how = "passes" if all(verdict.passed for verdict in verdicts) else "is paid in full on"
            raise BrokenPromiseError(
                f"{kind} {how} {paid} of {len(attempts)} tasks; compare the whole answer"
            )
    return f"the right answer with any of {len(attempts_by_suffix)} endings does not pass"


def _suffixed_answers(subject: Subject) -> dict[str, list[Attempt]]:
    """Return by suffix a small number of references with the suffix added to their answer.

    Where the answer counts at the start or at the end of a free text, only what belongs to its own
    word is added. What is the same number with the suffix, as 2.50 is, is left out.
    """
    known = [
        (index, answer)
        for index in range(len(subject.answered))
        if (answer := subject.answers.bare_answer(index)) and answer.strip()
    ][: subject.small_count]
    attempts = {
        added: [
            (subject.answered[index][0], changed)
            for index, answer in known
            if not _same_number(subject, answer, f"{answer}{added}")
            and (head := subject.answers.split_answer(answer))
            and (
                changed := subject.answers.replace_answer(
                    index, f"{head[0]}{head[1]}{added}{head[2]}"
                )
            )
            is not None
        ]
        for added in (_SUFFIXES if subject.env.answer_at is None else _GLUED)
    }
    return {added: pairs for added, pairs in attempts.items() if pairs}


def _same_number(subject: Subject, right: str, text: str) -> bool:
    """Return whether `text` is a number that may pass for the number `right`."""
    number, value = _parse_number(text), _parse_number(right)
    return number is not None and value is not None and _is_within(subject, value, number)


def _is_within(subject: Subject, right: float, number: float) -> bool:
    """Return whether `number` is within the declared tolerance of `right`."""
    widened = min(subject.env.tolerance * (1 + 1e-9), 1 - 1e-9)
    return same_number(number, right, relative=widened, absolute=widened)


@check(
    "floor.near",
    "fault",
    asks=(
        "Does a number close to the right one, a part of the right answer, or its items in "
        "another order than the prompt asks for, fail?"
    ),
)
async def check_near(subject: Subject) -> str:
    """Check that what is close to the right answer does not pass most tasks.

    These are numbers nearby, as with a tolerance that is not declared, the digits in another order,
    and the answer without its last character.
    """
    require_best_answer(subject)
    if subject.services:
        raise NotCheckedError("its answers are compared by a sandbox or a judge")
    attempts: dict[str, list[Attempt]] = {}
    for index in range(len(subject.answered)):
        answer = subject.answers.bare_answer(index)
        value = _parse_number(answer)
        candidates = {} if value is None else _near_numbers(value, subject.env.tolerance)
        if subject.env.answer_at is not None:  # before a number in a text, "-" is a dash
            candidates.pop(_NEGATED, None)
        head, part, tail = subject.answers.split_answer(answer or "")
        parts = near_texts(part, with_numbers=not subject.env.tolerance)
        near = {kind: f"{head}{text}{tail}" for kind, text in parts.items()}
        if len(split_turns(subject.answered[index][1])) > 1:  # the last of several words may be any
            near.pop(EXCHANGED, None)
        near |= not_as_asked(prompt_text(subject.answered[index][0]), answer or "")
        for kind, text in {**candidates, **near}.items():
            changed = subject.answers.replace_answer(index, text)
            if changed is not None and not _same_number(subject, answer or "", text):
                attempts.setdefault(kind, []).append((subject.answered[index][0], changed))
    attempts = {
        kind: pairs for kind, pairs in attempts.items() if len(pairs) >= MIN_TASKS_FOR_SHARE
    }
    if not attempts:
        raise NotCheckedError(
            f"fewer than {MIN_TASKS_FOR_SHARE} answers are known apart from what stands around "
            "them, and are numbers or long enough to be cut"
        )
    for kind, pairs in attempts.items():
        passed = [
            text
            for (_, text), verdict in zip(pairs, await subject.verdicts(pairs), strict=True)
            if verdict.passed
        ]
        if len(passed) >= MOST_TASKS * len(pairs):
            advice = (
                "compare the whole answer"
                if kind == CUT
                else "compare as `tolerance` says"
                if subject.env.tolerance
                else "compare exactly, or declare the `tolerance`"
            )
            raise BrokenPromiseError(
                f"{kind}, such as {shorten(passed[0])}, passes {len(passed)} of {len(pairs)} "
                f"tasks; {advice}"
            )
    return f"{len(attempts)} kinds of near misses do not pass"


_NEGATED = "the number with the other sign"


def _parse_number(text: str | None) -> float | None:
    """Return the number that `text` is, or None."""
    try:
        value = float(text) if text is not None and len(text) < 30 else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def _near_numbers(value: float, tolerance: float) -> dict[str, str]:
    """Return numbers close to `value` by their kind, one of them beyond the tolerance."""
    numbers: dict[str, str] = {}
    if value == int(value) and abs(value) < 1e15:
        whole = int(value)
        numbers = {
            "a number 1 above": str(whole + 1),
            "a number 1 below": str(whole - 1),
            "a number half above": f"{whole}.5" if whole >= 0 else str(whole + 0.5),
            "a number a quarter above": f"{whole}.25" if whole >= 0 else str(whole + 0.25),
        }
    if value:
        numbers[_NEGATED] = _written(-value, value)
    if abs(value) >= 1:
        numbers |= {
            "a number 0.5 % above": _written(value * 1.005, value),
            "a number 0.01 % above": _written(value * 1.0001, value),
        }
    if tolerance:
        beyond = value + 3 * tolerance * max(1.0, abs(value))
        numbers["a number 3 tolerances above"] = _written(beyond, value)
    return {kind: number for kind, number in numbers.items() if float(number) != value}


def _written(number: float, right: float) -> str:
    """Return a number without an exponent, as an integer where `right` is one and it differs."""
    if right == int(right) and round(number) != right:
        return str(round(number))
    return f"{number:.10f}".rstrip("0").rstrip(".")
