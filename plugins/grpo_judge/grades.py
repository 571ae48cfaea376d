"""Reads the grade in an answer of the judge `llm`."""

from __future__ import annotations

import json
import re
from typing import Any

from grpo_core.extract import parse_json
from grpo_judge.prompts import HIGHEST, LOWEST

CUT = "(the judge's reason is cut or broken)"
"""Used as the reason if a judge's answer breaks off."""
BOM = "\ufeff"
_THOUGHT = re.compile(r"<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_THOUGHT_END = re.compile(r"</(think|thinking|thought|reasoning)>", re.IGNORECASE)
_OPENING_FENCE = re.compile(r"(```+|~~~+)[ \t]*\w*[ \t]*\r?\n?")
_LEAD_IN = re.compile(r"[^{}\n`~]{1,100}:\s*\n\s*(?=\{|```|~~~)")
"""A line such as "Here is my grade:" before the JSON."""
_QUOTING = re.compile(
    r"\b(sa(ys?|id)|reads?|writes?|wrote|claim|ask|want|demand|quote|contain|state|tell|instruct"
    r"|request|suggest|begin|start|end|include|imitate|pretend)(s|ed|ing)?\b",
    re.IGNORECASE,
)
"""Words of a line that announces a grade which the text itself holds, and not the judge's."""
_NUMBER_AS_TEXT = re.compile(rf"\s*(\d{{1,2}}(?:\.\d{{1,4}})?)\s*(/\s*{HIGHEST})?\s*", re.ASCII)
_SECOND_GRADE = re.compile(r'\{\s*"score"')


class UnreadableGradeError(ValueError):
    """An answer holds no grade.

    The message quotes the whole answer: before it is shown, keys have to be removed and then the
    text cut.
    """


def grade(answer: str | None) -> tuple[float, str]:
    """Return the score in 0..1 and the reason.

    The JSON may stand behind thoughts and in a fence, and the score may be a number in quotes. An
    answer whose JSON is cut or broken still has a score if it begins with the score: there, it
    precedes anything that the judge may have quoted from the text. Behind thoughts, which may
    quote the text as well, the JSON has to be complete.

    Raises:
        UnreadableError: The answer holds no grade.
    """
    rest, has_thoughts = _behind_thoughts((answer or "").strip().removeprefix(BOM).strip())
    text = _without_lead_in(_without_fence(_without_lead_in(rest)))
    parsed = parse_json(text)
    broken = None if has_thoughts else _parse_broken(text)
    value = parsed.value if parsed is not None else broken
    score = _as_number(_score_in(value)) if isinstance(value, dict) else None
    if not isinstance(value, dict) or score is None or not LOWEST <= score <= HIGHEST:
        raise UnreadableGradeError(
            f"no grade in {text!r}: JSON with a score from {LOWEST:g} to {HIGHEST:g} was asked for"
        )
    if LOWEST < score < LOWEST + 1:
        raise UnreadableGradeError(
            f"the score {score:g} seems to be of another scale; a whole number from {LOWEST:g} to "
            f"{HIGHEST:g} was asked for"
        )
    return (score - LOWEST) / (HIGHEST - LOWEST), str(value.get("reason", ""))


def _behind_thoughts(text: str) -> tuple[str, bool]:
    """Return what follows the thoughts that an answer opens with, and whether it has any.

    Thoughts end at their first closing mark; what follows is "" if they do not end. The opening
    mark may be missing, since some chat templates put it into the prompt.
    """
    end = None if text.startswith(("{", "`", "~")) else _THOUGHT_END.search(text)
    if end is not None:
        return text[end.end() :].strip(), True
    has_thoughts = _THOUGHT.match(text) is not None
    return ("" if has_thoughts else text), has_thoughts


def _without_lead_in(text: str) -> str:
    """Return what follows a line that announces the judge's grade, or the text as it is."""
    lead_in = _LEAD_IN.match(text)
    if lead_in is None or _QUOTING.search(lead_in[0]):
        return text
    return text[lead_in.end() :]


def _without_fence(text: str) -> str:
    """Return the content of the fence that an answer begins with, or the text as it is."""
    opening = _OPENING_FENCE.match(text)
    if opening is None:
        return text
    return text[opening.end() :].removesuffix(opening[1]).strip()


def _score_in(value: dict[str, Any]) -> object:
    """Return the only member called score, in whatever case."""
    scores = [member for name, member in value.items() if name.lower() == "score"]
    return scores[0] if len(scores) == 1 else None


def _as_number(score: object) -> float | None:
    """Return a score as a number, also "7", "7/10" and 7.5."""
    if isinstance(score, str) and (number := _NUMBER_AS_TEXT.fullmatch(score)) is not None:
        return float(number[1])
    return float(score) if type(score) in (int, float) and isinstance(score, int | float) else None


_SCORE_FIRST = re.compile(r'\s*\{\s*"score"\s*:\s*("?)(0|[1-9][0-9]?)\1\s*,')
_NEXT_KEY = re.compile(r'\s*(?=")')
_COLON = re.compile(r"\s*:\s*")
_COMMA = re.compile(r"\s*,")


def _parse_broken(text: str) -> dict[str, Any] | None:
    """Return the score of an object whose end is missing or broken.

    The comma after the number shows that the number is complete. A second score among the members
    of the object that can still be read makes the answer ambiguous, and the result None.
    """
    first = _SCORE_FIRST.match(text)
    if first is None or len(_SECOND_GRADE.findall(text)) > 1 or _has_more_behind(text):
        return None
    value, position = {"score": int(first[2]), "reason": CUT}, first.end()
    decoder = json.JSONDecoder(strict=False)
    try:
        while (start := _NEXT_KEY.match(text, position)) is not None:
            key, position = decoder.raw_decode(text, start.end())
            if key == "score":
                return None
            if (colon := _COLON.match(text, position)) is None:
                break
            _, position = decoder.raw_decode(text, colon.end())
            if (comma := _COMMA.match(text, position)) is None:
                break
            position = comma.end()
    except (ValueError, RecursionError):
        return value  # the object breaks off here
    return value


def _has_more_behind(text: str) -> bool:
    """Return whether something follows a whole object, which may then be a quoted one."""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(text[end:].strip())
