"""Print what a search for shortcuts found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import typer
from rich.markup import escape
from rich.table import Table

from grpo_core.api.calls import PrintableConsole
from grpo_core.cli.output import MESSAGE_LIMIT, print_line
from grpo_core.words import fit, shorten
from grpo_kit.shortcuts.strategy import Kind
from grpo_kit.shortcuts.tried import LevelHunt, Tried

_SHOWN, _SHOWN_MISTAKES = 10, 6
"""Rows of the tables."""
_EXPLAINED = 4
"""Shortcuts that have a line of their own."""
_NAME_WIDTH, _EXAMPLE_WIDTH = 70, 40
_ADVICE: Mapping[Kind, str] = {
    "constant": "balance the answers, read an answer as a whole, or pay only what is better than "
    "the best constant",
    "others": "balance the answers, or draw more different tasks",
    "prompt": "draw tasks in which this is no better an answer than another, or compare more of "
    "the answer",
    "program": "draw cases on which it is wrong, and name it in mutants()",
    "mistake": "draw cases on which it is wrong, and name it in mutants()",
}


def print_hunts(hunts: Sequence[LevelHunt], name: str, split: str, seconds: float) -> None:
    """Print a table for each level, and what follows from it.

    Args:
        hunts: what was tried at each level.
        name: the environment.
        split: the split of the tasks.
        seconds: how long it took.
    """
    for level in hunts:
        print_line(
            f"{name}: {level.composed} strategies on {level.screened} {split} tasks of level "
            f"{level.level:g}, the best {len(level.strategies)} on {level.tasks}",
            bold=True,
        )
        _print_table(level)
        for line in _facts(level):
            print_line(line, limit=MESSAGE_LIMIT)
        _print_conclusion(level)
    print_line(f"{sum(level.attempts for level in hunts)} attempts, {seconds:.0f} s in all")


def _print_table(level: LevelHunt) -> None:
    table = Table("strategy", "reward", "passed")
    table.add_column("for example", no_wrap=True)
    sections = (
        level.strategies[:_SHOWN],
        level.mistakes[:_SHOWN_MISTAKES],
        [level.reference] if level.reference else [],
    )
    for section in filter(None, sections):
        for tried in section:
            table.add_row(*map(escape, _row(tried)))
        table.add_section()
    PrintableConsole().print(table)


def _row(tried: Tried) -> tuple[str, ...]:
    low, high = tried.interval
    name = f"mistake: {tried.name}" if tried.kind == "mistake" else tried.name
    return (
        fit(name, _NAME_WIDTH),
        f"{tried.reward:.3f}",
        f"{tried.passes} of {tried.tasks} ({low:.0%} .. {high:.0%})",
        shorten(" / ".join(tried.example), _EXAMPLE_WIDTH),
    )


def _facts(level: LevelHunt) -> Iterator[str]:
    """Yield what the numbers have to be compared with, and what is missing."""
    reference = (
        "no reference is known"
        if level.reference is None
        else f"references earn {level.reference.reward:.3f} "
        f"and pass {level.reference.pass_rate:.0%}"
    )
    guess = (
        f"an even guess among the answers seen in {level.learned} other tasks passes "
        f"{level.even_chance:.1%}"
        if level.learned
        else "without references of other tasks half of all guesses are taken to be right"
    )
    yield f"the floor is {level.floor:g}; {reference}; {guess}"
    if level.mistakes:
        yield (
            "a mistake is the task's own reference with one thing wrong: what a policy earns that "
            "learned all but this"
        )
    if level.errors:
        yield f"{level.errors} of {level.attempts} attempts could not be judged: {level.error}"
    yield from level.notes


def _print_conclusion(level: LevelHunt) -> None:
    declared = [tried for tried in level.passing_mistakes if tried.declared]
    made = [tried for tried in level.passing_mistakes if not tried.declared]
    for lead, colour, paid in (
        ("shortcut", typer.colors.RED, [*level.shortcuts, *declared]),
        ("look at it", typer.colors.YELLOW, made),
    ):
        for tried in paid[:_EXPLAINED]:
            low, high = tried.interval
            text = (
                f": {tried.name!r} passes {tried.passes} of {tried.tasks} tasks "
                f"({low:.0%} .. {high:.0%}) and earns {tried.reward:.3f}: {_advice(tried)}"
            )
            print_line(text, lead=lead, limit=MESSAGE_LIMIT, bold=True, fg=colour)
        if len(paid) > _EXPLAINED:
            print_line(f": {len(paid) - _EXPLAINED} more (--json has all)", lead=lead, fg=colour)
    if level.attempts == level.errors:
        print_line(": no attempt could be judged", lead="unknown", bold=True, fg="red")
    elif not level.shortcuts and not level.passing_mistakes:
        print_line(
            f": among {level.composed + level.mistaken} tried on {level.screened} tasks, the best "
            f"of them on {level.tasks}, none passes clearly more than an even guess or earns half "
            "of what references do; there may be others",
            lead="no shortcut found",
            limit=MESSAGE_LIMIT,
            bold=True,
            fg="green",
        )


def _advice(tried: Tried) -> str:
    if tried.declared:
        return "the environment says that it must not pass; draw cases on which it is wrong"
    if tried.kind == "mistake":
        return f"{_ADVICE['mistake']}, unless it is right on every input"
    return _ADVICE[tried.kind]
