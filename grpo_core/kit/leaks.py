"""Checks that held-out tasks are not trained on, and that prompts do not hold their answer."""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.sample import in_time
from grpo_core.kit.subject import Subject, task_label
from grpo_core.protocol.types import Task
from grpo_core.report.floors import prompt_text, shorten
from grpo_core.verify.checks import size_of

_MOST_PROMPTS = 0.75
"""The least share of prompts with their own answer at which the environment gives it away."""
_BY_CHANCE = 0.5
"""The allowed excess of answers in own prompts over answers in prompts of other tasks."""
_OTHERS = 5
"""Other prompts in which each answer is looked for."""
_PARAPHRASED = 0.1
"""The share of held-out questions that are training questions in other words: no chance."""
_TURNED_ROUND = 0.5
"""The share of held-out questions that are training questions in another order: where numbers are
small, a tenth of them are by chance."""
_TWIN_SECONDS = 0.5
"""No further training task is made for a held-out one after this time."""
_TEMPLATE = 0.25
"""A word of a larger share of the questions belongs to their template."""
_TELLING = 0.8
"""The least share of training questions that their sorted words must tell apart."""
_CASES_JUDGED = 3
"""Answers in another case that are given to the verifier, which says whether case matters."""
_MAX_CHARACTERS = 60_000
"""Characters of all prompts in which answers are looked for."""
_STOP_WORDS = frozenset(
    """
    a an the of to in on at for from by with and or is are was were be do does did what which who
    how please can could would you will that this these those it its there me my i give find
    compute calculate determine tell say so then
    """.split()  # noqa: SIM905 - sixty quoted words would be harder to read
)


async def check_splits(subject: Subject) -> str:
    """Check that no held-out prompt is a training prompt, whatever its case, spacing and words."""
    if not subject.eval_tasks:
        raise NotCheckedError("there are no tasks in the eval split")
    train: dict[str, list[Task[Any]]] = {}
    for task in [*subject.tasks, *await subject.rows("train")]:
        train.setdefault(normalized_prompt(task), []).append(task)
    if len(train) == 1 < len(subject.tasks):
        raise NotCheckedError(
            "all prompts are alike: what tells tasks apart is hidden from the policy"
        )
    held_out = {
        normalized_prompt(task): task for task in [*subject.eval_tasks, *await subject.rows("eval")]
    }
    in_both = [task for question, task in held_out.items() if question in train]
    shared = [
        task
        for task in in_both
        if await answer_was_trained(subject, task, train[normalized_prompt(task)])
    ]
    if shared:
        raise BrokenPromiseError(
            f"{len(shared)} held-out prompts are training prompts, too, such as "
            f"{shorten(prompt_text(shared[0]))}; held-out scores mean nothing"
        )
    await _check_paraphrases(subject, train, held_out)
    others = f" ({len(in_both)} are the same, with other answers)" if in_both else ""
    return (
        f"{len(train)} train and {len(held_out)} eval prompts share none, whatever their case, "
        f"spacing and order of words{others}"
    )


async def _check_paraphrases(
    subject: Subject, train: Mapping[str, list[Task[Any]]], held_out: Mapping[str, Task[Any]]
) -> None:
    """Check that few held-out prompts are training prompts in another order of words.

    Training tasks at the places of the held-out ones are compared, too: they may be their models.

    Raises:
        BrokenPromiseError: So many are that it cannot be chance.
    """
    size = size_of(subject.env, "train")
    twins, _ = await in_time(
        subject.env.task,
        [
            replace(task.key, split="train")
            for task in held_out.values()
            if size is None or task.key.index < size
        ],
        seconds=_TWIN_SECONDS,
        limit=subject.env.timeout_seconds,
    )
    trained = {question: tasks[0] for question, tasks in train.items()}
    trained |= {normalized_prompt(task): task for _, task in twins}
    common = _common_words(list(trained)) | _common_words(list(held_out))
    for how, form, least in (
        ("in other words", _sorted_words, _PARAPHRASED),
        ("in another order", _sorted_items, _TURNED_ROUND),
    ):
        reworded: dict[object, list[Task[Any]]] = {}
        for question, task in trained.items():
            reworded.setdefault(form(question, common), []).append(task)
        if len(reworded) < _TELLING * len(trained):
            continue  # the order of the words is what tells these questions apart
        shared = list[tuple[Task[Any], Task[Any]]]()
        for question, task in [] if subject.reference_error else held_out.items():
            alike = reworded.get(form(question, common), [])
            if not alike or question in trained or await subject.verifier.reference(task) is None:
                continue
            if await answer_was_trained(subject, task, alike):
                shared.append((task, alike[0]))
        if len(shared) >= max(3, least * len(held_out)):
            task, alike_task = shared[0]
            raise BrokenPromiseError(
                f"{len(shared)} of {len(held_out)} held-out prompts are training prompts {how}, "
                f"such as {shorten(prompt_text(task))} and {shorten(prompt_text(alike_task))}; "
                "held-out scores mean little"
            )


def _common_words(questions: Sequence[str]) -> frozenset[str]:
    """Return stop words, and words of so many questions that they are those of a template."""
    counts = Counter(word for question in questions for word in set(_words(question)))
    frequent = {word for word, count in counts.items() if count > _TEMPLATE * len(questions)}
    return _STOP_WORDS | {word for word in frequent if not word.isdigit()}


def _words(question: str) -> list[str]:
    return re.findall(r"\w+", question)


def _sorted_words(question: str, common: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """Return what other wordings of a question have in common.

    These are its numbers in their order, and its other words, sorted and without common ones.
    """
    words = [word for word in _words(question) if word not in common]
    numbers = tuple(word for word in words if word[0].isdigit())
    return numbers, tuple(sorted(word for word in words if not word[0].isdigit()))


def _sorted_items(question: str, common: frozenset[str]) -> tuple[str, ...]:
    """Return all words and numbers of a question without common ones, in no order of their own."""
    return tuple(sorted(word for word in _words(question) if word not in common))


async def answer_was_trained(
    subject: Subject, held_out: Task[Any], trained: Sequence[Task[Any]]
) -> bool:
    """Return whether one of the training tasks with the same prompt has the answer of `held_out`.

    The same prompt may have different answers: a gap in a text may stand for different words.
    """
    if subject.reference_error:
        return True
    answers = [await subject.verifier.reference(task) for task in (held_out, *trained)]
    return answers[0] is None or answers[0] in answers[1:]


def normalized_prompt(task: Task[Any]) -> str:
    """Return the prompt without differences of case, spacing and final punctuation."""
    return " ".join(re.findall(r"\w+|[^\w\s]", prompt_text(task).casefold())).rstrip(" .!?")


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
        if name == "in another case" and not await _case_is_ignored(subject, known):
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
        if (answer := subject.bare_answer(index)) and answer.strip()
    ]
    before, after = subject.form.before, subject.form.after
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
        text = subject.replace_answer(index, found[0]) if found else None
        if text is not None and found is not None and found[0] != answer:
            attempts.append((task, text))
    if not attempts:
        return True
    return any(verdict.passed for verdict in await subject.verdicts(attempts[:_CASES_JUDGED]))


def _holds_words(prompt: str, answer: str) -> bool:
    return _spaced_words(answer) in _spaced_words(prompt)


def _holds_in_another_case(prompt: str, answer: str) -> bool:
    return _spaced_words(answer.casefold()) in _spaced_words(prompt.casefold())


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
    return any(
        _holds_in_another_case(decoded, answer)
        for token in re.findall(r"[A-Za-z0-9+/_-]{2,}={0,2}", prompt)
        if (decoded := _decoded(_from_base64, token.rstrip("=")))
    )


def _holds_inside_base64(prompt: str, answer: str) -> bool:
    """Return whether the answer is a part of what a text in base64 says."""
    return any(
        decoded.casefold() != answer.casefold() and _holds_in_another_case(decoded, answer)
        for token in re.findall(r"[A-Za-z0-9+/_-]{2,}={0,2}", prompt)
        if (decoded := _decoded(_from_base64, token.rstrip("=")))
    )


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
