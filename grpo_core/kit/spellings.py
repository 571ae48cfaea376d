"""Check that an answer in a spelling that is not one, or that is another answer, does not pass."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_core.kit.floors import MOST_TASKS
from grpo_core.kit.near_texts import asks_for_order
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import MIN_TASKS_FOR_SHARE, Attempt, Subject
from grpo_core.words import prompt_text, shorten

_OTHER_DIGITS = {"Arabic digits": "\u0660", "full-width digits": "\uff10"}
"""The zero of other scripts, whose digits `int` and `float` read."""
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_LEAST_KEYS = 3
"""An object of fewer keys may be a frame around an answer, in which notes have a place."""
_FEW_WORDS = 4
"""In longer answers a word may stand beside what counts."""
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
    *(f"in {script}" for script in _OTHER_DIGITS),
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
        answer = subject.bare_answer(index)
        head, part, tail = subject.split_answer(answer or "")
        for kind, text in _misspellings(
            answer and part, exact=not subject.env.tolerance, whole=subject.env.answer_at is None
        ):
            changed = subject.replace_answer(index, f"{head}{text}{tail}")
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
    answers = [subject.bare_answer(index) or "" for index in range(len(subject.answered))]
    if any(map(_TYPED.match, answers)):
        advice = "read answers with parse_integer, parse_decimal or parse_json of "
        advice += "grpo_core.extract, and compare exactly"
    else:
        advice = "compare the text as it is written"
    if kind.endswith(_FREE_KINDS):
        advice += "; where each spelling that reads the same is right, set free_spelling = True"
    return advice


def _misspellings(answer: str | None, *, exact: bool, whole: bool) -> Iterator[tuple[str, str]]:
    """Yield what a lenient verifier takes for `answer`, with the name of its kind.

    Args:
        answer: A right answer.
        exact: Whether numbers are compared without a tolerance.
        whole: Whether the whole reply counts, and not its start or end alone.
    """
    if answer is None:
        return
    answer = answer.strip()
    yield from _as_patterns(answer)
    if whole:
        yield from _with_a_field_twice(answer)
    if _NUMBER.fullmatch(answer):
        yield from _misspelt_number(answer)
        if whole:  # else brackets may stand around the number that counts
            yield from _in_brackets(answer)
        if exact:
            yield "with an exponent", f"{answer}e0"
            yield from _with_an_exponent(answer)
    elif re.search(r"\d", answer, re.ASCII):
        yield from _misspelt_digits(answer)
        yield from _with_a_space_inside(answer)
        yield from _without_zeros_of_codes(answer)
    if _NUMBER.fullmatch(answer):
        return
    if answer.isalpha() and len(answer) > 2 and answer.lower() not in ("true", "false"):
        yield "with spaces between its letters", " ".join(answer)
        yield "with dashes between its letters", "-".join(answer)
        yield from _misspelt_word(answer, answer)
    elif answer.lower() in ("true", "false"):
        yield "as a number", str(int(answer.lower() == "true"))
        yield "as a decimal number", str(float(answer.lower() == "true"))
    elif (
        (words := re.findall(r"[A-Za-z]{4,}", answer))
        and answer[:1] not in ("{", "[")
        and len(answer.split()) <= _FEW_WORDS
    ):
        yield from _misspelt_word(answer, max(words, key=len))
    elif answer[:1] in ("{", "["):
        try:
            yield from _misspelt_json(json.loads(answer))
        except (ValueError, RecursionError):
            return


def _misspelt_word(answer: str, word: str) -> Iterator[tuple[str, str]]:
    """Yield `answer` with signs inside of one of its words, and in other letters."""
    for sign, name in (("\u200b", "an invisible space"), (" ", "a space"), ("*", "an asterisk")):
        yield f"with {name} inside a word", answer.replace(word, f"{word[:2]}{sign}{word[2:]}", 1)
    full_width = {
        code: code + 0xFEE0 for code in range(ord("A"), ord("z") + 1) if chr(code).isalpha()
    }
    if (changed := answer.translate(full_width)) != answer:
        yield "in full-width letters", changed


def _as_patterns(answer: str) -> Iterator[tuple[str, str]]:
    """Yield patterns that match `answer`, in case that the reply is used as one."""
    yield "as a pattern with * for each word", re.sub(r"\w+", "*", answer)
    yield r"as a pattern with \w+ for each word", re.sub(r"\w+", r"\\w+", answer)
    yield "as a pattern with ? for each letter", re.sub(r"\w", "?", answer)
    yield "as a pattern with % for each word", re.sub(r"\w+", "%", answer)
    yield "as a pattern with _ for each letter", re.sub(r"\w", "_", answer)


def _with_a_field_twice(answer: str) -> Iterator[tuple[str, str]]:
    """Yield fields such as a=1&b=2 of which the first stands there again, with a wrong value."""
    fields = re.match(r"(\w+)(\s*[=:]\s*)(\w{1,40})(\s*[&;,|]\s*|\s+)(?=\w+\s*[=:])", answer)
    if fields:
        name, sign, value, separator = fields.groups()
        wrong = f"{name}{sign}{int(value) + 1 if value.isdecimal() else value + 'x'}"
        yield "with a field twice, the wrong value first", f"{wrong}{separator}{answer}"
        yield "with a field twice, the wrong value last", f"{answer}{separator}{wrong}"


def _with_a_space_inside(answer: str) -> Iterator[tuple[str, str]]:
    """Yield a code of letters and digits with a space behind its second character."""
    code = re.search(r"[0-9A-Za-z]{4,}", answer)
    if code and " " not in answer and re.search(r"\d", code[0]) and not code[0].isdigit():
        place = code.start() + 2
        yield "with a space inside", f"{answer[:place]} {answer[place:]}"


def _without_zeros_of_codes(answer: str) -> Iterator[tuple[str, str]]:
    """Yield an answer without the zeros that fill its numbers up, as in AB-00519.

    Numbers of two digits are left out: those of a date or a time may be written in either way.
    """
    changed = re.sub(r"(?<![\d.,])0+(\d+)", _unfilled, answer)
    if changed != answer:
        yield "without the zeros that fill its numbers up", changed


def _unfilled(number: re.Match[str]) -> str:
    """Return a number without the zeros before it, if it has three or more digits."""
    return number[1] if len(number[0]) > 2 else number[0]


def _with_an_exponent(answer: str) -> Iterator[tuple[str, str]]:
    """Yield a whole number that ends with zeros as a shorter one with an exponent: 47e3, 4.7e4."""
    found = re.fullmatch(r"([+-]?[1-9])(\d*?)(0+)", answer, re.ASCII)
    if found:
        first, others, zeros = found.groups()
        yield "with an exponent for its zeros", f"{first}{others}e{len(zeros)}"
        power = len(others) + len(zeros)
        point = f".{others}" if others else ""
        yield "in scientific notation", f"{first}{point}e{power}"
        yield "in scientific notation with a sign", f"{first}{point}E+{power}"


def _misspelt_digits(answer: str) -> Iterator[tuple[str, str]]:
    """Yield `answer` in the digits of other scripts, and with a sign between two digits."""
    for script, zero in _OTHER_DIGITS.items():
        digits = {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}
        yield f"in {script}", answer.translate(digits)
    for sign, name in (("_", "an underscore"), (" ", "a space")):
        if (changed := re.sub(r"(\d)(\d)", rf"\1{sign}\2", answer, count=1)) != answer:
            yield f"with {name} between its digits", changed


def _misspelt_number(answer: str) -> Iterator[tuple[str, str]]:
    """Yield misspellings of a number."""
    yield from _misspelt_digits(answer)
    if answer.lstrip("-").isdigit():
        number = int(answer)
        yield "as a sum to be computed", f"{number - 1}+1"
        yield "in octal digits", oct(number)
        yield "in hexadecimal", hex(number)
        yield "in binary", bin(number)
    if answer.isdigit() and len(answer) > 1 and answer[0] == "0":
        yield "without its leading zeros", answer.lstrip("0") or "0"
    if answer in ("0", "1"):
        yield "as a truth value", str(answer == "1")
        yield "as a truth value of JSON", str(answer == "1").lower()


def _in_brackets(answer: str) -> Iterator[tuple[str, str]]:
    """Yield a whole number in brackets, which evaluate to it."""
    if answer.lstrip("-").isdigit():
        yield "in brackets, as code", f"({int(answer)})"


def _misspelt_json(value: Any) -> Iterator[tuple[str, str]]:
    """Yield misspellings of a JSON value: truth values for numbers, and a key that is twice."""
    if (changed := _with_other_truth(value)) is not None:
        yield "with true for 1, or 1 for true", json.dumps(changed)
    if isinstance(value, dict) and len(value) >= _LEAST_KEYS:
        yield "with a key that is not asked for", json.dumps(value | {"kit_note": 1})
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
        if (answer := subject.bare_answer(index))
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
                reply = subject.replace_answer(index, text)
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
    short = [answer for answer in answers if len(answer.split()) <= _FEW_WORDS]
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
