"""Programs of any language and projects, in real sessions: right ones pass, cheats do not."""

import asyncio
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from grpo_core import Limits
from grpo_core.programs import (
    CaseResult,
    TextCase,
    check_cases,
    check_cases_in,
    constant_output,
    same_lines,
)
from grpo_sandbox.pool import JailPool

from .test_backends import backend as backend
from .test_backends import marked as marked
from .test_sessions import using

SUMS = [(1, 2), (30, -4), (5, 5)]


def sum_cases(command: Any) -> list[TextCase]:
    return [TextCase(command, stdin=f"{a}\n{b}\n", expected=f"{a + b}\n") for a, b in SUMS]


def checked(*arguments: Any, **options: Any) -> Sequence[CaseResult]:
    return asyncio.run(check_cases(*arguments, **options))


def passed(*arguments: Any, **options: Any) -> list[bool]:
    return [result.passed for result in checked(*arguments, **options)]


PROGRAMS = {
    "sh": ("read a\nread b\necho $((a + b))", "sh main"),
    "python": ("print(int(input()) + int(input()))", ("python3", "main")),
    "perl": ("print(<STDIN> + <STDIN>, qq(\\n));", "perl main"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("language", PROGRAMS)
def test_a_right_program_of_any_language_passes(pool: JailPool, language: str) -> None:
    source, command = PROGRAMS[language]
    assert passed(pool, {"main": source}, sum_cases(command)) == [True] * 3


def test_a_program_is_built_once_or_fails_as_the_compiler_says(
    pool: JailPool, backend: str
) -> None:
    if backend != "bubblewrap" or shutil.which("gcc") is None:
        pytest.skip("the image has no compiler")
    source = (
        '#include <stdio.h>\nint main() { int a, b; scanf("%d%d", &a, &b); printf("%d", a + b); }'
    )
    limits = Limits(cpu_seconds=10, wall_seconds=20, memory_mb=1024)
    build = "gcc -o main main.c"
    cases = sum_cases("./main")
    assert passed(pool, {"main.c": source}, cases, build=build, limits=limits) == [True] * 3
    wrong = checked(pool, {"main.c": "int main( {"}, cases, build=build, limits=limits)
    assert [(case.passed, case.built) for case in wrong] == [(False, False)] * 3
    assert "error" in wrong[0].result.stderr


CHEATS = {
    "only the first line": "echo 1",
    "more lines": "echo 1; echo 2; echo 3",
    "a wrong exit code": "echo 1; echo 2; exit 3",
    "another stream": "echo 1 >&2; echo 2 >&2",
    "its end by a signal": "echo 1; echo 2; kill -SEGV $$",
    "leading spaces": "echo ' 1'; echo 2",
}


@pytest.mark.parametrize("source", CHEATS.values(), ids=CHEATS)
def test_what_differs_from_the_expected_lines_does_not_pass(pool: JailPool, source: str) -> None:
    case = TextCase("sh main", expected="1\n2\n")
    assert passed(pool, {"main": source}, [case]) == [False]
    assert passed(pool, {"main": "printf '1 \\n2'"}, [case]) == [True]


def test_a_project_is_judged_by_hidden_files_that_replace_the_policys(pool: JailPool) -> None:
    hidden = {"tests/run.py": "from shapes import area\nprint(area(3, 4))"}
    case = TextCase("PYTHONPATH=src python3 tests/run.py", expected="12", files=hidden)
    right = {"src/shapes.py": "def area(a, b): return a * b"}
    assert passed(pool, right, [case]) == [True]
    forged = {"src/shapes.py": "", "tests/run.py": "print(12)"}
    assert passed(pool, forged, [case]) == [False]
    leaves = {"src/shapes.py": "import os; os._exit(0)"}
    assert passed(pool, leaves, [case]) == [False]


async def test_a_session_of_an_episode_is_judged_after_its_last_turn(pool: JailPool) -> None:
    hidden = {"check/input": "hidden"}
    case = TextCase("sh main < check/input", expected="hidden", files=hidden)

    async with using(pool) as session:
        await session.exec("mkdir -p check; ln -s /etc/passwd check/input; echo 'cat' > main")
        (result,) = await check_cases_in(session, [case])
    assert result.passed


def test_a_test_command_without_expected_output_passes_by_its_exit_code(pool: JailPool) -> None:
    cases = [TextCase("test -e here", expected=None), TextCase("test -e gone", expected=None)]
    assert passed(pool, {"here": ""}, cases) == [True, False]


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../../b"])
def test_a_path_that_leads_out_is_the_policys_fault_and_no_error(pool: JailPool, path: str) -> None:
    (result,) = checked(pool, {path: "x"}, [TextCase("true", expected=None)])
    assert (result.passed, result.built, "path" in result.result.error) == (False, False, True)


def test_a_program_that_never_ends_is_not_run_on_every_case(pool: JailPool) -> None:
    limits = Limits(cpu_seconds=0.3)
    results = checked(pool, {"main": "while :; do :; done"}, sum_cases("sh main"), limits=limits)
    assert [result.passed for result in results] == [False] * 3
    assert results[2] is results[1]


def test_lines_count_and_trailing_space_does_not() -> None:
    assert same_lines("a\nb\n\n", "a \nb")
    for text in ("a", "a\nb\nc", "A\nb", "\na\nb", "a\x0bb"):
        assert not same_lines(text, "a\nb")
    outputs = [TextCase("x", expected=output) for output in ("1", "1\n", "2", None)]
    assert constant_output(outputs) == 0.75  # the share of the best constant output
