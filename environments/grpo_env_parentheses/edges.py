"""Strings of brackets at which programs go wrong: short, deep and long ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import product

from grpo_env_parentheses import families

_SHORT = 48
"""How many short strings are drawn."""
_LONGEST_SHORT = 6
_SHAPES = (
    *("", "o", "c", "oc", "co", "oo", "cc", "ococ", "ooc", "occ", "coc", "oco", "cooc", "coco"),
    *("oocc", "ooccoc", "ocoocc", "occooc", "ocococ", "oocooccc", "occooocc", "ooocccoc", "cocco"),
    *("oocccooc", "occocooc", "ocoo", "ccoc", "oocco", "ccoo", "ooco", "occc", "oooc"),
)
"""Strings of one kind, o for the opening bracket and c for the closing one."""
_PAIRED = (
    *("oPcp", "oPpc", "opPc", "oPc", "ocp", "Poc", "oppc", "oPpPpc", "oPocpc", "oPopcc", "oPcpoc"),
    *(
        "ocPp",
        "ocPpoc",
        "op",
        "oP",
        "oPpcoc",
        "ocoPcp",
        "oPoPpcpc",
        "oPPppc",
        "cp",
        "oc p",
        "ooPcpc",
    ),
)
"""Strings of two kinds, the second one in P and p."""


def edge_texts(
    alphabet: str, kinds: Sequence[str], rng: random.Random, *, balanced: bool
) -> list[str]:
    """Return strings at which programs go wrong.

    Args:
        alphabet: a key of `ALPHABETS`, which characters the strings have.
        kinds: the kinds of brackets in them.
        rng: the source of all random choices.
        balanced: whether all of them have to be balanced.
    """
    if alphabet == "unfold":
        return _folded_texts(rng)
    if balanced:
        return [*_short_balanced(), *(_long_balanced(rng) for _ in range(6))]
    texts = {_in_kind(shape, rng.choice(kinds)) for shape in _SHAPES}
    texts |= set(_long_texts(kinds, rng))
    if len(kinds) > 1:
        for shape in _PAIRED:
            one, other = rng.sample(kinds, 2)
            text = _in_kind(shape, one).replace("P", other[0]).replace("p", other[1])
            texts.add(text.replace(" ", ""))
    letters = "".join(kinds) + ("*" if alphabet == "jokers" else "")
    texts |= {_short(letters, rng) for _ in range(_SHORT)}
    if alphabet == "jokers":
        texts |= {_with_jokers(text, rng) for text in sorted(texts)} | set(_joker_texts(rng))
    ordered = sorted(texts)
    if alphabet == "mixed":
        ordered = [*(_with_letters(text, rng) for text in ordered), "a", "xyz", *ordered[::4]]
    return ordered


def exchange_brackets(text: str, rng: random.Random) -> str:
    """Return a string in which two brackets are exchanged so that it is not balanced any more.

    Half of the time two closing ones are tried, so that the depth stays what it was. "" if no such
    string was found.
    """
    places = [place for place, c in enumerate(text) if c in "()[]{}<>"]
    closing = [place for place in places if text[place] in ")]}>"]
    for _ in range(8):
        among = closing if rng.random() < 0.5 and len(closing) > 1 else places
        one, other = sorted(rng.sample(among, 2)) if len(among) > 1 else (0, 0)
        exchanged = list(text)
        exchanged[one], exchanged[other] = text[other], text[one]
        if not families.balanced("".join(exchanged)):
            return "".join(exchanged)
    return ""


def _in_kind(shape: str, kind: str) -> str:
    return shape.replace("o", kind[0]).replace("c", kind[1])


def _short(letters: str, rng: random.Random) -> str:
    return "".join(rng.choices(letters, k=rng.randint(1, _LONGEST_SHORT)))


def _long_texts(kinds: Sequence[str], rng: random.Random) -> list[str]:
    """Return deep strings, flat ones, and some in which one bracket is wrong."""
    texts = []
    for index in range(4):
        some = kinds if index % 2 else [rng.choice(kinds)]
        opened = [rng.choice(some) for _ in range(rng.randint(11, 16))]
        deep = "".join(kind[0] for kind in opened) + "".join(kind[1] for kind in opened[::-1])
        flat = "".join(rng.choice(kinds) for _ in range(rng.randint(8, 14)))
        mixed = deep[: len(deep) // 2] + flat + deep[len(deep) // 2 :]
        for text in (deep, flat, mixed, flat + deep):
            place = rng.randrange(len(text))
            brackets = "".join(kinds)
            texts += [text, text[:place] + text[place + 1 :]]
            texts.append(text[:place] + rng.choice(brackets) + text[place + 1 :])
            texts += [text + rng.choice(brackets), rng.choice(brackets) + text]
            texts += filter(None, (exchange_brackets(text, rng) for _ in range(2)))
    return texts


def _with_jokers(text: str, rng: random.Random) -> str:
    """Return a string with jokers for some characters; a few, as it may take trying each out."""
    places = rng.sample(range(len(text)), min(len(text), rng.randint(1, 5)))
    return "".join("*" if place in places else c for place, c in enumerate(text))


def _joker_texts(rng: random.Random) -> list[str]:
    """Return strings whose end, or start, has as many brackets as jokers, or one more."""
    texts = []
    for jokers in range(5):
        for brackets in (jokers, jokers + 1):
            inside = rng.choice(["", "()", "(())", "()()", "*"])
            closing = inside + "*" * jokers + ")" * brackets
            opening = "(" * brackets + "*" * jokers + inside
            texts += [closing, opening, closing + "()", "()" + opening, opening + closing]
    return texts


def _with_letters(text: str, rng: random.Random) -> str:
    letters = ("", "", rng.choice("abcxyz"))
    return "".join(rng.choice(letters) + c for c in text) + rng.choice(letters)


@cache
def _short_balanced() -> tuple[str, ...]:
    """Return every balanced string of up to four pairs."""
    texts = (
        "".join(letters) for pairs in range(1, 5) for letters in product("()", repeat=2 * pairs)
    )
    return tuple(text for text in texts if _is_balanced(text))


def _is_balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += 1 if c == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def _long_balanced(rng: random.Random) -> str:
    """Return a balanced string that is deep, long or both."""
    depth, flat = rng.randint(5, 12), "()" * rng.randint(1, 12)
    return rng.choice([flat, ""]) + "(" * depth + flat + ")" * depth + rng.choice([flat, ""])


def _folded_texts(rng: random.Random) -> list[str]:
    """Return strings with repetitions that are nested, side by side, empty, or of one time."""
    texts = ["", "a", "abc", "1()", "4()", "2(1())", "a3()b"]
    for _ in range(40):
        text = ""
        for _ in range(rng.randint(1, 4)):
            times, letters, before, after = rng.randint(1, 4), *(_letters(rng) for _ in range(3))
            text = f"{before}{times}({text}{letters}){after}"
            if rng.random() < 0.3:
                text = f"{text}{rng.randint(1, 4)}({_letters(rng)})"
        texts.append(text)
    return texts


def _letters(rng: random.Random) -> str:
    return "".join(rng.choices("abcdef", k=rng.randint(0, 2)))
