"""Measure the kit's checks by the catalogue: how many faults they find, what they condemn wrongly.

    python tests/kit/score.py [--part dev|fresh|fresh2|...|fresh10] [--only NAME] [--theme THEME]
        [--quick] [--write] [--least SHARE] [--jobs N]

Each environment is checked in a process of its own, in an empty folder that is also its home. A
fault is found if one of the checks that its entry names fails; other checks are not asked. An
honest design is asked everything, and each check that fails is a false alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import catalogue

FOLDER = Path(__file__).parent
FIXED_FOLDER = Path("/tmp/grpo-catalogue")
"""Where two of the faults leave files on purpose."""
SCORES = FOLDER / "scores"
PAGE = FOLDER / "README.md"
_SECONDS = 300.0
"""The most seconds for one environment; the slowest honest checks take a tenth of it."""
_QUICK_STEP = 12
"""`--quick` takes one of so many entries."""
_VARIABLES = {
    "USER": "author",
    "LOGNAME": "author",
    "SHELL": "/bin/bash",
    "TERM": "xterm",
    "LANG": "C.UTF-8",
    "HOSTNAME": "workshop",
}
"""What a shell on an author's machine sets."""

Scores = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=catalogue.PARTS, default="dev")
    parser.add_argument("--only", default="", help="the name of one environment")
    parser.add_argument("--theme", default="", help="the entries of one theme, such as episodes")
    parser.add_argument("--quick", action="store_true", help=f"one of {_QUICK_STEP} entries")
    parser.add_argument(
        "--write", action="store_true", help="store the scores, and update the page"
    )
    parser.add_argument(
        "--least", type=float, default=0.0, help="exit with 1 if a smaller share of faults is found"
    )
    parser.add_argument("--jobs", type=int, default=2, help="environments at the same time")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)  # for the processes below
    arguments = parser.parse_args()
    if arguments.one:
        (entry,) = [entry for part in catalogue.PARTS for entry in chosen(part, arguments.one)]
        print(json.dumps(checked(entry)))
        return
    step = _QUICK_STEP if arguments.quick else 1
    entries = [
        entry
        for entry in chosen(arguments.part, arguments.only, step)
        if arguments.theme in ("", entry.theme)
    ]
    if not entries:
        name = arguments.only or arguments.theme or "entry"
        parser.error(f"there is no {name!r} in the part {arguments.part}")
    scores = score(arguments.part, entries, jobs=arguments.jobs, report=True)
    print(f"\n{table(scores)}\n\n{misses(scores)}")
    if arguments.only:
        print(json.dumps(scores, indent=1))
    if arguments.write:
        if arguments.quick:
            parser.error("--write stores all scores of a part, of a theme or of one environment")
        is_part = not arguments.theme and not arguments.only
        write(scores if is_part else merged(stored(arguments.part), scores))
    if share_found(scores) < arguments.least:
        sys.exit(f"less than {arguments.least:.0%} of the faults were found")


def share_found(scores: Scores) -> float:
    """Return the share of faults that were found; 1 if there are none."""
    faults = scores["faults"].values()
    return sum(bool(result["found"]) for result in faults) / len(faults) if faults else 1.0


def condemned(scores: Scores) -> list[str]:
    """Return the honest designs that a check of severity "fault" condemns."""
    return [name for name, result in scores["honest"].items() if "fault" in _severities(result)]


def chosen(part: catalogue.Part, only: str = "", step: int = 1) -> list[catalogue.Entry]:
    """Return the entries to score: all, one by its name, or each `step`-th."""
    entries = [*catalogue.faults(part)[::step], *catalogue.honest_designs(part)[::step]]
    if only:
        everything = [*catalogue.faults(part), *catalogue.honest_designs(part)]
        return [entry for entry in everything if entry.name == only]
    return entries


def score(
    part: catalogue.Part,
    entries: Sequence[catalogue.Entry],
    *,
    jobs: int = 2,
    report: bool = False,
) -> Scores:
    """Check each entry in its own process, and return the scores.

    Args:
        part: the part that the entries are of.
        entries: what to score.
        jobs: how many are checked at the same time.
        report: print a line for each.
    """
    scores: Scores = {"part": part, "faults": {}, "honest": {}}
    with ThreadPoolExecutor(jobs) as pool:
        for entry, result in zip(entries, pool.map(_in_a_process, entries), strict=True):
            scores["faults" if entry.checks else "honest"][entry.name] = result
            if report:
                print(_line(entry, result), flush=True)
    shutil.rmtree(FIXED_FOLDER, ignore_errors=True)
    return scores


def _line(entry: catalogue.Entry, result: Mapping[str, Any]) -> str:
    """Return one line about an entry, for people."""
    if entry.checks:
        said = "found by " + ", ".join(result["found"]) if result["found"] else "MISSED"
    else:
        said = "ALARM " + ", ".join(result["alarms"]) if result["alarms"] else "quiet"
    failure = f"  [{result['failure']}]" if result["failure"] else ""
    return f"{entry.name:<28} {result['seconds']:>6.1f} s  {said}{failure}"


def _in_a_process(entry: catalogue.Entry) -> dict[str, Any]:
    """Return the result of `checked` from a process that may hang or die."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="catalogue-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--one", entry.name],
            cwd=folder,
            env=os.environ | _VARIABLES | {"HOME": folder, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=_SECONDS)
            failure = "" if process.returncode == 0 else (errors.splitlines() or ["no output"])[-1]
        except subprocess.TimeoutExpired:
            output, failure = "", f"took more than {_SECONDS:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it left behind, as some are to do
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    empty = {"found": {}} if entry.checks else {"alarms": {}}
    result = json.loads(output.splitlines()[-1]) if not failure else empty
    seconds = round(time.monotonic() - started, 1)
    return {"seconds": seconds, **result, "failure": failure[:300]}


def checked(entry: catalogue.Entry) -> dict[str, Any]:
    """Check the environment of an entry, in this process, and return what its checks say."""
    from grpo_core.kit.result import catalogue as known_checks
    from grpo_core.testing import check_environment

    names = [check for check in entry.checks if check in known_checks()]
    if entry.checks and not names:  # a check that is still to be written
        return {"found": {}}
    started = time.monotonic()
    report = check_environment(entry.make(), only=names)
    seconds = round(time.monotonic() - started, 1)
    failed = [result for result in report.results if result.status == "invalid"]
    if entry.checks:
        found = {result.check: result.message for result in failed if result.check in names}
        return {"found": found, "seconds": seconds}
    alarms = {
        result.check: {"severity": result.severity, "message": result.message} for result in failed
    }
    return {"alarms": alarms, "seconds": seconds}


def table(scores: Scores) -> str:
    """Return a table in Markdown: a row for each theme, and the totals."""
    rows: dict[str, list[int]] = {}
    part: catalogue.Part = scores["part"]
    for entry in [*catalogue.faults(part), *catalogue.honest_designs(part)]:
        row = rows.setdefault(entry.theme, [0] * 5)
        if entry.name in scores["faults"]:
            row[0] += 1
            row[1] += bool(scores["faults"][entry.name]["found"])
        elif entry.name in scores["honest"]:
            severities = _severities(scores["honest"][entry.name])
            row[2] += 1
            row[3] += "fault" in severities
            row[4] += "warning" in severities and "fault" not in severities
    total = [sum(row[column] for row in rows.values()) for column in range(5)]
    lines = [
        "| theme | faults | found | honest | condemned | warned of |",
        "| --- | --: | --: | --: | --: | --: |",
        *(_row(theme, row) for theme, row in sorted(rows.items()) if any(row)),
        _row("**all**", total),
    ]
    return "\n".join(lines)


def _row(theme: str, row: Sequence[int]) -> str:
    return f"| {theme} | " + " | ".join(map(str, row)) + " |"


def _severities(result: Mapping[str, Any]) -> set[str]:
    return {alarm["severity"] for alarm in result["alarms"].values()}


def misses(scores: Scores) -> str:
    """Return what was missed and what was condemned wrongly, as text."""
    missed = [name for name, result in scores["faults"].items() if not result["found"]]
    alarms = [
        f"{name} ({', '.join(result['alarms'])})"
        for name, result in scores["honest"].items()
        if result["alarms"]
    ]
    return f"Missed: {_listed(missed)}\n\nFalse alarms: {_listed(alarms)}"


def _listed(names: Iterable[str]) -> str:
    return f"{', '.join(names)}." if names else "none."


def block(scores: Scores) -> str:
    """Return what the page holds about a part, between its marks."""
    part = scores["part"]
    return f"<!-- scores: {part} -->\n{table(scores)}\n\n{misses(scores)}\n<!-- end: {part} -->"


def stored(part: catalogue.Part) -> Scores | None:
    """Return the stored scores of a part, if there are some."""
    path = SCORES / f"{part}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def merged(before: Scores | None, scores: Scores) -> Scores:
    """Return stored scores of a part with those of some of its entries in their place."""
    if before is None:
        return scores
    return {
        "part": scores["part"],
        "faults": before["faults"] | scores["faults"],
        "honest": before["honest"] | scores["honest"],
    }


def _summary(scores: Scores) -> Scores:
    """Return the scores without messages, which name folders of the machine that measured them."""
    return {
        "part": scores["part"],
        "faults": {
            name: {"seconds": result["seconds"], "found": list(result["found"])}
            for name, result in scores["faults"].items()
        },
        "honest": {
            name: {
                "seconds": result["seconds"],
                "alarms": {
                    check: {"severity": alarm["severity"]}
                    for check, alarm in result["alarms"].items()
                },
            }
            for name, result in scores["honest"].items()
        },
    }


def write(scores: Scores) -> None:
    """Store the scores, and put their table into the page."""
    SCORES.mkdir(exist_ok=True)
    path = SCORES / f"{scores['part']}.json"
    path.write_text(json.dumps(_summary(scores), indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- scores: {scores['part']} -->", f"<!-- end: {scores['part']} -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    PAGE.write_text(f"{head}{block(scores)}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
