"""Check that an answer in a spelling that is not one, or that is another answer, does not pass."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from grpo_core.kit.floors import MOST_TASKS
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import MIN_TASKS_FOR_SHARE, Attempt, Subject
from grpo_core.report.floors import prompt_text, shorten

_OTHER_DIGITS = {"Arabic digits": "\u0660", "full-width digits": "\uff10"}
"""The zero of other scripts, whose digits `int` and `float` read."""
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_MIXED_CASE = re.compile(r"[^\W\d_A-Z][A-Z]")
"""A capital letter inside a word."""


async def check_spelling(subject: Subject) -> str:
    """Check that numbers, truth values, JSON and case are read as they are written.

    It tries 1_7, 1 7 and the digits of other scripts for 17, true for 1, a JSON key that is there
    twice, and the answer in another case where the case is what is asked for.
    """
    if subject.env.needs:
        raise NotCheckedError("its answers are compared by a sandbox or a judge")
    attempts: dict[str, list[Attempt]] = {}
    for index, (task, _) in enumerate(subject.answered):
        for kind, text in _misspellings(subject.bare_answer(index)):
            changed = subject.replace_answer(index, text)
            if changed is not None:
                attempts.setdefault(kind, []).append((task, changed))
    attempts |= _in_other_case(subject)
    if not attempts:
        raise NotCheckedError(
            "no answers are known that are numbers or JSON, or in which the case matters"
        )
    for kind, pairs in attempts.items():
        verdicts = await subject.verdicts(pairs)
        passed = [
            text for (_, text), verdict in zip(pairs, verdicts, strict=True) if verdict.passed
        ]
        if len(passed) >= MOST_TASKS * len(pairs):
            raise BrokenPromiseError(
                f"the right answer {kind}, such as {shorten(passed[0])}, passes {len(passed)} of "
                f"{len(pairs)} tasks; read answers with parse_integer, parse_decimal or parse_json "
                "of grpo_core.extract, and compare exactly"
            )
    return f"{len(attempts)} misspellings of right answers do not pass"


def _misspellings(answer: str | None) -> Iterator[tuple[str, str]]:
    """Yield what a lenient verifier takes for `answer`, with the name of its kind."""
    if answer is None:
        return
    answer = answer.strip()
    if _NUMBER.fullmatch(answer):
        yield from _misspelt_number(answer)
    elif answer.lower() in ("true", "false"):
        yield "as a number", str(int(answer.lower() == "true"))
        yield "as a decimal number", str(float(answer.lower() == "true"))
    elif answer[:1] in ("{", "["):
        try:
            yield from _misspelt_json(json.loads(answer))
        except (ValueError, RecursionError):
            return


def _misspelt_number(answer: str) -> Iterator[tuple[str, str]]:
    """Yield misspellings of a number."""
    for script, zero in _OTHER_DIGITS.items():
        digits = {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}
        yield f"in {script}", answer.translate(digits)
    for name, separator in (("an underscore", "_"), ("a space", " ")):
        if (changed := re.sub(r"(\d)(\d)", rf"\1{separator}\2", answer, count=1)) != answer:
            yield f"with {name} between its digits", changed
    if answer in ("0", "1"):
        yield "as a truth value", str(answer == "1")
        yield "as a truth value of JSON", str(answer == "1").lower()


def _misspelt_json(value: Any) -> Iterator[tuple[str, str]]:
    """Yield misspellings of a JSON value: truth values for numbers, and a key that is twice."""
    if (changed := _with_other_truth(value)) is not None:
        yield "with true for 1, or 1 for true", json.dumps(changed)
    if isinstance(value, dict) and value:
        key, right = next(iter(value.items()))
        wrong = json.dumps(_other(right))
        whole = json.dumps(value)
        yield (
            "with a JSON key twice, the wrong value first",
            f"{{{json.dumps(key)}: {wrong}, {whole[1:]}",
        )
        yield (
            "with a JSON key twice, the wrong value last",
            f"{whole[:-1]}, {json.dumps(key)}: {wrong}}}",
        )


def _with_other_truth(value: Any) -> Any:
    """Return `value` with true for each 1 and 1 for each true, likewise 0; None if it has none."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return bool(value) if value in (0, 1) else None
    if isinstance(value, list):
        changed = [_with_other_truth(item) for item in value]
        found = [
            item if other is None else other for item, other in zip(value, changed, strict=True)
        ]
        return found if any(other is not None for other in changed) else None
    if isinstance(value, dict):
        others = {key: _with_other_truth(item) for key, item in value.items()}
        if all(other is None for other in others.values()):
            return None
        return {key: item if others[key] is None else others[key] for key, item in value.items()}
    return None


def _other(value: Any) -> Any:
    """Return a JSON value of the same type that is not `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return [] if value else None


def _in_other_case(subject: Subject) -> dict[str, list[Attempt]]:
    """Return the answers in another case, where the case is what is asked for, else nothing.

    It is where most answers stand in their own prompt in another case, and in no other prompt, or
    have capitals inside their words.
    """
    known = [
        (index, task, answer)
        for index, (task, _) in enumerate(subject.answered)
        if (answer := subject.bare_answer(index)) and answer.casefold() != answer.upper()
    ]
    if subject.env.answer_in_prompt or len(known) < MIN_TASKS_FOR_SHARE:
        return {}
    prompts = [prompt_text(task) for _, task, _ in known]
    changed: list[Attempt] = []
    for place, (index, task, answer) in enumerate(known):
        others = [prompt for number, prompt in enumerate(prompts) if number != place]
        candidates = [
            text
            for text in (answer.lower(), answer.upper(), answer.title(), answer.swapcase())
            if text != answer
            and (
                bool(_MIXED_CASE.search(answer))
                or (_holds(prompts[place], text) and not any(_holds(o, text) for o in others))
            )
        ]
        if candidates and (reply := subject.replace_answer(index, candidates[0])) is not None:
            changed.append((task, reply))
    return {"in another case": changed} if len(changed) >= MOST_TASKS * len(known) else {}


def _holds(prompt: str, text: str) -> bool:
    """Return whether `prompt` holds `text` between the ends of words."""
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", prompt) is not None
