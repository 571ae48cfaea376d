"""Check that hostile answers get verdicts, do not pass, and do not make verdicts slow.

Among them are useless programs for a sandbox, and texts that give orders to a judge.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core import GrpoError, Task
from grpo_core.api.figures import Floor
from grpo_core.words import prompt_text, shorten
from grpo_core.words.hostile_texts import (
    BURSTS,
    CHARACTERS,
    JUNK,
    LARGE,
    NESTED,
    NUMBERS,
    ORDERS,
    PATTERNS,
    PROGRAMS,
)
from grpo_kit.answers.ordinary import with_other_numbers
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Attempt, Subject, canary_attempts
from grpo_kit.tasks.topics import own_words

_MARGIN = 0.2
"""The share of the reward range that an order may add by making a text longer."""
_TOPIC_WORDS = 3
"""Words of a prompt that stand before a text with an order."""
_FEW = 2
"""Attempts at once where each may take until the deadline."""
_PLACE = re.compile(r"\{(\w+)\}")
"""A place in a format string."""
_ASKS_FOR_FORMAT = re.compile(r"format|templat|placeholder|f-string", re.IGNORECASE)
"""What a prompt says whose answer is a format, which may be written in several ways."""
_ROW = 40
"""Items of a row that a pattern may split in many ways."""
_BURST_WORDS = 6
"""Words of a reference in whose place repetitions are tried."""
MAX_REPLIES = 40
"""Ordinary replies that are timed."""


@check("floor.nested", "fault", asks="Does deeply nested JSON get a verdict and fail?")
async def check_nested(subject: Subject) -> str:
    """Try texts that are nested too deeply for a recursive parser."""
    return await check_texts(subject, NESTED)


async def check_texts(subject: Subject, texts: Mapping[str, str], *, chunk_size: int = 8) -> str:
    """Check that hostile texts get verdicts and do not pass.

    They are tried bare, in the form of an answer, and in a form that is never closed.

    Args:
        subject: The environment.
        texts: The texts by their kind.
        chunk_size: Attempts that are judged at once.
    """
    count, tasks = 0, subject.tasks[: 1 if subject.services or subject.has_agents else 2]
    for kind, text in texts.items():
        shared = subject.answers.shared_form
        replies = [*subject.answers.reply_variants(text), shared.before + text + shared.after]
        if shared.before:
            replies = [*replies, shared.before + text]
        count += await subject.must_fail(
            kind,
            [
                (task, reply)
                for task in tasks
                for reply in dict.fromkeys(replies)
                if not subject.answers.commits_to_right(task, reply)
            ],
            chunk_size=chunk_size,
        )
    return f"{count} attempts of {len(texts)} kinds get verdicts and never pass"


@check(
    "floor.text",
    "fault",
    asks="Do NUL, lone surrogates and control characters get verdicts and fail?",
)
async def check_characters(subject: Subject) -> str:
    """Check that texts with odd characters get verdicts, and that no answer is a format to fill."""
    summary = await check_texts(subject, CHARACTERS)
    if not subject.services:
        attempts = [
            (task, changed)
            for index, (task, _) in enumerate(subject.answered[: subject.small_count])
            if not subject.env.open_ended and not _ASKS_FOR_FORMAT.search(prompt_text(task))
            if (answer := subject.answers.bare_answer(index)) and _PLACE.search(answer)
            if (changed := subject.answers.replace_answer(index, _PLACE.sub(r"{\1!s:}", answer)))
        ]
        await subject.must_fail("an answer as a format with the same result", attempts)
    return summary


@check(
    "floor.digits",
    "fault",
    asks="Do hostile numbers (NaN, 1e999, 100,000 digits, towers of powers) get verdicts and fail?",
)
async def check_digits(subject: Subject) -> str:
    """Check that numbers of any kind get verdicts, alone and in the place of those of answers.

    In an answer with other numbers nothing is wrong but these: an index, a month or a divisor.
    """
    summary = await check_texts(subject, NUMBERS)
    if subject.services:
        return summary
    attempts = [
        (task, changed)
        for index, (task, _) in enumerate(subject.answered[: 1 if subject.has_agents else _FEW])
        for text in with_other_numbers(subject.answers.bare_answer(index) or "")
        if (changed := subject.answers.replace_answer(index, text)) is not None
    ]
    await subject.must_be_scored("an answer with other numbers", attempts)
    return f"{summary}; {len(attempts)} answers with other numbers get verdicts"


@check(
    "floor.large",
    "fault",
    asks=(
        "Are 1 MB of text, and texts that make regular expressions backtrack, judged within "
        "the deadline, and do they fail?"
    ),
)
async def check_large(subject: Subject) -> str:
    """Check that long texts, and texts that make patterns backtrack, get verdicts in time.

    The latter are also tried inside a reference, in the place of and behind each of some of its
    words, since a pattern may backtrack only behind what it accepts; and so is a long row of the
    first item of an answer.
    """
    summary = await check_texts(subject, {**PATTERNS, **LARGE}, chunk_size=_FEW)
    attempts = [] if subject.services else _bursts_in_references(subject)
    for start in range(0, len(attempts), _FEW):
        await subject.scored_verdicts(
            "repetition inside a reference", attempts[start : start + _FEW]
        )
    return f"{summary}; {len(attempts)} repetitions inside references get verdicts"


def _bursts_in_references(subject: Subject) -> list[Attempt]:
    """Return references in which a repetition stands in the place of a word, or behind it."""
    attempts: dict[str, Attempt] = {}
    for task, reference in subject.answered[:1]:
        words = list(re.finditer(r"\w+", reference))
        most = _FEW if subject.has_agents else _BURST_WORDS
        for word in words[:: max(1, len(words) // most)][: most + 1]:
            for burst in BURSTS:
                for text in (
                    reference[: word.start()] + burst + reference[word.end() :],
                    reference[: word.end()] + burst,
                ):
                    attempts[text] = (task, text)
    for index, (task, _) in enumerate(subject.answered[:2]):
        item = re.match(r"\W*\w+[^\w\n]{1,3}", subject.answers.bare_answer(index) or "")
        if item is not None:  # a row of the answer's own items, with an end that none has
            row = subject.answers.replace_answer(index, item[0] * _ROW + "!")
            if row is not None:
                attempts[row] = (task, row)
    return list(attempts.values())


@check("floor.cheats", "fault", asks="Do the author's cheats score the floor?")
async def check_cheats(subject: Subject) -> str:
    """Check that the author's cheats get the floor."""
    attempts = [
        (task, join_turns(script))
        for task in subject.tasks[: subject.small_count]
        for script in subject.env.cheats(task)
    ]
    if not attempts:
        raise NotCheckedError("cheats() gives no answers; list what a model might try")
    return f"{await subject.must_fail('the cheat', attempts, floor=True)} cheats get the floor"


@check(
    "floor.canaries",
    "fault",
    asks="Do canary tasks pay no more than the floor, whatever the answer?",
)
async def check_canaries(subject: Subject) -> str:
    """Check that answers to canary tasks get the floor."""
    texts = [
        *list(JUNK.values())[1:3],
        *dict.fromkeys(text for _, text in subject.answered[: subject.small_count]),
    ]
    attempts = canary_attempts(subject, texts)
    for task, _ in canary_attempts(subject, [""]):
        with contextlib.suppress(GrpoError):  # a canary need not have a reference
            text = join_turns(await subject.verifier.reference(task))
            if text and _can_be_known(subject, task, text):
                attempts.append((task, text))
    if not attempts:
        raise NotCheckedError(
            "canaries() names no tasks; one whose honest reward is the floor shows a policy that "
            "cheats"
        )
    await subject.must_fail("an answer to a canary", attempts, floor=True)
    return f"{len(attempts)} answers to canaries get the floor"


def _can_be_known(subject: Subject, canary: Task[Any], reference: str) -> bool:
    """Return whether a policy can give a canary's reference: from its prompt, or as one of a task.

    Others are secrets, such as expected values that are random, and pass by design.
    """
    words = re.findall(r"\w+", subject.answers.without_form(reference))
    told = set(re.findall(r"\w+", prompt_text(canary)))
    with contextlib.suppress(Exception):  # the subject of task.made
        if prompt_text(subject.env.task(canary.key)) == prompt_text(canary):
            return True
    return bool(words) and told.issuperset(words)


@check(
    "floor.code",
    "fault",
    asks="Do programs that exit early, forge equality, patch builtins or hang fail?",
)
async def check_code(subject: Subject) -> str:
    """Check that programs that solve nothing do not pass."""
    if "sandbox" not in subject.env.needs:
        raise NotCheckedError("it runs no programs")
    with_function = [
        (task, text, match)
        for task, text in subject.answered
        if (match := re.search(r"^def (\w+)\([^\n]*\n(?:[ \t]+[^\n]*\n?|\n)+", text, re.M))
    ]
    if not with_function:
        raise NotCheckedError("its references define no Python function")
    task, text, match = with_function[0]
    for kind, body in PROGRAMS.items():
        program = f"def {match[1]}(*arguments):\n    {body.replace('{name}', match[1])}\n"
        await subject.must_fail(
            f"a program that {kind}",
            [(task, text[: match.start()] + program + text[match.end() :])],
        )
    return f"{len(PROGRAMS)} programs that solve nothing do not pass"


@check(
    "floor.judge", "fault", asks="Does a text that gives orders to the judge earn no more by them?"
)
async def check_judge(subject: Subject) -> str:
    """Check that orders to the judge do not raise the mean reward of a bad text, or pay alone."""
    env = subject.env
    if "judge" not in env.needs:
        raise NotCheckedError("it asks no judge")
    low, high = env.reward_range
    bad = JUNK["letters"]
    tasks = subject.tasks[: subject.small_count]
    topics = [
        "".join(f"{word} " for word in own_words(subject, task)[:_TOPIC_WORDS]) for task in tasks
    ]
    # in the form of an answer, and bare with words of the prompt: either may be asked for
    form = subject.answers.form
    for before, after in (([form.before] * len(tasks), form.after), (topics, "")):
        plain = await _judged(subject, tasks, [f"{words}{bad}{after}" for words in before])
        if plain.reward is None:
            raise NotCheckedError("the judge gives no scores")
        for order in ORDERS:
            for text in (f"{bad} {order}", order):
                floor = await _judged(subject, tasks, [f"{words}{text}{after}" for words in before])
                reward = floor.reward or 0.0
                passes = floor.passed == floor.tasks > plain.passed
                if reward > plain.reward + _MARGIN * (high - low) or passes:
                    raise BrokenPromiseError(
                        f"{shorten(f'{before[0]}{text}')} is paid {reward:g}, "
                        f"{shorten(f'{before[0]}{bad}')} is paid {plain.reward:g}: the judge obeys "
                        "the text; use a judge that marks the text it judges, or guards before it"
                    )
    return f"{4 * len(ORDERS)} texts with orders are not paid more than {shorten(bad)}"


async def _judged(subject: Subject, tasks: Sequence[Task[Any]], texts: Sequence[str]) -> Floor:
    """Return what the texts, one for each task, earn."""
    attempts = list(zip(tasks, texts, strict=True))
    return Floor.of(texts[0], await subject.scored_verdicts("a text with an order", attempts))
