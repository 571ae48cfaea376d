"""Verify programs of any language by what they print, in a session of a sandbox.

It is the form for whole programs and for projects of several files. The hidden inputs and files
enter the session after the policy has spoken its last word; what a program should print never does,
and the comparison is made outside. An exit code proves nothing by itself, as a program can leave
whenever it likes.

    results = await check_cases(
        self.services.sandbox(),
        {"main.c": source},
        [TextCase("./main", stdin="2 3\\n", expected="5\\n")],
        build="cc -O2 -o main main.c",
    )
    reward = passed_reward([result.passed for result in results], constant_output(cases), "none")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grpo_core.protocol.sandbox import CommandResult, Limits, Sandbox, Session

PATIENCE = 2
"""After this number of cases that ran out of time, a program gets no more time."""
LATE = ("timeout_cpu", "timeout_wall")


@dataclass(frozen=True, slots=True)
class TextCase:
    """One run of a program, and what it must print."""

    command: str | tuple[str, ...]
    """A line for the shell, or a program and its arguments."""
    stdin: str = ""
    """What it reads from standard input."""
    expected: str | None = ""
    """What it must print to standard output, line by line; it stays outside the sandbox.

    None: whatever it prints is right. Then only the exit code counts, which code of the policy that
    runs in the same process can choose: a test command proves less than printed values do.
    """
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Hidden files, such as tests, that are written before the run in place of the policy's."""
    exit_code: int | None = 0
    """The exit code with which it must end; None allows any."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Tells whether a case passed."""

    passed: bool
    """Whether the program ended as it should and printed what it should."""
    result: CommandResult
    """How its run ended, or the build if that failed."""
    built: bool = True
    """Whether the program could be built; if not, it was not run."""


async def check_cases(
    sandbox: Sandbox,
    files: Mapping[str, str | bytes],
    cases: Sequence[TextCase],
    *,
    build: str | tuple[str, ...] | None = None,
    image: str | None = None,
    limits: Limits | None = None,
) -> Sequence[CaseResult]:
    """Return the result of each case for a program or project, in a new session.

    Args:
        sandbox: the sandbox, as `self.services.sandbox()`.
        files: the files of the policy, by path. All cases fail if one of the paths is none inside
            the folder, or if they do not fit.
        cases: the hidden cases, which run one after the other.
        build: a command that runs once before them and must end with exit code 0.
        image: the image whose programs are there; see `Sandbox.session`.
        limits: limits of each command, and of all together; None: `total_seconds` is enough for
            every command to use up its wall time.

    Raises:
        ValueError: a path of a hidden file is none inside the folder.
        SandboxError: the sandbox failed; let it through, so that the verdict is an error.
    """
    limits = limits or Limits(total_seconds=(len(cases) + 1) * Limits().wall_seconds)
    try:
        session = await sandbox.session(files, image=image, limits=limits)
    except ValueError as error:
        refused = CommandResult("no_result", error=str(error))
        return [CaseResult(passed=False, result=refused, built=False)] * len(cases)
    try:
        if build is not None:
            made = await session.exec(build, of_policy=True)
            if (made.status, made.exit_code) != ("ok", 0):
                return [CaseResult(passed=False, result=made, built=False)] * len(cases)
        return await check_cases_in(session, cases)
    finally:
        await session.close()


async def check_cases_in(session: Session, cases: Sequence[TextCase]) -> Sequence[CaseResult]:
    """Return the result of each case in a session that is open, as after an episode's last turn.

    The session is the policy's: it may hold whatever the policy has left in it. What a case's run
    leaves there is found by the later ones. After two that ran out of time, the others count as the
    second one.
    """
    results: list[CaseResult] = []
    for case in cases:
        late = [earlier for earlier in results if earlier.result.status in LATE]
        if len(late) >= PATIENCE:
            results.append(late[-1])
            continue
        if case.files:
            await session.write(case.files)
        result = await session.exec(case.command, input=case.stdin, of_policy=True)
        results.append(CaseResult(_passes(case, result), result))
    return results


def same_lines(actual: str, expected: str) -> bool:
    """Return whether two texts have the same lines.

    Spaces at the ends of lines and empty lines at the end do not count; everything else does, and
    so does the number of lines.
    """
    return _lines(actual) == _lines(expected)


def constant_output(cases: Sequence[TextCase]) -> float:
    """Return the share of cases that a program passes which always prints the same."""
    counts = Counter(None if case.expected is None else _lines(case.expected) for case in cases)
    anything = counts.pop(None, 0)
    return (anything + max(counts.values(), default=0)) / len(cases)


def _passes(case: TextCase, result: CommandResult) -> bool:
    if result.status != "ok" or case.exit_code not in (None, result.exit_code):
        return False
    return case.expected is None or same_lines(result.stdout, case.expected)


def _lines(text: str) -> tuple[str, ...]:
    lines = [line.rstrip(" \t\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines)
