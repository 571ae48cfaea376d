"""Answers with one mistake: those that the environment names, and those made from references.

They are no shortcuts by themselves, since they need most of the task; but where one of them is
paid, a policy stops learning there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grpo_core import Environment, Task
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.shortcuts.programs import are_programs
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Candidate
from grpo_kit.shortcuts.syntax import mistaken_programs
from grpo_kit.tasks.sample import in_time

_SECONDS = 30.0
"""No further task is asked for its mutants after this time."""


def offers_mutants(env: Environment[Any]) -> bool:
    """Return whether an environment has a method `mutants` of its own."""
    inherited = getattr(Environment, "mutants", None)
    return getattr(type(env), "mutants", inherited) is not inherited


async def declared_mistakes(
    env: Environment[Any], tasks: Sequence[Task[Any]]
) -> tuple[list[Candidate], list[str]]:
    """Return the mutants that the environment names, by their name, and why some are missing.

    Args:
        env: The environment.
        tasks: The tasks with their data.
    """
    if not offers_mutants(env):
        return [], []
    mutants: Callable[[Task[Any]], Any] = getattr(env, "mutants")  # noqa: B009 - of subclasses
    made, failures = await in_time(mutants, tasks, seconds=_SECONDS, limit=env.timeout_seconds)
    answers: dict[str, list[str | None]] = {}
    for place, (_, scripts) in enumerate(made):
        if not _are_scripts(scripts):
            failures = [
                *failures,
                f"it returned {scripts!r:.100}, and no mapping of names to answers",
            ]
            break
        for name, script in scripts.items():
            answers.setdefault(name, [None] * len(tasks))[place] = join_turns(script)
    notes = [f"mutants() failed: {failures[0]:.200}"] if failures else []
    return [Candidate(name, "mistake", texts, True) for name, texts in answers.items()], notes


def _are_scripts(value: object) -> bool:
    """Return whether a value is a mapping of names to answers of one or several turns."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and (
            isinstance(script, str)
            or (isinstance(script, list | tuple) and all(isinstance(turn, str) for turn in script))
        )
        for name, script in value.items()
    )


def made_mistakes(shape: ReferenceShape, references: Sequence[str | None]) -> list[Candidate]:
    """Return the mistakes of each kind in the references of the tasks, where they are code.

    Args:
        shape: The shape of the references.
        references: The reference of each task; None where it has none.
    """
    mistaken = _mistakes_of(shape)
    if mistaken is None:
        return []
    answers: dict[str, list[str | None]] = {}
    for place, reference in enumerate(references):
        answer = None if reference is None else shape.answer_in(reference)
        if answer is None:
            continue
        for name, changed in mistaken(answer):
            answers.setdefault(name, [None] * len(references))[place] = shape.reply(changed)
    return [Candidate(name, "mistake", texts) for name, texts in answers.items()]


def _mistakes_of(shape: ReferenceShape) -> Callable[[str], Iterator[tuple[str, str]]] | None:
    """Return what makes mistakes in answers of a shape; None where answers are not code."""
    if are_programs(shape):
        return _programs
    return _texts if shape.is_code else None


def _programs(source: str) -> Iterator[tuple[str, str]]:
    """Yield the mistakes in a program; none in a text that is not one."""
    try:
        yield from mistaken_programs(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


_CHANGES: Mapping[str, tuple[str, str]] = {
    "< is <=": (r"(?<![<>])<(?![=<>])", "<="),
    "> is >=": (r"(?<= )>(?=\s\d)", ">="),
    "<= is <": (r"<=", "<"),
    ">= is >": (r">=", ">"),
    "DISTINCT is dropped": (r"(?i)\bDISTINCT ", ""),
    "the condition is dropped": (r"(?is)\s+WHERE\b.*?(?=\bGROUP\b|\bORDER\b|\bLIMIT\b|\)|\Z)", " "),
    "the condition of groups is dropped": (
        r"(?is)\s+HAVING\b.*?(?=\bORDER\b|\bLIMIT\b|\)|\Z)",
        " ",
    ),
    "the order is dropped": (r"(?is)\s+ORDER BY\b.*?(?=\bLIMIT\b|\)|\Z)", " "),
    "the limit is dropped": (r"(?i)\s+LIMIT \d+", ""),
    "DESC is dropped": (r"(?i) DESC\b", ""),
    "every join is a left join": (r"(?i)(?<!LEFT )\bJOIN\b", "LEFT JOIN"),
    "left joins are plain ones": (r"(?i)\bLEFT (?:OUTER )?JOIN\b", "JOIN"),
    "AND is OR": (r"(?i)\bAND\b", "OR"),
    "NOT is dropped": (r"(?i)\bNOT ", ""),
    "SUM is COUNT": (r"(?i)\bSUM\(", "COUNT("),
    "AVG is MAX": (r"(?i)\bAVG\(", "MAX("),
    "MIN and MAX are exchanged": (r"(?i)\bMAX\(", "MIN("),
    "the first command of several": (r"(?s)\s*(?:&&|;|\|).*", ""),
    "the last command of several": (r"(?s)\A.*(?:&&|;|\|)\s*", ""),
    "options are dropped": (r" -[A-Za-z]+", ""),
    "one letter of the options is dropped": (r" -([A-Za-z])[A-Za-z]+", r" -\1"),
    "the last letter of the options alone": (r" -[A-Za-z]+([A-Za-z])", r" -\1"),
    "the output is not written": (r"\s*>\s*\S+\s*\Z", ""),
    "cat is head -9": (r"\bcat ", "head -n 9 "),
    "mv is cp": (r"\bmv ", "cp "),
    "mv is ln": (r"\bmv ", "ln "),
    "the exit status is 1": (r"\Z", "; exit 1"),
}
"""What is replaced in a query or in commands, by the name of the mistake."""


def _texts(source: str) -> Iterator[tuple[str, str]]:
    """Yield the mistakes in a query or in commands."""
    for name, (pattern, replacement) in _CHANGES.items():
        changed = re.sub(pattern, replacement, source)
        if changed.strip() and changed != source:
            yield name, changed
    last = re.search(r"\d+(?!.*\d)", source, re.DOTALL)
    if last is not None and len(last[0]) < 10:
        more = str(int(last[0]) + 1)
        yield "the last number is one larger", source[: last.start()] + more + source[last.end() :]
