"""Measure the kit's checks by the catalogue: how many faults they find, what they condemn wrongly.

    python tests/kit/score.py [--part dev|fresh10] [--only NAME] [--theme THEME] [--quick]
        [--write] [--jobs N]

Each environment is checked in a process of its own, in an empty folder that is also its home. A
fault is found if one of the checks that its entry names fails; other checks are not asked. An
honest design is asked everything, and each check that fails is a false alarm. The exit status is 1
if a fault is missed, or a false alarm raised, other than README.md says; `--write` changes the page.
"""

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import catalogue
import page
from page import Surprises, in_words, listed, table

FIXED_FOLDER = Path("/tmp/grpo-catalogue")
"""Where two of the faults leave files on purpose."""
DIED = "no result"
"""The false alarm of an honest design whose process died or took too long."""
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


@dataclass(frozen=True, slots=True)
class Result:
    """What the checks said about one environment."""

    failed: Mapping[str, str]
    """The checks that failed, with their messages; of a fault only those that its entry names."""
    seconds: float
    failure: str = ""
    """Why the process gave no result, or ""."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=catalogue.PARTS, help="without it, every part")
    parser.add_argument("--only", default="", help="the name of one environment")
    parser.add_argument("--theme", default="", help="the entries of one theme, such as episodes")
    parser.add_argument("--quick", action="store_true", help=f"one of {_QUICK_STEP} entries")
    parser.add_argument("--write", action="store_true", help="change README.md")
    parser.add_argument("--jobs", type=int, default=2, help="environments at the same time")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)  # for the processes below
    options = parser.parse_args(arguments)
    if options.one:
        (entry,) = [entry for entry in catalogue.entries() if entry.name == options.one]
        print(json.dumps(failed_checks(entry)))
        return
    if options.jobs < 1:
        parser.error(f"--jobs is at least 1, not {options.jobs}")
    parts = [options.part] if options.part else catalogue.PARTS
    step = _QUICK_STEP if options.quick else 1
    chosen = {part: entries_of(part, options.only, options.theme, step) for part in parts}
    if not any(chosen.values()):
        name = options.only or options.theme or "entry"
        parser.error(f"there is no {name!r} in {' and '.join(parts)}")
    different: list[str] = []
    for part, entries in chosen.items():
        different += _score_part(part, entries, options.jobs, write=options.write)
    if different:
        sys.exit("\n".join(different))


def entries_of(
    part: catalogue.Part, only: str = "", theme: str = "", step: int = 1
) -> list[catalogue.Entry]:
    """Return the entries to score: one by its name, those of a theme, or each `step`-th."""
    if only:
        return [entry for entry in catalogue.entries(part) if entry.name == only]
    entries = [*catalogue.faults(part)[::step], *catalogue.honest_designs(part)[::step]]
    return [entry for entry in entries if theme in ("", entry.theme)]


def _score_part(
    part: catalogue.Part, entries: Sequence[catalogue.Entry], jobs: int, *, write: bool
) -> list[str]:
    """Score entries of one part, and return in words what differs from the page."""
    if not entries:
        return []
    said = page.said(part)
    results = dict(score(entries, jobs))
    measured = surprises(entries, results)
    doubtful = [entry for entry in entries if measured.get(entry.name) != said.get(entry.name)]
    if doubtful:  # some checks stop after some seconds, and find less beside other processes
        print(f"Once more, one at a time: {listed(entry.name for entry in doubtful)}")
        measured = surprises(entries, results | dict(score(doubtful, jobs=1)))
    print(f"\n## {part}\n\n{table(entries, measured)}\n\n{in_words(entries, measured)}\n")
    if not write:
        return differences(entries, measured, said)
    names = {entry.name for entry in entries}
    page.write(part, measured | {name: said[name] for name in said.keys() - names})
    return []


def score(entries: Sequence[catalogue.Entry], jobs: int = 2) -> Iterator[tuple[str, Result]]:
    """Check each entry in its own process, print a line about it, and yield its name and result."""
    with ThreadPoolExecutor(jobs) as pool:
        for entry, result in zip(entries, pool.map(_in_a_process, entries), strict=True):
            print(_line(entry, result), flush=True)
            yield entry.name, result
    shutil.rmtree(FIXED_FOLDER, ignore_errors=True)


def _line(entry: catalogue.Entry, result: Result) -> str:
    """Return one line about an entry, for people."""
    names = ", ".join(result.failed)
    if entry.checks:
        said = f"found by {names}" if names else "MISSED"
    else:
        said = f"ALARM {names}" if names else "quiet"
    failure = f"  [{result.failure}]" if result.failure else ""
    return f"{entry.name:<28} {result.seconds:>6.1f} s  {said}{failure}"


def _in_a_process(entry: catalogue.Entry) -> Result:
    """Return the result of `failed_checks` from a process that may hang or die."""
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
    return result_of(output, failure, time.monotonic() - started)


def result_of(output: str, failure: str, seconds: float) -> Result:
    """Return what a process that checks an environment has printed last, as some print more."""
    if failure:
        return Result({}, seconds, failure[:300])
    try:
        failed = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):  # an environment that ends the process, or prints at its end
        failed = None
    if not isinstance(failed, dict):
        return Result({}, seconds, f"ended with {output[-100:]!r}, where the failed checks belong")
    return Result(failed, seconds)


def failed_checks(entry: catalogue.Entry) -> dict[str, str]:
    """Return the checks that fail for an entry's environment, in this process, and their messages.

    A fault is asked only the checks that its entry names, an honest design all of them.
    """
    from grpo_core.testing import check_environment
    from grpo_kit.run import catalogue as known_checks

    names = [check for check in entry.checks if check in known_checks()]
    if entry.checks and not names:  # a check that is still to be written
        return {}
    report = check_environment(entry.make(), only=names)
    return {
        result.check: result.message
        for result in report.results
        if result.status == "invalid" and (not entry.checks or result.check in names)
    }


def surprises(entries: Iterable[catalogue.Entry], results: Mapping[str, Result]) -> Surprises:
    """Return which entries were missed, and which raise false alarms, with the checks that do."""
    surprising: Surprises = {}
    for entry in entries:
        result = results[entry.name]
        if entry.checks and not result.failed:
            surprising[entry.name] = ()
        elif not entry.checks and (result.failed or result.failure):
            surprising[entry.name] = tuple(result.failed) or (DIED,)
    return surprising


def differences(
    entries: Iterable[catalogue.Entry], measured: Surprises, said: Surprises
) -> list[str]:
    """Return a line about each entry for which the page says something else than was measured."""
    lines = []
    for entry in entries:
        now, before = (_in_a_word(entry, surprising) for surprising in (measured, said))
        if now != before:
            lines.append(
                f"{entry.name} was {now}; {page.PATH.name} says {before} (--write changes it)"
            )
    return lines


def _in_a_word(entry: catalogue.Entry, surprising: Surprises) -> str:
    if entry.checks:
        return "missed" if entry.name in surprising else "found"
    alarms = surprising.get(entry.name, ())
    return f"condemned by {', '.join(alarms)}" if alarms else "passed"


if __name__ == "__main__":
    main()
