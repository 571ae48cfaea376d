"""Tell faults from what follows from them, so that one fault is one line of a report.

A failed check is a consequence where another failed check names the cause more exactly. Only a
fault can be a cause, and it stays a fault: an environment without faults has no consequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from grpo_core.api.verify import CheckResult

Failed = Mapping[str, CheckResult]
"""The failed checks of a report by name."""

_JUDGED = ("verdict.form", "verdict.reference", "verdict.repeat", "verdict.process", "floor")
"""What is seen of verdicts; a group stands for its checks."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """State that a fault which one check reports makes other checks fail, too."""

    cause: str
    consequences: tuple[str, ...]
    applies: Callable[[Failed], bool] = lambda failed: True
    shows: Callable[[CheckResult], bool] = lambda result: True
    """Whether a failed check among the consequences looks as it does where this is its cause."""


def _says(*words: str) -> Callable[[CheckResult], bool]:
    """Return a test of whether a message holds one of `words`."""
    return lambda result: any(word in result.message for word in words)


_is_unscored = _says("could not be judged", "failed:")
_passes = _says("passed", "passes", "is paid")
_is_first_of_list = _says("the right one first")

_LOOSE = ("floor.echo", "floor.suffix", "floor.near", "floor.spelling")
"""What passes, too, where a verifier looks for the answer anywhere."""
_RULES: tuple[_Rule, ...] = (
    _Rule(
        "task.random",
        ("task", *_JUDGED),
        lambda failed: "task.pure" in failed or "task.process" in failed,
    ),
    _Rule("task.pure", ("task", *_JUDGED, "cost.time")),
    _Rule("task.process", ("task", *_JUDGED, "cost.time")),
    _Rule("task.split", ("task.seed",), shows=_says("held-out")),
    _Rule("declared.contract", _JUDGED, shows=_is_unscored),
    _Rule("declared.contract", ("verdict.swallow",), shows=_says("coroutine")),
    _Rule("reply.form", ("verdict", "floor", "reply"), shows=_is_unscored),
    _Rule("tool.form", ("verdict", "floor", "tool"), shows=_is_unscored),
    _Rule("verdict.repeat", ("verdict", "task.level", "floor")),
    _Rule("verdict.reference", ("task.level", "verdict.passed")),
    _Rule("verdict.passed", ("floor",), shows=_passes),
    _Rule("floor.junk", ("floor",), lambda failed: "passed" in failed["floor.junk"].message),
    _Rule("floor.junk", ("floor.empty",)),
    _Rule("floor.other", ("floor",), shows=_passes),
    _Rule(
        "floor.suffix",
        ("floor.listed",),
        lambda failed: _is_first_of_list(failed.get("floor.listed", failed["floor.suffix"])),
    ),
    _Rule(
        "floor.superset",
        ("floor.listed",),
        lambda failed: "floor.suffix" not in failed,
    ),
    _Rule("floor.listed", ("floor.superset", *_LOOSE)),
    _Rule("floor.listed", ("floor.large",), shows=_passes),  # of a long list
    _Rule("floor.superset", _LOOSE, shows=_passes),
    _Rule("floor.suffix", ("floor.near", "floor.spelling"), shows=_passes),
    _Rule("floor.constant", ("floor.balance",)),
    _Rule("tool.form", ("reply.form", "reply.hostile", "reply.ends")),
    _Rule("reply.form", ("reply", "tool.form")),
    _Rule("reply.form", ("verdict", "floor"), shows=_says("the dialogue failed")),
    _Rule("reply.repeat", ("reply", "tool", "verdict.repeat", "verdict.process")),
    _Rule("reply.hostile", ("floor",), shows=_says("the dialogue failed")),
    _Rule("episode.replay", ("episode", "reply.repeat", "verdict.repeat", "verdict.process")),
    _Rule("episode.apart", ("episode", "verdict", "floor", "reply")),
    _Rule("episode.repeat", ("episode",)),
    _Rule("reply.form", ("episode",), shows=_says("the dialogue failed", "could not be judged")),
    _Rule("reply.hostile", ("episode",), shows=_says("the dialogue failed", "could not be judged")),
    _Rule("agent.talk", ("agent", "verdict", "floor", "cost.time"), shows=_says("the agent")),
    _Rule("agent.repeat", ("agent.apart", "verdict.repeat", "verdict.process")),
    _Rule("tool.secret", ("reply.secret", "reply.echo")),
    _Rule("reply.secret", ("reply.echo",)),
    _Rule("tool.execute", ("reply.hostile",)),
    _Rule("safety.eval", ("floor.digits", "floor.spelling", "cost.time")),
)
"""The more exact cause first: a check has the first cause that applies."""
_SLOW_CAUSES = ("floor.large", "floor.nested", "floor.digits", "floor.text")
_RAISED_CAUSES = (
    *("verdict.reference", "floor.empty", "floor.junk", "floor.other", "floor.echo"),
    *("floor.suffix", "floor.listed", "floor.digits", "floor.text", "floor.nested", "floor.large"),
)
_FORM_CAUSES = ("verdict.form",)
"""The checks that name best why answers are too slow, raise or get no proper verdict.

The best name is first.
"""


def mark_consequences(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the results with `caused_by` set where a check shows the fault of another one."""
    results = tuple(results)
    failed = {result.check: result for result in results if result.status == "invalid"}
    causes = dict[str, str]()
    for cause, check in (*_pairs_by_rule(failed), *_pairs_by_error(failed)):
        if check not in causes and _root(causes, cause) != check:
            causes[check] = cause
    return tuple(
        replace(result, caused_by=_root(causes, result.check)) if result.check in causes else result
        for result in results
    )


def _root(causes: Mapping[str, str], check: str) -> str:
    """Return the last cause behind a check, or the check itself."""
    while check in causes:
        check = causes[check]
    return check


def _pairs_by_rule(failed: Failed) -> Iterator[tuple[str, str]]:
    """Yield (cause, check) for each failed check that a rule explains."""
    for rule in _RULES:
        if rule.cause in failed and failed[rule.cause].severity == "fault" and rule.applies(failed):
            for check, result in failed.items():
                group = check.partition(".")[0]
                if (
                    check != rule.cause
                    and (check in rule.consequences or group in rule.consequences)
                    and rule.shows(result)
                ):
                    yield rule.cause, check


def _pairs_by_error(failed: Failed) -> Iterator[tuple[str, str]]:
    """Yield (cause, check) for each failed check whose error another check names better."""
    checks_by_error: dict[str, list[str]] = {}
    for check, result in failed.items():
        if error := _error(result):
            checks_by_error.setdefault(error, []).append(check)
    for error, checks in checks_by_error.items():
        named = [
            check
            for check in (
                *(_SLOW_CAUSES if error == _DEADLINE else ()),
                *(_RAISED_CAUSES if error.startswith(_RAISED) else _FORM_CAUSES),
                *checks,
            )
            if check in checks and failed[check].severity == "fault"
        ]
        yield from ((named[0], check) for check in checks if named and check != named[0])


_DEADLINE = "deadline"
_RAISED = "raised "


def _error(result: CheckResult) -> str:
    """Return what identifies the error that kept an answer from being judged, or ""."""
    if "deadline" in result.message or result.check == "cost.time":
        return _DEADLINE
    found = re.search(
        r"could not be judged \((.*)\)(?: at|;|, and)|(?:failed:|environment raised) (.*)",
        result.message,
    )
    if found is None:
        return ""
    error = found[1] or found[2]
    raised = re.match(r"(\w+): ", error)
    line = re.findall(r"line \d+", error)
    if raised:
        return f"{_RAISED}{raised[1]} {line[-1] if line else ''}"
    return re.sub(r"[\d.]+", "N", error)
