"""The wrong programs of each family: references with a change, and shortcuts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from grpo_core.programs import load_program
from grpo_env_parentheses import families
from grpo_env_parentheses.mistakes import ABOUT_KINDS, ABOUT_OTHERS, EDITS
from grpo_env_parentheses.shortcuts import RIGHT_FOR_ONE_KIND, SHORTCUTS

NAME = "answer"
"""The name of the function in each program."""
_FUTURE = "from __future__ import annotations\n\n"


@cache
def sources(family: str, kinds: tuple[str, ...], alphabet: str) -> Mapping[str, str]:
    """Return the programs that are wrong for a problem, by the name of the mistake.

    Args:
        family: the name of the function that solves the problem.
        kinds: the kinds of brackets in its strings.
        alphabet: a key of `ALPHABETS`, which characters they have.
    """
    reference = _source_of(getattr(families, family))
    programs = dict(_changed(reference, EDITS[family]))
    for shortcut in SHORTCUTS[family]:
        if len(kinds) > 1 or shortcut not in RIGHT_FOR_ONE_KIND:
            mistake = (shortcut.__doc__ or "").splitlines()[0]
            programs[mistake] = _source_of(shortcut)
    if "closes = {" in reference:
        programs |= _with_a_kind_unknown(reference, kinds)
    if len(kinds) == 1:
        programs = {name: text for name, text in programs.items() if name not in ABOUT_KINDS}
    if alphabet != "mixed":
        programs = {name: text for name, text in programs.items() if name not in ABOUT_OTHERS}
    return {mistake: _FUTURE + program for mistake, program in programs.items()}


@cache
def functions(
    family: str, kinds: tuple[str, ...], alphabet: str
) -> Mapping[str, Callable[..., Any]]:
    """Return the functions of `sources`, by the name of the mistake."""
    programs = sources(family, kinds, alphabet)
    return {mistake: load_program(source, NAME) for mistake, source in programs.items()}


def _changed(reference: str, edits: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each mistake with the program in which it was made."""
    for mistake, (right, by_mistake) in edits.items():
        if right not in reference:
            raise ValueError(f"the change {mistake!r} is one of {right!r}, which is not there")
        yield mistake, reference.replace(right, by_mistake)


def _with_a_kind_unknown(reference: str, kinds: Sequence[str]) -> dict[str, str]:
    """Return programs that take brackets of one kind for other characters."""
    programs = {}
    for kind in kinds:
        opening, closing = kind[0], kind[1]
        known = reference.replace(f'"{closing}": "{opening}"', f'"\\0{closing}": "{opening}"')
        programs[f"{opening}{closing} is not known"] = known.replace(
            'c in "([{<"', f'c in "{"([{<".replace(opening, "")}"'
        )
        programs[f"{closing} is not known"] = known
    return programs


def _source_of(function: Callable[..., Any]) -> str:
    """Return the source of a function under the name of all, without its docstring."""
    lines = inspect.getsource(function).splitlines()
    text = "\n".join(lines) + "\n"
    head, _, body = text.partition('    """')
    return head.replace(f"def {function.__name__}(", f"def {NAME}(") + body.partition('"""\n')[2]
