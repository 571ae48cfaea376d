"""Read the tests of rows with programs, in the shapes of MBPP, HumanEval and their like."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_env_dataset.answers import TESTS, BadAnswerError
from grpo_env_dataset.rows import Row

_SOLUTIONS = ("canonical_solution", "code", "solution", "reference_solution")
_SETUPS = ("test_setup_code", "test_imports", "setup")


class BadTestsError(BadAnswerError):
    """A row has no tests that could be run."""

    advice = "correct these rows, or set env.tests (and env.entry_point) to other fields"


@dataclass(frozen=True, slots=True)
class CodeTask:
    """Holds what a row says of a program and its tests."""

    entry: str
    """The function that the tests call."""
    before: str
    """Code that stands before the policy's, such as the imports of a stub in the prompt."""
    tests: tuple[str, ...]
    """Each is code of which a failed assertion, or an exception, says that the program is wrong."""
    setup: str
    """Code that stands before the tests."""
    solution: str
    """A right program; "" if the row has none."""


def code_task(row: Row, *, tests: str, entry: str) -> CodeTask:
    """Return what a row says of a program and its tests.

    Args:
        row: the row.
        tests: the field with the tests; "": the first of the usual ones.
        entry: the field with the function's name, which is read from the tests if there is none.

    Raises:
        BadTestsError: there are no tests, or they call no function.
    """
    names = (tests,) if tests else TESTS
    name = next((name for name in names if row.get(name)), None)
    if name is None:
        raise BadTestsError(
            f"there are no tests ({', '.join(names)})", f"the row has {', '.join(row)}"
        )
    setup = "\n".join(_lines(row.get(field)) for field in _SETUPS if row.get(field))
    function = row.get(entry) if isinstance(row.get(entry), str) else None
    sources = _sources(row[name], function, name)
    for source in [setup, *sources]:
        _parsed(source, name)
    if function and not any(function in source for source in sources):
        called = _called(sources)
        raise BadTestsError(
            f"the field {entry!r} says {function!r}, and the tests do not call it",
            f"they call {called!r}" if called else f"{sources[0]!r:.60}",
        )
    for source in sources:
        if not _can_fail(ast.parse(f"{setup}\n{source}")):
            raise BadTestsError(
                f"a test in the field {name!r} asserts nothing, so every program would pass it; "
                "write assert",
                f"{source!r:.60}",
            )
    function = function or _called(sources)
    if not function:
        raise BadTestsError(
            f"the field {name!r} calls no function of its own", f"{sources[0]!r:.60}"
        )
    prompt = row.get("prompt")
    before = _before(prompt, function) if isinstance(prompt, str) else ""
    solution = next((row[field] for field in _SOLUTIONS if isinstance(row.get(field), str)), "")
    if solution and isinstance(prompt, str) and not _defines(solution, function):
        solution = prompt + solution
    solution = solution if _defines(solution, function) else ""
    return CodeTask(function, before, tuple(sources), setup, solution)


def _lines(value: Any) -> str:
    """Return code that is a text or a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _sources(value: Any, entry: str | None, field: str) -> list[str]:
    """Return the tests in a field as code, each by itself where they can be told apart.

    Raises:
        BadTestsError: they are in a shape that is not known.
    """
    if isinstance(value, str):
        # As in HumanEval: a function check(candidate), which is called with the program's.
        if entry and "def check(" in value:
            return [f"{value}\ncheck({entry})"]
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return list(value)
    if isinstance(value, list) and entry and all(isinstance(item, Mapping) for item in value):
        return [_from_pair(item, entry, field) for item in value]
    raise BadTestsError(
        f"the field {field!r} holds no tests: write code, a list of assertions, or, with a field "
        'entry_point, a list of {"input": [...], "output": ...}'
    )


def _from_pair(item: Mapping[str, Any], entry: str, field: str) -> str:
    """Return the assertion that a call with these arguments returns this value."""
    given = item.get("input", item.get("inputs", item.get("args")))
    expected = next((item[key] for key in ("output", "expected", "outputs") if key in item), ...)
    if given is None or expected is ...:
        raise BadTestsError(f"a test in the field {field!r} has no input and output")
    arguments = given if isinstance(given, list) else [given]
    return f"assert {entry}({', '.join(map(repr, arguments))}) == {expected!r}"


def _parsed(source: str, field: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTestsError(f"the field {field!r} is not Python: {error}") from None


def _can_fail(tree: ast.Module) -> bool:
    """Return whether code asserts or raises, or calls what asserts, as numpy.testing does."""
    return any(
        isinstance(node, ast.Assert | ast.Raise)
        or (isinstance(node, ast.Attribute) and node.attr.startswith(("assert", "fail")))
        or (isinstance(node, ast.Name) and node.id.startswith("assert"))
        for node in ast.walk(tree)
    )


def _called(sources: Sequence[str]) -> str | None:
    """Return the function that all tests call and none defines: the one that is asked for."""
    common: set[str] | None = None
    for source in sources:
        tree = ast.parse(source)
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        called = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        names = called - own - _BUILTINS
        common = names if common is None else common & names
    return min(common) if common and len(common) == 1 else None


_BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


def _defines(source: str, function: str) -> bool:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def _before(prompt: str, function: str) -> str:
    """Return what a stub in the prompt has before the function: imports and helpers."""
    head, found, _ = prompt.partition(f"def {function}(")
    if not found:
        return ""
    try:
        ast.parse(head)
    except (SyntaxError, ValueError):
        return ""
    return head
