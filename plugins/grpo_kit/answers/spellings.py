"""Check that an answer in a spelling that is not one, or that is another answer, does not pass."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from grpo_core.words import prompt_text, shorten
from grpo_kit.answers.floors import MOST_TASKS
from grpo_kit.answers.misspellings import FEW_WORDS, OTHER_DIGITS, misspellings
from grpo_kit.answers.near_texts import asks_for_order
from grpo_kit.check import check
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, Attempt, Subject

_ACCENTED = 0.9
"""Where so many answers have accents, these are what is asked for."""
_TOLD_APART = 0.2
"""The least share of answers with a word that another answer has in another case."""
_ANY_CASE = re.compile(
    r"(?:any|either|whatever|lower or upper|upper or lower) case|case (?:is|does|may)|"
    r"case.insensitive|ignor\w+ (?:the )?case|capital letters? (?:or|is|are not|do)",
    re.IGNORECASE,
)
"""What a prompt says where the case of its answer is free."""
_ACCENTS = re.compile(r"accent|diacritic|umlaut", re.IGNORECASE)
"""What a prompt speaks of that says whether accents count."""
_FREE_KINDS = (
    "with spaces between its letters",
    "with dashes between its letters",
    "inside a word",
    "in full-width letters",
    "with a space inside",
    "without the zeros that fill its numbers up",
    *(f"in {script}" for script in OTHER_DIGITS),
    "between its digits",
    "in brackets, as code",
    "in another case",
    "without its accents",
)
"""Ends of the kinds that read the same, which `free_spelling` declares to be right."""
_TYPED = re.compile(r"\A\W*(?:\d|[\[{]|true\b|false\b)", re.IGNORECASE)
"""How an answer begins that is a number, JSON or a truth value."""
_MIXED_CASE = re.compile(r"[^\W\d_A-Z][A-Z]")
"""A capital letter inside a word."""


@check(
    "floor.spelling",
    "fault",
    asks=(
        "Do 1_7, 1 7 and other scripts' digits for 17, true for 1, a JSON key that is there "
        "twice, and the case or order of the prompt where another one is asked for, fail?"
    ),
)
async def check_spelling(subject: Subject) -> str:
    """Check that numbers, truth values, JSON and case are read as they are written.

    It tries 1_7, 1 7 and the digits of other scripts for 17, true for 1, a JSON key that is there
    twice, and the answer in the case, with the accents or in the order of the prompt, where these
    are what is asked for.
    """
    if subject.services:
        raise NotCheckedError("its answers are compared by a sandbox or a judge")
    attempts: dict[str, list[Attempt]] = {}
    for index, (task, _) in enumerate(subject.answered):
        answer = subject.answers.bare_answer(index)
        head, part, tail = subject.answers.split_answer(answer or "")
        for kind, text in misspellings(
            answer and part, exact=not subject.env.tolerance, whole=subject.env.answer_at is None
        ):
            changed = subject.answers.replace_answer(index, f"{head}{text}{tail}")
            if changed is not None and changed != subject.answered[index][1]:
                attempts.setdefault(kind, []).append((task, changed))
    attempts |= _as_in_prompt(subject)
    if not attempts:
        raise NotCheckedError("no answers are known that are words, numbers or JSON")
    if subject.env.free_spelling:
        attempts = {
            kind: pairs for kind, pairs in attempts.items() if not kind.endswith(_FREE_KINDS)
        }
    for kind, pairs in attempts.items():
        verdicts = await subject.verdicts(pairs)
        passed = [
            text for (_, text), verdict in zip(pairs, verdicts, strict=True) if verdict.passed
        ]
        if len(passed) >= MOST_TASKS * len(pairs):
            raise BrokenPromiseError(
                f"the right answer {kind}, such as {shorten(passed[0])}, passes {len(passed)} of "
                f"{len(pairs)} tasks; {_advice(subject, kind)}"
            )
    return f"{len(attempts)} misspellings of right answers do not pass"


def _advice(subject: Subject, kind: str) -> str:
    """Return what to do where a misspelling passes, for a message."""
    answers = [subject.answers.bare_answer(index) or "" for index in range(len(subject.answered))]
    if any(map(_TYPED.match, answers)):
        advice = "read answers with parse_integer, parse_decimal or parse_json of "
        advice += "grpo_core.extract, and compare exactly"
    else:
        advice = "compare the text as it is written"
    if kind.endswith(_FREE_KINDS):
        advice += "; where each spelling that reads the same is right, set free_spelling = True"
    return advice


def _as_in_prompt(subject: Subject) -> dict[str, list[Attempt]]:
    """Return answers in the case, with the accents or in the order of the prompt, by kind.

    These are tried where that is what is asked for: where most answers are found so in their own
    prompt, and either the right spelling is there, too, or no other prompt has it. The case is what
    is asked for, anyway, where most answers have capitals inside their words or it tells words of
    answers apart; accents are, where they alone tell words apart or nearly all answers have some;
    and the order is, where the prompt speaks of one.
    """
    known = [
        (index, task, answer)
        for index, (task, _) in enumerate(subject.answered)
        if (answer := subject.answers.bare_answer(index))
    ]
    prompts = [prompt_text(task) for _, task, _ in known]
    right = [*(answer for _, _, answer in known), *(text for _, text in subject.wide.answered)]
    accented = sum(_without_accents(text) != text for text in right)
    accents_tell = _accents_tell_words_apart(right) or (
        accented >= _ACCENTED * len(right) and not any(map(_ACCENTS.search, prompts))
    )
    case_tells = _case_tells_words_apart([answer for _, _, answer in known])
    attempts: dict[str, list[Attempt]] = {}
    for place, (index, task, answer) in enumerate(known):
        kinds = {
            "in another case": (
                answer.lower(),
                answer.upper(),
                answer.capitalize(),
                answer.title(),
                answer.swapcase(),
            ),
            "without its accents": (_without_accents(answer),),
            "in the order of the prompt": _in_order_of(prompts[place], answer),
        }
        others = [prompt for number, prompt in enumerate(prompts) if number != place]
        asked_for = {
            "in another case": (case_tells or bool(_MIXED_CASE.search(answer)))
            and not _ANY_CASE.search(prompts[place]),
            "without its accents": accents_tell,
            "in the order of the prompt": asks_for_order(prompts[place]),
        }
        for kind, texts in kinds.items():
            for text in texts:
                is_asked_for = asked_for.get(kind, False) or _distinguishes(
                    subject, prompts[place], others, answer, text
                )
                reply = subject.answers.replace_answer(index, text)
                if text != answer and is_asked_for and reply is not None:
                    attempts.setdefault(kind, []).append((task, reply))
                    break
    return {
        kind: pairs
        for kind, pairs in attempts.items()
        if len(pairs) >= max(MIN_TASKS_FOR_SHARE, MOST_TASKS * len(known))
    }


def _distinguishes(
    subject: Subject, prompt: str, others: Sequence[str], answer: str, text: str
) -> bool:
    """Return whether the task is to tell `answer` from `text`, which the prompt holds."""
    if not _holds(prompt, text):
        return False
    if _holds(prompt, answer):
        return True
    return not subject.env.answer_in_prompt and not any(_holds(other, text) for other in others)


def _case_tells_words_apart(answers: Sequence[str]) -> bool:
    """Return whether short answers often have words that are the same but for case: mW and MW."""
    short = [answer for answer in answers if len(answer.split()) <= FEW_WORDS]
    words = [set(re.findall(r"[^\W\d_]+", answer)) for answer in short]
    spellings = Counter(word.casefold() for word in set().union(*words))
    told_apart = sum(any(spellings[word.casefold()] > 1 for word in those) for those in words)
    return told_apart > _TOLD_APART * len(answers)


def _without_accents(text: str) -> str:
    """Return `text` without its accents."""
    letters = unicodedata.normalize("NFD", text)
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return text if bare == letters else unicodedata.normalize("NFC", bare)


def _accents_tell_words_apart(answers: Sequence[str]) -> bool:
    """Return whether two words of right answers are the same without their accents."""
    words = {word for answer in answers for word in re.findall(r"[^\W\d_]+", answer)}
    return len({_without_accents(word) for word in words}) < len(words)


def _in_order_of(prompt: str, answer: str) -> tuple[str, ...]:
    """Return the words, or the letters, of `answer` in the order in which the prompt has them.

    There are none where they do not stand together in the prompt.
    """
    words, asked = re.findall(r"\w+", answer), re.findall(r"\w+", prompt)
    if len(words) == 1:
        return tuple(word for word in asked if sorted(word) == sorted(answer) and len(word) > 3)
    if len(words) < 3 or not all(word in asked for word in words):
        return ()
    windows = (asked[start : start + len(words)] for start in range(len(asked) - len(words) + 1))
    found: Sequence[str] | None = next(
        (window for window in windows if sorted(window) == sorted(words)), None
    )
    if found is None and asks_for_order(prompt) and len(set(words)) == len(words):
        found = [word for word in dict.fromkeys(asked) if word in words]
    if found is None:
        return ()
    in_order = iter(found)
    return (re.sub(r"\w+", lambda _: next(in_order), answer),)


def _holds(prompt: str, text: str) -> bool:
    """Return whether `prompt` holds `text` between the ends of words."""
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", prompt) is not None
