"""Programs about strings of brackets, with random function names.

| difficulty | family | answer |
| --- | --- | --- |
| 1 | balanced, one kind | bool |
| 2 | balanced, two kinds | bool |
| 3 | balanced, four kinds between other characters | bool |
| 4 | greatest depth, -1 if not balanced | int |
| 5 | place of the first error | int |
| 6 | fewest insertions that balance | int |
| 7 | longest balanced part | int |
| 8 | balanced with jokers | bool |
| 9 | score of the nesting | int |
| 10 | text unfolded from nested repetitions | str |

Half of the answers of a bool family are True.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.programs import Case, CodeEnvironment, Problem
from grpo_env_parentheses import families, wrong
from grpo_env_parentheses.edges import edge_texts, exchange_brackets

KINDS = ("()", "[]", "{}", "<>")
NAMES = (
    "check",
    "judge",
    "scan",
    "measure",
    "inspect_text",
    "examine",
    "look_at",
    "parse",
    "review",
    "probe",
)
ALPHABETS: dict[str, str] = {
    "balanced": "s holds only {brackets}.",
    "mixed": "s holds (), [], {{}}, <> and letters.",
    "deepest": "s holds only (), [], {{}} and <>.",
    "plain": "s holds only ( and ).",
    "jokers": "s holds only (, ) and *.",
    "unfold": (
        "s holds letters, ( and ), and one digit from 1 to 4 directly before each ( and nowhere "
        "else."
    ),
}
"""By alphabet: the sentence of the prompt that says which characters the strings have."""
_MAX_PAIRS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Strings(Problem):
    """A problem about strings of brackets."""

    family: str
    """Name of the function in `families` that solves it."""
    kinds: tuple[str, ...]
    """The kinds of brackets in its strings, such as "()"."""
    alphabet: str
    """Which characters its strings have; a key of `ALPHABETS`."""


FAMILIES: dict[int, tuple[str, int, str]] = {
    1: ("balanced", 1, "balanced"),
    2: ("balanced", 2, "balanced"),
    3: ("balanced", 4, "mixed"),
    4: ("deepest", 4, "deepest"),
    5: ("first_error", 4, "deepest"),
    6: ("insertions", 1, "plain"),
    7: ("longest", 1, "plain"),
    8: ("with_jokers", 1, "jokers"),
    9: ("score", 1, "plain"),
    10: ("unfold", 1, "unfold"),
}
"""By difficulty: the family's function, the number of kinds of brackets, and the alphabet."""


class Parentheses(CodeEnvironment[Strings]):
    __doc__ = __doc__

    def problem(
        self, rng: random.Random, difficulty: int, *, number: int, impossible: bool = False
    ) -> Strings:
        family, count, alphabet = FAMILIES[difficulty]
        kinds = tuple(rng.sample(KINDS, count)) if alphabet == "balanced" else KINDS[:count]
        entry = f"{rng.choice(NAMES)}_{number}"
        solve: Callable[[str], Any] = getattr(families, family)
        about = " ".join((solve.__doc__ or "").split())
        holds = ALPHABETS[alphabet].format(brackets=" and ".join(kinds))
        source = inspect.getsource(solve).replace(f"def {family}(", f"def {entry}(")
        source = _for_kinds(source, kinds)
        return Strings(
            statement=f"A string s is given. {holds} Return this: {about[0].lower()}{about[1:]}",
            entry=entry,
            parameters="s",
            source=f"from __future__ import annotations\n\n{source}",
            examples=tuple(
                Case((text,), solve(text)) for text in _draw_examples(family, kinds, alphabet, rng)
            ),
            impossible=impossible,
            family=family,
            kinds=kinds,
            alphabet=alphabet,
        )

    def cases(self, problem: Strings, rng: random.Random, count: int) -> Sequence[Case]:
        """Draw test cases.

        In a family about balance, every second string is balanced, and five strings are ones that
        careless programs get wrong.
        """
        solve: Callable[[str], Any] = getattr(families, problem.family)
        texts = [
            _draw_text(problem.family, problem.kinds, problem.alphabet, rng, right=index % 2 == 0)
            for index in range(count)
        ]
        if problem.family not in ("unfold", "score", "with_jokers"):
            opening, closing = rng.choice(problem.kinds)[0], rng.choice(problem.kinds)[1]
            careless = [
                "",
                closing + opening,
                2 * opening,
                2 * closing,
                rng.choice(problem.kinds) + closing,
            ]
            for index, text in zip((0, 1, 3, 5, 7), careless, strict=True):
                texts[index : index + 1] = [text] if index < count else []
        return [
            Case((text,), _randomize(solve(text), rng) if problem.impossible else solve(text))
            for text in texts
        ]

    def edge_cases(self, problem: Strings, rng: random.Random) -> Sequence[Case]:
        """Return short strings, deep ones and long ones."""
        solve: Callable[[str], Any] = getattr(families, problem.family)
        balanced = problem.family == "score"
        texts = edge_texts(problem.alphabet, problem.kinds, rng, balanced=balanced)
        return [Case((text,), solve(text)) for text in texts]

    def wrong_programs(self, problem: Strings) -> Mapping[str, str]:
        sources = wrong.sources(problem.family, problem.kinds, problem.alphabet)
        return {
            mistake: source.replace(f"def {wrong.NAME}(", f"def {problem.entry}(")
            for mistake, source in sources.items()
        }

    def wrong_functions(self, problem: Strings) -> Mapping[str, Callable[..., Any]]:
        return wrong.functions(problem.family, problem.kinds, problem.alphabet)


def _for_kinds(source: str, kinds: Sequence[str]) -> str:
    """Return the source of a function that knows these kinds of brackets and no others."""
    closes = ", ".join(f'"{kind[1]}": "{kind[0]}"' for kind in kinds)
    return source.replace('")": "(", "]": "[", "}": "{", ">": "<"', closes).replace(
        '"([{<"', f'"{"".join(kind[0] for kind in kinds)}"'
    )


def _draw_examples(
    family: str, kinds: Sequence[str], alphabet: str, rng: random.Random
) -> tuple[str, str]:
    """Draw two short strings with different answers."""
    solve = getattr(families, family)
    while True:
        first, second = (
            _draw_text(family, kinds, alphabet, rng, right=right, most=3) for right in (True, False)
        )
        if solve(first) != solve(second):
            return first, second


def _draw_text(
    family: str,
    kinds: Sequence[str],
    alphabet: str,
    rng: random.Random,
    *,
    right: bool,
    most: int = _MAX_PAIRS,
) -> str:
    """Draw a string for the family.

    Args:
        right: Whether the string is balanced; without effect in a family not about balance.
        most: Largest number of pairs of brackets.
    """
    pairs = rng.randint(1, most)
    if family == "unfold":
        return _draw_folded(rng, pairs)
    text = _draw_nested(rng, kinds, pairs)
    if family == "score":
        return text
    if family == "with_jokers":
        return _insert_jokers(text, rng, right=right)
    if alphabet == "mixed":
        text = "".join(c + rng.choice(["", rng.choice("abcxyz")]) for c in text)
    return text if right else _break_balance(text, kinds, rng)


def _draw_nested(rng: random.Random, kinds: Sequence[str], pairs: int) -> str:
    """Draw a balanced string with this number of pairs."""
    if pairs == 0:
        return ""
    inside = rng.randint(0, pairs - 1)
    kind = rng.choice(kinds)
    within = _draw_nested(rng, kinds, inside)
    return f"{kind[0]}{within}{kind[1]}{_draw_nested(rng, kinds, pairs - 1 - inside)}"


def _break_balance(text: str, kinds: Sequence[str], rng: random.Random) -> str:
    """Return an unbalanced string made from a balanced one.

    Either its end is cut off, so that every closing bracket is right but some bracket stays open,
    or two of its brackets are exchanged, so that there are as many of each as before, or it has one
    to four random edits, and more if it is still balanced after them.
    """
    way = rng.random()
    if way < 0.25 and (
        ends := [end for end in range(1, len(text)) if not families.balanced(text[:end])]
    ):
        return text[: rng.choice(ends)]
    if way > 0.6 and (exchanged := exchange_brackets(text, rng)):
        return exchanged
    brackets, left = "".join(kinds), rng.randint(1, 4)
    while True:
        left -= 1
        place = rng.randrange(len(text) + 1)
        edit = rng.choice(["drop", "add", "change", "swap"])
        if edit == "drop":
            text = text[:place] + text[place + 1 :]
        elif edit == "add":
            text = text[:place] + rng.choice(brackets) + text[place:]
        elif edit == "change":
            text = text[:place] + rng.choice(brackets) + text[place + 1 :]
        else:
            text = text[place:] + text[:place]
        if left <= 0 and not families.balanced(text):
            return text


def _insert_jokers(text: str, rng: random.Random, *, right: bool) -> str:
    """Replace some characters by "*", again and again until the answer is `right`."""
    while True:
        candidate = "".join(
            "*" if rng.random() < 0.25 else c
            for c in (text if right else _break_balance(text, ("()",), rng))
        )
        if families.with_jokers(candidate) == right:
            return candidate


def _draw_folded(rng: random.Random, pairs: int) -> str:
    """Draw a string with nested repetitions, such as "a2(b3(c))"."""
    text = ""
    while pairs > 0:
        inside = rng.randint(0, min(2, pairs - 1))
        letters = "".join(rng.choices("abcdef", k=rng.randint(1, 2)))
        text += (
            rng.choice(["", letters]) + f"{rng.randint(1, 4)}({letters}{_draw_folded(rng, inside)})"
        )
        pairs -= 1 + inside
    return text


def _randomize(answer: Any, rng: random.Random) -> Any:
    """Return a random answer of the same type, for problems that are impossible to solve."""
    if isinstance(answer, bool):
        return rng.random() < 0.5
    return (
        answer + rng.randint(1, 10**6)
        if isinstance(answer, int)
        else f"{answer}{rng.randrange(10**6)}"
    )
