"""Make spellings of a right answer that only a lenient verifier takes for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

OTHER_DIGITS = {"Arabic digits": "\u0660", "full-width digits": "\uff10"}
"""The zero of other scripts, whose digits `int` and `float` read."""

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)

_LEAST_KEYS = 3
"""An object of fewer keys may be a frame around an answer, in which notes have a place."""

FEW_WORDS = 4
"""In longer answers a word may stand beside what counts."""


def misspellings(answer: str | None, *, exact: bool, whole: bool) -> Iterator[tuple[str, str]]:
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
    if not _NUMBER.fullmatch(answer):
        yield from _misspelt_words(answer)


def _misspelt_words(answer: str) -> Iterator[tuple[str, str]]:
    """Yield what a lenient verifier takes for an answer that is not a number."""
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
        and len(answer.split()) <= FEW_WORDS
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
    for script, zero in OTHER_DIGITS.items():
        digits = {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}
        yield f"in {script}", answer.translate(digits)
    for sign, name in (("_", "an underscore"), (" ", "a space")):
        # Before the last digit: "1 768" would be the number itself, grouped in threes.
        if (changed := re.sub(r"(\d)(\d)(?!\d)", rf"\1{sign}\2", answer, count=1)) != answer:
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
