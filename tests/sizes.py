"""Counts the size of a checkout's core: python tests/sizes.py [CHECKOUT ...] [--json].

For each checkout: files, lines and code lines (each statement is one, without docstrings) of
each room, the largest files and functions, functions with more than 8 parameters outside the
command line, the attributes of a trainer that code outside its class uses, imports inside
functions, and the entry points.

With two checkouts, before and after, it prints one table that compares them: for each room of the
core its lines, code lines, arrows (pairs of a file of the room and a file that it imports) and
floors (rooms on the longest path of imports from it, itself included), and its longest file and
function; then the lines of the other folders.
"""

import argparse
import ast
import graphlib
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
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
    depth = 2 if parts[0] in ("engine", "train") and len(parts) > 2 else 1
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


@dataclass
class Area:
    """Holds the figures of a room of the core, or of a folder beside it."""

    lines: int = 0
    code: int = 0
    arrows: int = 0
    floors: int = 0
    longest_file: int = 0
    longest_function: int = 0

    def add(self, source: str, tree: ast.AST) -> None:
        """Count a file."""
        lines = len(source.splitlines())
        lengths = [(f.end_lineno or 0) - f.lineno + 1 for f in functions(tree)]
        self.lines, self.code = self.lines + lines, self.code + code_lines(source)
        self.longest_file = max(self.longest_file, lines)
        self.longest_function = max(self.longest_function, *lengths, 0)


OTHER_FOLDERS = ("plugins", "environments", "sandbox", "tests", "examples")


def areas(checkout: Path) -> dict[str, Area]:
    """Return the figures of each room, of the core as a whole, and of the folders beside it."""
    core = checkout / "grpo_core"
    rooms: dict[str, Area] = {}
    total = Area()
    imported: dict[str, set[str]] = {}
    for path in sorted(core.rglob("*.py")):
        if "templates" not in path.parts:
            source = path.read_text(encoding="utf-8")
            tree, name = ast.parse(source), room(path, core)
            rooms.setdefault(name, Area()).add(source, tree)
            total.add(source, tree)
            targets = {_file_of(module, checkout) for module in _imports(tree)} - {None, path}
            rooms[name].arrows += len(targets)
            # The front page of the package imports what it shows late, and is below everything.
            if path != core / "__init__.py":
                place = _place(path, core)
                imported.setdefault(place, set()).update(_place(t, core) for t in targets if t)
    for place, floor in _floors(imported).items():
        name = place.removesuffix(".py")
        name = name if name in rooms else name.rpartition("/")[0] or "."
        rooms[name].floors = max(rooms[name].floors, floor)
    total.arrows = sum(area.arrows for area in rooms.values())
    total.floors = max(area.floors for area in rooms.values())
    others = {f"{name}/": Area() for name in OTHER_FOLDERS}
    for name, area in others.items():
        for path in sorted((checkout / name).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            area.add(source, ast.parse(source))
    return {**{name: rooms[name] for name in sorted(rooms)}, "grpo_core": total, **others}


def _imports(tree: ast.AST) -> set[str]:
    """Return all that a file imports, as "module" or "module.name"."""
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        for name in [
            f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        ]
    }


def _file_of(name: str, checkout: Path) -> Path | None:
    """Return the file of the core that a dotted name is, or is a name of; None for others."""
    if name.partition(".")[0] != "grpo_core":
        return None
    for module in (name, name.rpartition(".")[0]):
        path = checkout.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return file
    return None


def _place(path: Path, core: Path) -> str:
    """Return a file's room; a file directly in `grpo_core`, its `engine` or its `train` is a room itself."""
    name = room(path, core)
    return str(path.relative_to(core)) if name in (".", "engine", "train") else name


def _floors(imported: dict[str, set[str]]) -> dict[str, int]:
    """Return for each room the length of the longest path of imports from it, itself included.

    They are all 0 if rooms import each other in a circle, which has no longest path.
    """
    graph = {name: others - {name} for name, others in imported.items()}
    floors: dict[str, int] = {}
    try:
        for name in graphlib.TopologicalSorter(graph).static_order():
            floors[name] = 1 + max((floors[other] for other in graph.get(name, ())), default=0)
    except graphlib.CycleError:
        return dict.fromkeys(imported, 0)
    return floors


def print_comparison(before: dict[str, Area], after: dict[str, Area]) -> None:
    """Print a table in Markdown: each figure before and after, or once where it is the same."""
    titles = [field.name.replace("_", " ") for field in fields(Area)]
    print(f"| room | {' | '.join(titles)} |")
    print(f"| --- |{' ---: |' * len(titles)}")
    for name in [*after, *(name for name in before if name not in after)]:
        cells = []
        for field in fields(Area):
            figures = [getattr(areas.get(name), field.name, 0) for areas in (before, after)]
            cells.append(" → ".join(f"{number:,}" for number in dict.fromkeys(figures)))
        print(f"| {name} | {' | '.join(cells)} |")


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
    if len(options.checkouts) == 2 and not options.json:
        print_comparison(*map(areas, options.checkouts))
        sys.exit()
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
