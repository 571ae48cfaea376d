"""Check that prompts do not hold their answer, in whatever spelling."""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grpo_core import Task
from grpo_core.words import prompt_text, shorten
from grpo_kit.check import check
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject, task_label

_MOST_PROMPTS = 0.75
"""The least share of prompts with their own answer at which the environment gives it away."""
_BY_CHANCE = 0.5
"""The allowed excess of answers in own prompts over answers in prompts of other tasks."""
_OTHERS = 5
"""Other prompts in which each answer is looked for."""
_CASES_JUDGED = 3
"""Answers in another case that are given to the verifier, which says whether case matters."""
_LABEL = (
    r"(?:answers?|correct|expected|expects?|key|reference|results?|solutions?)\W{0,3}(?:is\W+)?"
)
"""What stands before an answer that the prompt gives away as such."""
_MAX_CHARACTERS = 35_000
"""Characters of all prompts in which answers are looked for."""


@check(
    "task.secret",
    "fault",
    asks="Is the answer absent from the prompt, also backwards, padded or encoded?",
)
async def check_secret(subject: Subject) -> str:
    """Check that answers are not more frequent in their own prompt than in those of other tasks.

    They are looked for as they are, in another case, and in spellings that hide them from a reader
    and not from a policy.
    """
    if subject.env.answer_in_prompt:
        raise NotCheckedError("the environment declares answer_in_prompt = True")
    known = _known_answers(subject)
    if len(known) < 4:
        raise NotCheckedError(
            "too few answers are known; write reference(), and give what was extracted as the "
            "verdict's answer"
        )
    if len({answer for _, answer in known}) < 2:
        raise NotCheckedError("all known answers are the same, so none tells of its task")
    text = " ".join(prompt_text(task) for task, _ in known[:_OTHERS]).casefold()
    shares = list[str]()
    for name, (holds, asked_for) in _SPELLINGS.items():
        if re.search(asked_for, text):
            continue  # the task is to turn this spelling into the answer
        own, by_chance = _shares(known, holds)
        shares.append(f"{sum(own)} {name}")
        if sum(own) / len(own) < max(_MOST_PROMPTS, by_chance + _BY_CHANCE):
            continue
        example_task, example_answer = known[own.index(True)]
        if (
            name == "in another case"
            and not _shares(known, _holds_labelled)[0].count(True) >= _MOST_PROMPTS * len(own)
            and not await _case_is_ignored(subject, known)
        ):
            continue
        raise BrokenPromiseError(
            f"the prompt holds the answer {name} in {sum(own)} of {len(own)} tasks, "
            f"such as {shorten(example_answer)} at {task_label(example_task)}; if the task is "
            "meant so (multiple choice, copying), set answer_in_prompt = True"
        )
    return f"of {len(known)} answers their own prompt holds {', '.join(shares)}"


def _known_answers(subject: Subject) -> Sequence[tuple[Task[Any], str]]:
    """Return tasks with the bare answer of their reference, of the wide sample where possible.

    The answer of a program is the whole of it: its prompt may name the number that it adds.
    """
    if "sandbox" in subject.env.needs:
        return subject.answered
    known = [
        (task, answer)
        for index, (task, _) in enumerate(subject.answered)
        if (answer := subject.answers.bare_answer(index)) and answer.strip()
    ]
    before, after = subject.answers.form.before, subject.answers.form.after
    if not known or not (before or after):
        return known
    seen = {task.key for task, _ in known}
    for task, text in subject.wide.answered:
        answer = text[len(before) : len(text) - len(after)]
        if task.key not in seen and text == f"{before}{answer}{after}" and answer.strip():
            known.append((task, answer))
    mean_length = sum(len(prompt_text(task)) for task, _ in known) / len(known)
    return known[: max(len(seen), round(_MAX_CHARACTERS / mean_length))]


def _shares(
    known: Sequence[tuple[Task[Any], str]], holds: Callable[[str, str], bool]
) -> tuple[list[bool], float]:
    """Return whether each prompt holds its answer, and the share of other prompts that hold it."""
    prompts = [prompt_text(task) for task, _ in known]
    own = [holds(prompt, answer) for prompt, (_, answer) in zip(prompts, known, strict=True)]
    others = [
        holds(prompts[(i + step) % len(known)], answer)
        for i, (_, answer) in enumerate(known)
        for step in range(1, min(_OTHERS, len(known)))
        if known[(i + step) % len(known)][1] != answer
    ]
    return own, sum(others) / len(others) if others else 0.0


async def _case_is_ignored(subject: Subject, known: Sequence[tuple[Task[Any], str]]) -> bool:
    """Return whether the verifier accepts answers in the case in which prompts hold them."""
    answers = {id(task): answer for task, answer in known}
    attempts = []
    for index, (task, _) in enumerate(subject.answered):
        answer = answers.get(id(task), "")
        found = re.search(re.escape(answer), prompt_text(task), re.IGNORECASE) if answer else None
        text = subject.answers.replace_answer(index, found[0]) if found else None
        if text is not None and found is not None and found[0] != answer:
            attempts.append((task, text))
    if not attempts:
        return True
    return any(verdict.passed for verdict in await subject.verdicts(attempts[:_CASES_JUDGED]))


def _holds_words(prompt: str, answer: str) -> bool:
    return _spaced_words(answer) in _spaced_words(prompt)


def _holds_in_another_case(prompt: str, answer: str) -> bool:
    return _spaced_words(answer.casefold()) in _spaced_words(prompt.casefold())


def _holds_labelled(prompt: str, answer: str) -> bool:
    """Return whether the prompt holds the answer, in any case, behind a word like "expected"."""
    wanted = rf"{_LABEL}{re.escape(answer.strip())}(?!\w)"
    return re.search(wanted, prompt, re.IGNORECASE) is not None


def _spaced_words(text: str) -> str:
    """Return the words of `text` between spaces, so that 4 is not found in 42."""
    words = re.findall(r"[.+-]*[^\W_]+(?:[.+-]+[^\W_]+)*", text)
    return f" {' '.join(words)} "


def _holds_padded(prompt: str, answer: str) -> bool:
    number = answer.strip()
    return (
        number.isdecimal() and re.search(rf"(?<![\d.])0*{int(number)}(?![\d.])", prompt) is not None
    )


def _holds_reversed(prompt: str, answer: str) -> bool:
    turned = answer.strip()[::-1]
    return turned != answer.strip() and _holds_in_another_case(prompt, turned)


def _holds_spaced_out(prompt: str, answer: str) -> bool:
    letters = answer.strip()
    return len(letters) > 1 and letters.isalnum() and _holds_words(prompt, " ".join(letters))


def _holds_rotated(prompt: str, answer: str) -> bool:
    turned = codecs.encode(answer.strip(), "rot13")
    return turned != answer.strip() and _holds_in_another_case(prompt, turned)


def _holds_hex(prompt: str, answer: str) -> bool:
    number = answer.strip()
    if number.isdecimal() and len(number) < 40:
        value = f"{int(number):x}"
        if re.search(rf"\b0x0*{value}\b", prompt, re.IGNORECASE) or (
            not value.isdecimal() and re.search(rf"\b0*{value}\b", prompt, re.IGNORECASE)
        ):
            return True
    return any(
        _holds_in_another_case(decoded, number)
        for token in re.findall(r"(?:[0-9a-f]{2}){2,}", prompt, re.IGNORECASE)
        if (decoded := _decoded(bytes.fromhex, token))
    )


def _holds_base64(prompt: str, answer: str) -> bool:
    return any(_holds_in_another_case(decoded, answer) for decoded in _texts_in_base64(prompt))


def _holds_inside_base64(prompt: str, answer: str) -> bool:
    """Return whether the answer is a part of what a text in base64 says."""
    return any(
        decoded.casefold() != answer.casefold() and _holds_in_another_case(decoded, answer)
        for decoded in _texts_in_base64(prompt)
    )


def _texts_in_base64(prompt: str) -> Iterator[str]:
    """Yield what parts of the prompt say if they are base64, also those between slashes."""
    for token in re.findall(r"[A-Za-z0-9+/_-]{2,}={0,2}", prompt):
        for part in dict.fromkeys((token, *token.split("/"))):
            if decoded := _decoded(_from_base64, part.rstrip("=")):
                yield decoded


def _holds_keys(prompt: str, answer: str) -> bool:
    """Return whether the prompt has the values of a JSON object right behind their keys."""
    pairs = re.findall(r'"(\w+)":\s*"?([\w.+-]+)"?', answer)
    return len(pairs) > 1 and all(
        re.search(rf"\b{key}\W{{1,6}}(?:const\W{{1,6}})?{re.escape(value)}(?!\w)", prompt)
        for key, value in pairs
    )


def _from_base64(token: str) -> bytes:
    return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)


def _decoded(decode: Callable[[str], bytes], token: str) -> str:
    """Return the text that `token` encodes, or "" if it encodes none."""
    try:
        text = decode(token).decode("ascii")
    except (ValueError, binascii.Error):
        return ""
    return text if text.isprintable() else ""


_SPELLINGS: Mapping[str, tuple[Callable[[str, str], bool], str]] = {
    "as it is": (_holds_words, r"(?!)"),
    "in another case": (_holds_in_another_case, r"(?!)"),
    "key by key": (_holds_keys, r"(?!)"),
    "with leading zeros": (_holds_padded, r"zero|\bpad"),
    "backwards": (
        _holds_reversed,
        r"revers|backward|mirror|right to left|last .*first|\bflip|\bturn",
    ),
    "letter by letter": (_holds_spaced_out, r"spell|letter by letter|\bspace"),
    "in rot13": (_holds_rotated, r"\brot|caesar|shift|encod|decod|cipher"),
    "in hexadecimal": (_holds_hex, r"\bhex|base.?16|\bbase\b|encod|decod|cipher"),
    "in base64": (_holds_base64, r"base.?64|encod|decod|cipher"),
    "among other words in base64": (_holds_inside_base64, r"base.?64"),
}
"""Spellings by their name: whether a prompt holds an answer so, and which prompts ask for that."""
