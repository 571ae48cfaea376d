"""Checks of what judging does beside judging: programs, network, files, processes and memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from grpo_core.words.hostile_texts import EXECUTABLE, MARKER
from grpo_kit.check import check
from grpo_kit.process.second_process import SecondProcess
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject

_FEW = 3
"""So many files, or files written so often, come from every verdict; fewer may be a cache."""
_MANY = 20
"""So many processes, threads or open files come from every verdict; fewer may be a pool."""
_GROWTH_MB = 24.0
"""The check of memory fails if it grows by more than this in total and for each verdict (below)."""
_GROWTH_KB_PER_VERDICT = 50.0
"""The allowed growth for each verdict, as the size of the process shows it."""
_KEPT_BYTES_PER_VERDICT = 1000.0
"""The allowed growth for each verdict, as Python's own allocations show it."""


@check(
    "safety.eval",
    "fault",
    asks="Is the policy's text never executed in the verifier's own process?",
    second_process=True,
)
async def check_executed(process: SecondProcess, subject: Subject) -> str:
    """Check that neither verdicts nor replies execute text of the policy in their own process."""
    report = await process.report()
    effects = {**report.get("agents", {}).get("executed", {}), **report["side_effects"]}
    if execution := effects.get("eval"):
        raise BrokenPromiseError(
            f"a verdict or a reply executed what the policy wrote ({execution}): no eval(), "
            "exec(), pickle or sympy's parser on what it says; parse, or use a sandbox"
        )
    if opened := effects.get("file"):
        raise BrokenPromiseError(
            f"a verdict or a reply opened a file that the policy named ({opened}); compare texts, "
            "and do not look answers up on the disk"
        )
    return f"{len(EXECUTABLE)} answers that are code or name a file were not executed or opened"


@check("safety.network", "fault", asks="Does judging use no network?", second_process=True)
async def check_network(process: SecondProcess, subject: Subject) -> str:
    """Check that the verifier uses no network."""
    report = await process.report()
    if use := report["side_effects"].get("network"):
        raise BrokenPromiseError(
            f"the verifier used the network ({use}); bring the data along, or ask a service"
        )
    return f"{report['watched']} verdicts used no network by way of Python"


@check(
    "safety.files",
    "warning",
    asks="Does judging leave no files behind, and does none grow?",
    second_process=True,
)
async def check_files(process: SecondProcess, subject: Subject) -> str:
    """Check that judging leaves no files behind, and that none grows."""
    report = await process.report()
    verdicts, files = report["watched"], report["files"]
    if not files["count"]:
        own = "the folder for temporary files and home"
        own = own if subject.env.trusted else f"the working directory, {own}"
        return (
            f"{verdicts} verdicts left no file in {own}, and none elsewhere that Python opened for "
            "writing"
        )
    first = files["first"][0]
    seen = f"{verdicts} verdicts left {_files(files['count'])} behind, such as {_described(first)}"
    named = [item for item in files["first"] if MARKER in item["path"]]
    if named:
        raise BrokenPromiseError(
            f"{verdicts} verdicts wrote {_described(named[0])}, which the policy named; do not let "
            "an answer choose a file"
        )
    repeated = [item for item in files["first"] if item["late"] or item["writes"] >= _FEW]
    outside_caches = [item for item in files["first"] if "/.cache/" not in item["path"]]
    if repeated or len(outside_caches) >= _FEW:
        raise BrokenPromiseError(
            f"{seen}; write into a folder that is removed, since other workers write there, too"
        )
    return f"{seen}, written by the first of them alone; that is fine for a cache"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _described(item: Mapping[str, Any]) -> str:
    """Return a path, what became of it and, in the second process's own folders, where it is."""
    return f"{item['path']!r} (a {item['kind']})"


@check(
    "safety.processes",
    "fault",
    asks="Does judging leave no processes, threads or open files behind?",
    second_process=True,
)
async def check_processes(process: SecondProcess, subject: Subject) -> str:
    """Check that judging leaves no processes, threads or open files behind."""
    report = await process.report()
    leftovers, verdicts = report["leftovers"], report["watched"]
    if leftovers is None:
        raise NotCheckedError("this platform does not tell what a process holds")
    once = []
    for kind, found in leftovers.items():
        if not found["count"]:
            continue
        seen = f"{found['count']} {kind} behind, such as {found['first'][0]!r}"
        commands = kind == "processes" and not any("python" in name for name in found["first"])
        if found["count"] >= (_FEW if commands else _MANY) or found["late"] >= _FEW:
            raise BrokenPromiseError(
                f"{verdicts} verdicts left {seen}; close what a verdict opened"
            )
        once.append(seen)
    if once:
        return (
            f"{verdicts} verdicts left {', and '.join(once)}; not more with every verdict, which "
            "is fine for a pool"
        )
    return f"{verdicts} verdicts left no child processes, threads or open files behind"


@check(
    "safety.state",
    "warning",
    asks=(
        "Does judging leave the working directory, the variables, the locale and the global "
        "generators as they were?"
    ),
    second_process=True,
)
async def check_state(process: SecondProcess, subject: Subject) -> str:
    """Check that judging leaves the state of the process as it was."""
    report = await process.report()
    if changes := report["state"]:
        others = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise BrokenPromiseError(
            f"judging changed {changes[0]}{others}; restore what a verdict or a tool changes: "
            "all that runs in the process shares it"
        )
    if seeded := report["seeded"]:
        raise BrokenPromiseError(
            f"judging seeds the global generator of {seeded[0]}, so that later draws elsewhere "
            "repeat; use a generator of its own, such as random.Random(0)"
        )
    return (
        f"{report['watched']} verdicts left the working directory, the environment variables, the "
        "locale, the limits of Python and the global generators as they were"
    )


@check(
    "cost.memory",
    "fault",
    asks="Does memory stay constant over many verdicts?",
    second_process=True,
)
async def check_memory(process: SecondProcess, subject: Subject) -> str:
    """Check that memory does not grow over many verdicts."""
    growth = (await process.report())["growth"]
    if growth is None or not growth["verdicts"]:
        raise NotCheckedError(
            "this platform does not tell how much memory a process has, or verdicts leave so much "
            "else behind that no more were made"
        )
    kb_per_verdict = 1000 * growth["mb"] / growth["verdicts"]
    if growth["mb"] > _GROWTH_MB and kb_per_verdict > _GROWTH_KB_PER_VERDICT:
        raise BrokenPromiseError(
            f"{growth['verdicts']} verdicts left {growth['mb']:.0f} MB behind, "
            f"{kb_per_verdict:.0f} kB each; something keeps them{_where(growth)}"
        )
    kept = growth["bytes"]
    if kept is not None and kept > _KEPT_BYTES_PER_VERDICT:
        raise BrokenPromiseError(
            f"each of {growth['verdicts']} verdicts left {kept / 1000:.1f} kB behind; "
            f"something keeps them{_where(growth)}"
        )
    traced = "" if kept is None else f", of which Python holds {max(0.0, kept):.0f} bytes for each"
    return f"{growth['verdicts']} verdicts changed the process by {growth['mb']:+.1f} MB{traced}"


def _where(growth: Mapping[str, Any]) -> str:
    """Return where most of the memory was taken, as the end of a sentence."""
    return f", most of it from {os.path.basename(growth['where'])}" if growth["where"] else ""
