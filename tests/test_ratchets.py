"""The house's limits, which only a line in ratchets.toml raises: sizes, names that exist once, docstrings."""

import ast
import gc
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIMITS: Mapping[str, Any] = tomllib.loads(
    (ROOT / "tests" / "ratchets.toml").read_text(encoding="utf-8")
)
SHIPPED = ("grpo_core", "plugins", "environments", "sandbox")
FOLDERS = (*SHIPPED, "tests", "examples")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Named:
    """A class or function with the names of what it stands in."""

    node: Definition
    outer: tuple[Definition, ...]

    @property
    def name(self) -> str:
        return ".".join(node.name for node in (*self.outer, self.node))

    @property
    def length(self) -> int:
        return (self.node.end_lineno or 0) - self.node.lineno + 1

    @property
    def is_public(self) -> bool:
        """No part of the name begins with an underscore, and it does not stand in a function."""
        hidden = any(node.name.startswith("_") for node in (*self.outer, self.node))
        return not hidden and all(isinstance(node, ast.ClassDef) for node in self.outer)


@dataclass(frozen=True)
class Source:
    """A Python file of a package that is shipped."""

    path: str
    lines: int
    documented: bool
    definitions: tuple[Named, ...] = field(repr=False)


def definitions(statements: list[ast.stmt], outer: tuple[Definition, ...] = ()) -> Iterator[Named]:
    """Yield all classes and functions; looks at statements alone, which is quicker than ast.walk."""
    for statement in statements:
        inner = outer
        if isinstance(statement, Definition):
            yield Named(statement, outer)
            inner = (*outer, statement)
        for name in ("body", "orelse", "finalbody"):
            yield from definitions(getattr(statement, name, []), inner)
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from definitions(part.body, inner)


def python_files(folder: str) -> list[Path]:
    """Templates of new projects are texts, and no files of this one."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return [path for path in files if "templates" not in path.parts]


@cache
def sources() -> tuple[Source, ...]:
    """All files that are shipped; each is parsed once for all tests."""
    found = []
    gc.disable()  # it would look again and again at trees that grow; half of the time
    for path in (path for folder in SHIPPED for path in python_files(folder)):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        found.append(
            Source(
                str(path.relative_to(ROOT)),
                len(text.splitlines()),
                ast.get_docstring(tree) is not None,
                tuple(definitions(tree.body)),
            )
        )
    gc.enable()
    return tuple(found)


def sizes_of_rooms() -> Counter[str]:
    """Lines of each room of the core, of each package of `plugins`, and of each other folder."""
    lines: Counter[str] = Counter()
    for source in sources():
        folder, *parts = source.path.split("/")
        if folder == "grpo_core":
            depth = 2 if parts[0] in ("engine", "train") else 1
            parts = parts[: min(depth, len(parts) - 1)]
            folder = "/".join([folder, *parts])
        elif folder == "plugins":
            folder = f"plugins/{parts[0]}"
        lines[folder] += source.lines
    for folder in set(FOLDERS) - set(SHIPPED):
        for path in python_files(folder):
            lines[folder] += len(path.read_text(encoding="utf-8").splitlines())
    return lines


def exceptions(kind: str) -> dict[str, int]:
    """The exceptions of one kind with their limits; they are grouped by their reason."""
    return {name: limit for group in LIMITS[kind].values() for name, limit in group.items()}


def report(complaints: list[str]) -> None:
    if complaints:
        pytest.fail("\n".join(["", *complaints]), pytrace=False)


def test_no_room_grows_beyond_its_limit() -> None:
    limits: dict[str, int] = LIMITS["rooms"]
    sizes = sizes_of_rooms()
    report(
        [
            f"{room} has {lines} lines, and its limit is {limits[room]}: make it smaller, or raise "
            "the limit in tests/ratchets.toml and say why in the commit"
            for room, lines in sorted(sizes.items())
            if lines > limits.get(room, lines)
        ]
        + [
            f"{room} has {sizes[room]} lines, and its limit is {limits[room]}: lower the limit in "
            f"tests/ratchets.toml to about {int(1.02 * sizes[room]) // 10 * 10}"
            for room in sorted(limits.keys() & sizes.keys())
            if limits[room] > 1.1 * sizes[room] + 100
        ]
        + [
            f"{room} has {sizes[room]} lines and no limit: give it one in tests/ratchets.toml"
            for room in sorted(sizes.keys() - limits.keys())
        ]
        + [
            f"{room} does not exist: remove its limit from tests/ratchets.toml"
            for room in sorted(limits.keys() - sizes.keys())
        ]
    )


def complaints_about_lengths(kind: str, lengths: Mapping[str, int]) -> list[str]:
    """Compare lengths with the limit of all and with the exceptions."""
    most: int = LIMITS["most_lines"][kind]
    excepted = exceptions(kind)
    return [
        f"{name} has {length} lines, and its limit is {excepted.get(name, most)}: divide it, or "
        f"list it with its reason under [{kind}] in tests/ratchets.toml"
        for name, length in sorted(lengths.items())
        if length > excepted.get(name, most)
    ] + [
        f"{name} is listed under [{kind}] in tests/ratchets.toml, and "
        + (f"has only {lengths[name]} lines" if name in lengths else "does not exist")
        + ": remove it from there"
        for name in sorted(excepted)
        if lengths.get(name, 0) <= most
    ]


def test_files_are_short() -> None:
    report(complaints_about_lengths("files", {source.path: source.lines for source in sources()}))


def test_functions_are_short() -> None:
    lengths = {
        f"{source.path}:{named.name}": named.length
        for source in sources()
        for named in source.definitions
        if not isinstance(named.node, ast.ClassDef)
    }
    report(complaints_about_lengths("functions", lengths))


def classes() -> Iterator[tuple[Source, Named, ast.ClassDef]]:
    for source in sources():
        for named in source.definitions:
            if isinstance(named.node, ast.ClassDef):
                yield source, named, named.node


def test_the_name_of_a_public_class_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for source, named, node in classes():
        if named.is_public:
            places.setdefault(node.name, []).append(f"{source.path}:{node.lineno}")
    excepted = {name for group in LIMITS["classes"].values() for name in group}
    report(
        [
            f"{name} is the name of several classes ({', '.join(found)}): name one after what it "
            "holds; a name that authors import keeps its own"
            for name, found in sorted(places.items())
            if len(found) > 1 and name not in excepted
        ]
        + [
            f"{name} is the name of one class at most: remove it from [classes] in "
            "tests/ratchets.toml"
            for name in sorted(excepted)
            if len(places.get(name, ())) < 2
        ]
    )


def documented_members() -> dict[str, set[str]]:
    """The members of each class that have a docstring, their own or that of a class above."""
    own: dict[str, set[str]] = {}
    above: dict[str, set[str]] = {}
    for _source, _, node in classes():
        own.setdefault(node.name, set()).update(
            member.name
            for member in node.body
            if isinstance(member, Definition) and ast.get_docstring(member)
        )
        bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
        above.setdefault(node.name, set()).update(bases - {node.name})
    found: dict[str, set[str]] = {}

    def members(name: str) -> set[str]:
        if name not in found:
            found[name] = set()
            found[name] |= own.get(name, set()).union(*map(members, above.get(name, ())))
        return found[name]

    for name in own:
        members(name)
    return found


def needs_docstring(named: Named, documented: Mapping[str, set[str]], hooks: set[str]) -> bool:
    """Say whether a public name is nowhere described."""
    node = named.node
    if ast.get_docstring(node) or any("overload" in ast.unparse(d) for d in node.decorator_list):
        return False
    if isinstance(node, ast.ClassDef):
        return not any("__doc__" in ast.unparse(part) for part in node.body[:1])
    if node.name in hooks:  # described where it is declared
        return False
    if not named.outer:
        return True
    inherited = documented.get(named.outer[-1].name, set())
    # A member of a protocol without code is described by its name, type and class.
    is_declaration = isinstance(node.body[0], ast.Expr) and len(node.body) == 1
    return node.name not in inherited and not is_declaration


def test_public_names_have_docstrings() -> None:
    documented = documented_members()
    hooks = {
        named.name
        for source in sources()
        if source.path == "grpo_core/protocol/hookspecs.py"
        for named in source.definitions
    }
    assert "grpo_environments" in hooks
    excepted = {name for group in LIMITS.get("docstrings", {}).values() for name in group}
    undocumented = [
        (source, named)
        for source in sources()
        for named in source.definitions
        if named.is_public and needs_docstring(named, documented, hooks)
    ]
    report(
        [
            f"{source.path} has no docstring: say in its first line what the file holds or does"
            for source in sources()
            if not source.documented
        ]
        + [
            f"{source.path}:{named.node.lineno}: {named.name} is public and has no docstring: give "
            "it one, or a name that begins with an underscore"
            for source, named in undocumented
            if named.name not in excepted
        ]
        + [
            f"{name} has a docstring: remove it from [docstrings] in tests/ratchets.toml"
            for name in sorted(excepted - {named.name for _, named in undocumented})
        ]
    )
