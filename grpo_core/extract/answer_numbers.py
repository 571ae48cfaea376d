r"""Read a number as models write it in an answer: `x = 18`, `**18**`, `$1,080.50`, `\boxed{18}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

_MAX_CHARS = 100
_MAX_DIGITS = 30
_UNIT_WORDS = """
cent cents dollar dollars euro euros pound pounds usd
second seconds sec secs s minute minutes min mins hour hours hr hrs h day days week weeks month
months year years
mm cm km centimeter centimeters meter meters kilometer kilometers metre metres kilometre
kilometres inch inches foot feet ft yard yards mile miles mi
mg g kg lb lbs oz gram grams kilogram kilograms ounce ounces ton tons
ml l milliliter milliliters liter liters litre litres cup cups pint pints quart quarts gallon
gallons
mph kmh degree degrees percent calorie calories mb gb
time times point points page pages word words step steps piece pieces slice slices item items
box boxes bag bags bottle bottles can cans pack packs pair pairs ticket tickets coin coins
people person persons student students child children kid kids adult adults boy boys girl girls
friend friends animal animals book books card cards game games car cars
apple apples orange oranges egg eggs cookie cookies fish flower flowers marble marbles pencil
pencils sticker stickers tree trees
"""
UNITS = frozenset(_UNIT_WORDS.split())
"""The words that may follow a number and leave it that number, as "million" and "dozen" do not."""

_NAME = re.compile(r"[^\W\d_][^\W\d]*(?: [^\W\d]+){0,3} ?= ?(.*)", re.DOTALL)
_UNIT = re.compile(r"(.*[0-9}*$])[ \xa0\u202f]?(?:([A-Za-z]+)|\\text\{ ?([A-Za-z]+)\})", re.DOTALL)
_PERCENT = re.compile(r"(.*[0-9}*$])[ \xa0\u202f]?\\?%", re.DOTALL)
_FULL_STOP = re.compile(r"(.*[^.])\.", re.DOTALL)
_WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\*\*([^*]+)\*\*",
        r"\$\$?([^$]+|\\?\$[^$]+)\$\$?",
        r"\\\((.+)\\\)",
        r"\\boxed\{(.+)\}",
    )
)
_SIGN = "[-+\u2212]?"
_AMOUNT = r"(?:[0-9]{1,3}(?P<mark>[, \xa0\u2009\u202f])[0-9]{3}(?:(?P=mark)[0-9]{3})*|[0-9]+)"
_NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})(?:\\?[$\u20ac\xa3\xa5])?(?P<inner>{_SIGN})"
    rf"(?P<amount>{_AMOUNT}(?:\.[0-9]+)?|\.[0-9]+)"
)
_FRACTION = re.compile(
    rf"(?P<sign>{_SIGN})(?:(?P<over>[0-9]+) ?/ ?(?P<under>[0-9]+)"
    r"|\\d?frac\{(?P<over2>[0-9]+)\}\{(?P<under2>[0-9]+)\})"
)


def parse_answer_number(text: str, *, fractions: bool = False) -> Fraction | None:
    r"""Return the number that an answer gives, or None for a text that is anything else.

    It is one number: digits, which may be grouped in threes by commas or spaces, with a decimal
    part, a sign and a sign of currency. Around it there may be a name with "=", Markdown's ** and
    LaTeX's $...$, \(...\) and \boxed{...}; behind it "%" or a word of `UNITS`, and a full stop;
    each of these once. A text with a second number or any other word is refused: a policy cannot
    give several answers.

    Args:
        text: the answer, such as the content of its block.
        fractions: whether 3/4 is a number. Otherwise it is refused, since it leaves the division to
            the verifier; accept it only where the right answer is not a whole number.
    """
    text = text.strip()
    if len(text) > _MAX_CHARS:
        return None
    text = text.replace("{,}", ",")  # as LaTeX writes it
    left: list[Callable[[str], str | None]] = [*map(_taking, _WRAPPERS), *_AROUND]
    while remove := next((step for step in left if step(text) is not None), None):
        left.remove(remove)
        text = (remove(text) or "").strip()
    if fractions and (match := _FRACTION.fullmatch(text)):
        return _fraction(match)
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"] and match["inner"]):
        return None
    amount = match["amount"]
    if mark := match["mark"]:
        amount = amount.replace(mark, "")
    if len(amount) > _MAX_DIGITS:
        return None
    return -Fraction(amount) if _is_negative(match["sign"] + match["inner"]) else Fraction(amount)


def _taking(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    """Return a function that returns what a pattern's group holds; None if it does not match."""

    def inside(text: str) -> str | None:
        match = pattern.fullmatch(text)
        return None if match is None else match.group(1)

    return inside


def _without_unit(text: str) -> str | None:
    """Return a text without "%" or a unit at its end; None if there is neither."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        match = _UNIT.fullmatch(text)
        if match is None or (match[2] or match[3]).lower() not in UNITS:
            return None
    return match[1]


_AROUND: Sequence[Callable[[str], str | None]] = (
    _taking(_NAME),
    _taking(_FULL_STOP),
    _without_unit,
)


def _fraction(match: re.Match[str]) -> Fraction | None:
    """Return the value of a fraction; None if it has none, or is too long."""
    over, under = match["over"] or match["over2"], match["under"] or match["under2"]
    if len(over) + len(under) > _MAX_DIGITS or not int(under):
        return None
    value = Fraction(int(over), int(under))
    return -value if _is_negative(match["sign"]) else value


def _is_negative(sign: str) -> bool:
    return sign not in ("", "+")
