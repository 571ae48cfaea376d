"""Counts the size of a checkout's core: python tests/sizes.py [CHECKOUT ...] [--json].

For each checkout: files, lines and code lines (each statement is one, without docstrings) of
each room, the largest files and functions, functions with more than 8 parameters outside the
command line, the attributes of a trainer that code outside its class uses, imports inside
functions, and the entry points.
"""

from __future__ import annotations

import argparse
import ast
import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_PARAMETERS = 8


def code_lines(source: str) -> int:
    """Return the lines of code in a layout that does not depend on the formatter.

    Each statement is one line, however long; comments and docstrings are not counted.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                kept = [statement for statement in statements if not _is_text(statement)]
                setattr(node, field, kept or ([ast.Pass()] if statements else []))
    return sum(bool(line.strip()) for line in ast.unparse(tree).splitlines())


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters without self and cls."""
    arguments = function.args
    names = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    return len([name for name in names if name not in ("self", "cls")])


def room(path: Path, core: Path) -> str:
    parts = path.relative_to(core).parts
    depth = 2 if parts[0] == "train" and len(parts) > 2 else 1
    return "/".join(parts[:depth]) if len(parts) > 1 else "."


def measure(checkout: Path) -> dict[str, Any]:
    """Return the figures of a checkout."""
    core = checkout / "grpo_core"
    rooms: dict[str, list[int]] = {}
    files: list[tuple[int, str]] = []
    longest: list[tuple[int, str]] = []
    wide: list[tuple[int, str]] = []
    used: Counter[str] = Counter()
    inner_imports = 0
    for path in sorted(core.rglob("*.py")):
        if "templates" in path.parts:
            continue
        source = path.read_text(encoding="utf-8")
        tree, name = ast.parse(source), str(path.relative_to(core))
        counts = rooms.setdefault(room(path, core), [0, 0, 0])
        lines, code = len(source.splitlines()), code_lines(source)
        counts[0], counts[1], counts[2] = counts[0] + 1, counts[1] + lines, counts[2] + code
        files.append((code, name))
        for function in functions(tree):
            length = (function.end_lineno or 0) - function.lineno + 1
            longest.append((length, f"{name}:{function.name}"))
            if parameters(function) > MOST_PARAMETERS and not name.startswith("cli"):
                wide.append((parameters(function), f"{name}:{function.name}"))
            inner_imports += sum(
                isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function)
            )
        if name != "train/trainer.py":
            used.update(
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and _is_trainer(node.value)
            )
    entry_points = tomllib.loads((checkout / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]["grpo"]
    total = [sum(column) for column in zip(*rooms.values(), strict=True)]
    return {
        "rooms": {name: rooms[name] for name in sorted(rooms)} | {"total": total},
        "largest files (code lines)": sorted(files, reverse=True)[:8],
        "longest functions (lines)": sorted(longest, reverse=True)[:8],
        "functions over 60 lines": sum(length > 60 for length, _ in longest),
        f"functions with more than {MOST_PARAMETERS} parameters": sorted(wide, reverse=True),
        "attributes of the trainer used outside": len(used),
        "uses of attributes of the trainer outside": sum(used.values()),
        "imports inside functions": inner_imports,
        "entry points": len(entry_points),
    }


def _is_trainer(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "trainer") or (
        isinstance(node, ast.Attribute) and node.attr in ("_trainer", "trainer")
        and isinstance(node.value, ast.Name) and node.value.id == "self"
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {str(checkout): measure(checkout) for checkout in options.checkouts}
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        for checkout, figures in results.items():
            print(f"== {checkout}")
            print(f"{'room':24} {'files':>6} {'lines':>7} {'code':>7}")
            for name, counts in figures.pop("rooms").items():
                print(f"{name:24} {counts[0]:6} {counts[1]:7} {counts[2]:7}")
            for name, value in figures.items():
                print(f"{name}: {value}")
