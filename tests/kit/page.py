"""Read and write what README.md says about the scores of the catalogue's parts."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import catalogue

from grpo_kit.run import catalogue as known_checks

PATH = Path(__file__).parent / "README.md"

Surprises = dict[str, tuple[str, ...]]
"""The faults that were missed, each with (), and the honest designs with their false alarms."""


def table(entries: Iterable[catalogue.Entry], surprising: Surprises) -> str:
    """Return a table in Markdown: a row for each theme, and the totals."""
    warnings = {name for name, check in known_checks().items() if check.severity == "warning"}
    rows: dict[str, list[int]] = {}
    for entry in entries:
        row = rows.setdefault(entry.theme, [0] * 5)
        alarms = surprising.get(entry.name, ())
        if entry.checks:
            row[0] += 1
            row[1] += entry.name not in surprising
        else:
            row[2] += 1
            row[3] += not warnings.issuperset(alarms)
            row[4] += bool(alarms) and warnings.issuperset(alarms)
    total = [sum(row[column] for row in rows.values()) for column in range(5)]
    lines = [
        "| theme | faults | found | honest | condemned | warned of |",
        "| --- | --: | --: | --: | --: | --: |",
        *(_row(theme, row) for theme, row in sorted(rows.items())),
        _row("**all**", total),
    ]
    return "\n".join(lines)


def _row(theme: str, row: Sequence[int]) -> str:
    return f"| {theme} | " + " | ".join(map(str, row)) + " |"


def in_words(entries: Iterable[catalogue.Entry], surprising: Surprises) -> str:
    """Return what was missed and what was condemned wrongly, as text that `said` reads."""
    odd = [entry for entry in entries if entry.name in surprising]
    missed = [entry.name for entry in odd if entry.checks]
    alarms = [
        f"{entry.name} ({', '.join(surprising[entry.name])})" for entry in odd if not entry.checks
    ]
    return f"Missed: {listed(missed)}\n\nFalse alarms: {listed(alarms)}"


def listed(names: Iterable[str]) -> str:
    return f"{', '.join(names) or 'none'}."


def block(part: catalogue.Part, surprising: Surprises) -> str:
    """Return what the page holds about a part, between its marks."""
    entries = catalogue.entries(part)
    return f"\n{table(entries, surprising)}\n\n{in_words(entries, surprising)}\n"


def said_block(part: catalogue.Part) -> str:
    """Return what the page says about a part, between its marks."""
    _, block, _ = _around(part)
    return block


def _around(part: catalogue.Part) -> tuple[str, str, str]:
    """Return the page before what it says about a part, that, and what follows."""
    begin, end = f"<!-- scores: {part} -->", f"<!-- end: {part} -->"
    head, mark, rest = PATH.read_text(encoding="utf-8").partition(begin)
    inside, end_mark, tail = rest.partition(end)
    if not mark or not end_mark:
        sys.exit(f"{PATH} has no place for the part {part}: add the lines {begin} {end}")
    return head + begin, inside, end + tail


def said(part: catalogue.Part) -> Surprises:
    """Return what the page says was missed and condemned in a part."""
    inside = said_block(part)
    missed = re.search(r"^Missed: (.*)\.$", inside, re.MULTILINE)
    alarms = re.search(r"^False alarms: (.*)\.$", inside, re.MULTILINE)
    surprising: Surprises = {}
    if missed and missed[1] != "none":
        surprising |= dict.fromkeys(missed[1].split(", "), ())
    for name, checks in re.findall(r"(\w+) \(([^)]*)\)", alarms[1] if alarms else ""):
        surprising[name] = tuple(checks.split(", "))
    unknown = surprising.keys() - {entry.name for entry in catalogue.entries(part)}
    if unknown:
        names = ", ".join(sorted(unknown))
        sys.exit(f"{PATH} names {names}, which the part {part} does not have: correct its table")
    return surprising


def write(part: catalogue.Part, surprising: Surprises) -> None:
    """Put the table of a part into the page."""
    head, _, tail = _around(part)
    PATH.write_text(f"{head}{block(part, surprising)}{tail}", encoding="utf-8")
