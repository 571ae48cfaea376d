"""Check that an answer that names everything does not pass for one that names what is right."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.words import prompt_text, shorten
from grpo_kit.answers.floors import MOST_TASKS, require_best_answer
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, TOLERANCE, Attempt, Subject

_ITEM = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+(?:[-'][^\W\d_]+)*")
_SEPARATORS = (", ", ",", "; ", ";", "\n", " ")
"""What stands between the items of an answer; the first that occurs is the one."""
_MOST_ITEMS = 300
_MOST_CHOICES = 12
_MOST_ANSWERS = 40
"""More different items in all answers are no list of choices."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The items of a right answer; none where it is JSON without a list of them."""

    items: tuple[str, ...]
    separators: tuple[str, ...]
    """How the items of a longer answer may be joined; empty for JSON."""
    value: Any = None
    """The answer, if it is JSON."""


@check(
    "floor.superset",
    "fault",
    asks="Does an answer that names all items of the prompt, or of all answers, fail?",
)
async def check_superset(subject: Subject) -> str:
    """Check that all items of the prompt, or all possible items, do not pass as one answer.

    Each is tried in two orders, so that an answer does not pass because of its place.
    """
    require_best_answer(subject)
    if subject.services:
        raise NotCheckedError("its answers are compared by a sandbox or a judge")
    attempts: dict[str, list[tuple[Attempt, Attempt]]] = {}
    answers = [_parse(subject.answers.bare_answer(index)) for index in range(len(subject.answered))]
    known = {item: None for answer in answers if answer for item in answer.items}
    for index, ((task, reference), answer) in enumerate(
        zip(subject.answered, answers, strict=True)
    ):
        if answer is None or not answer.items or len(split_turns(reference)) > 1:
            continue
        prompt = prompt_text(task)
        sources = {
            "all items of the prompt": _items_of_prompt(prompt, answer),
            "all items of all answers": list(known) if len(known) <= _MOST_ANSWERS else [],
        }
        for source, items in sources.items():
            # so much more than is right that no fair share of the reward is near to all of it
            if not 2 * len(answer.items) <= len(items) <= _MOST_ITEMS:
                continue
            orders = zip(_joined(answer, items), _joined(answer, items[::-1]), strict=True)
            for number, texts in enumerate(orders):
                first, second = (subject.answers.replace_answer(index, text) for text in texts)
                if first is not None and second is not None:
                    attempts.setdefault(f"{source} as one answer {number}", []).append(
                        ((task, first), (task, second))
                    )
    attempts |= _with_all_keys(subject, answers)
    attempts |= _with_all_choices(subject, answers)
    attempts = {
        kind: pairs for kind, pairs in attempts.items() if len(pairs) >= MIN_TASKS_FOR_SHARE
    }
    if not attempts:
        raise NotCheckedError(
            "fewer than 4 answers are choices from several items that the prompt or other answers "
            "name"
        )
    for kind, pairs in attempts.items():
        await _must_not_pay(subject, kind.rpartition(" ")[0], pairs)
    return f"{len(attempts)} ways to name everything do not pass, and are not paid as right answers"


def _with_all_keys(
    subject: Subject, answers: Sequence[_Answer | None]
) -> dict[str, list[tuple[Attempt, Attempt]]]:
    """Return answers that are objects with the keys of all answers, where the keys differ."""
    objects = {
        index: answer.value
        for index, answer in enumerate(answers)
        if answer is not None and isinstance(answer.value, dict)
    }
    union = {key: value for found in objects.values() for key, value in found.items()}
    pairs: list[tuple[Attempt, Attempt]] = []
    for index, found in objects.items():
        if not 2 * len(found) <= len(union) <= _MOST_ANSWERS:
            continue
        whole = union | found
        texts = (json.dumps(whole), json.dumps(dict(reversed(list(whole.items())))))
        first, second = (subject.answers.replace_answer(index, text) for text in texts)
        if first is not None and second is not None:
            task = subject.answered[index][0]
            pairs.append(((task, first), (task, second)))
    return {"all keys of all answers in one 0": pairs} if pairs else {}


def _with_all_choices(
    subject: Subject, answers: Sequence[_Answer | None]
) -> dict[str, list[tuple[Attempt, Attempt]]]:
    """Return objects of one key whose text is all texts that answers have under it."""
    chosen = {
        index: next(iter(answer.value.items()))
        for index, answer in enumerate(answers)
        if answer is not None and isinstance(answer.value, dict) and len(answer.value) == 1
    }
    texts = list(dict.fromkeys(text for _, text in chosen.values() if isinstance(text, str)))
    if not 2 <= len(texts) <= _MOST_CHOICES:
        return {}
    attempts: dict[str, list[tuple[Attempt, Attempt]]] = {}
    for index, (key, _) in chosen.items():
        ways = ("".join(texts), "".join(texts[::-1])), (texts, texts[::-1])
        for number, both in enumerate(ways):
            first, second = (
                subject.answers.replace_answer(index, json.dumps({key: way})) for way in both
            )
            if first is not None and second is not None:
                task = subject.answered[index][0]
                kind = f"all choices of all answers in one {number}"
                attempts.setdefault(kind, []).append(((task, first), (task, second)))
    return attempts


async def _must_not_pay(
    subject: Subject, kind: str, pairs: Sequence[tuple[Attempt, Attempt]]
) -> None:
    """Check that the attempts do not pass most tasks, and are not paid like references."""
    verdicts = await subject.verdicts([attempt for pair in pairs for attempt in pair])
    both = list(zip(verdicts[::2], verdicts[1::2], strict=True))
    passed = sum(one.passed and other.passed for one, other in both)
    example = shorten(pairs[0][0][1])
    if passed >= MOST_TASKS * len(pairs):
        raise BrokenPromiseError(
            f"{kind}, such as {example}, passes {passed} of {len(pairs)} tasks; what is named and "
            "is wrong must count against an answer"
        )
    right = [verdict.total for verdict in subject.reference_verdicts if verdict.passed]
    paid = math.fsum(min(one.total, other.total) for one, other in both) / len(both)
    floor = subject.env.floor
    best = math.fsum(right) / len(right) - floor if right else 0.0
    if best > TOLERANCE and paid - floor >= MOST_TASKS * best:
        raise BrokenPromiseError(
            f"{kind}, such as {example}, is paid {(paid - floor) / best:.0%} of what the "
            "references are; what is named and is wrong must cost something"
        )


def _parse(answer: str | None) -> _Answer | None:
    """Return the items of an answer, or None where it has none."""
    text = (answer or "").strip()
    if not text:
        return None
    if text[0] in "[{":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        items = _json_items(value)
        return _Answer(tuple(map(str, items)), (), value)
    for separator in _SEPARATORS:
        if separator in text:
            items = [item.strip() for item in text.split(separator)]
            return _Answer(tuple(filter(None, items)), (separator,))
    return _Answer((text,), (", ", " ", "\n", *([""] if len(text) == 1 else [])))


def _json_items(value: Any) -> list[Any]:
    """Return the items of the first list of plain values in `value`."""
    if isinstance(value, list) and value and not any(isinstance(i, list | dict) for i in value):
        return value
    children = value.values() if isinstance(value, dict) else ()
    return next((found for child in children if (found := _json_items(child))), [])


def _items_of_prompt(prompt: str, answer: _Answer) -> list[str]:
    """Return the items in `prompt` that look like those of the answer; none if it lacks some."""
    words = dict.fromkeys(_ITEM.findall(prompt))
    if not all(re.search(rf"(?<!\w){re.escape(item)}(?!\w)", prompt) for item in answer.items):
        return []
    numbers = all(_is_number(item) for item in answer.items)
    missing = [item for item in answer.items if item not in words]
    return [*(word for word in words if _is_number(word) or not numbers), *missing]


def _is_number(text: str) -> bool:
    """Return whether `text` is written with digits."""
    return text.lstrip("-")[:1].isdigit()


def _joined(answer: _Answer, items: Sequence[str]) -> list[str]:
    """Return all `items` as one answer, in the forms that an answer may have."""
    if answer.separators:
        return [separator.join(items) for separator in answer.separators]
    plain = [*_json_items(answer.value)]
    known = {str(item): item for item in plain}
    kind = type(plain[0])
    values = []
    for item in items:
        if item in known:
            values.append(known[item])
        elif kind is str:
            values.append(item)
        elif _is_number(item):
            values.append(json.loads(item) if not item.lstrip("-").startswith("0") else 0)
    return [json.dumps(_with_items(answer.value, values))]


def _with_items(value: Any, items: Sequence[Any]) -> Any:
    """Return `value` with `items` in the place of its first list of plain values."""
    if isinstance(value, list):
        return list(items)
    assert isinstance(value, Mapping)
    changed = dict(value)
    for key, child in value.items():
        if _json_items(child):
            return changed | {key: _with_items(child, items)}
    return changed
