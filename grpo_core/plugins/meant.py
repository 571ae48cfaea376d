"""Say what a name of an environment that is not known was probably meant to be."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Collection
from pathlib import Path

from grpo_core.protocol.hookspecs import PROJECT

_SEPARATED = re.compile(r"(?P<file>.+?)(?:[:.](?P<class>[A-Za-z_]\w*))?")


def hint_at_meant(name: str, known: Collection[str]) -> str:
    """Return a sentence about what was probably meant; "" if nothing is similar.

    Args:
        name: a name that is not known.
        known: the names of the installed plugins.
    """
    several = [part.strip() for part in name.split(",")]
    if len(several) > 1 and all(part in known for part in several):
        return f"Name each of several by an option of its own: --env {' --env '.join(several)}."
    return _meant_file(name) or _without_entry_point(name)


def defined_classes(file: Path) -> list[str]:
    """Return the names of the classes that a Python file defines, without importing it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def _meant_file(name: str) -> str:
    """Return a sentence with the form in which a file of Python has to be named."""
    match = _SEPARATED.fullmatch(name)
    assert match is not None or not name
    candidates = [(name, None), (match["file"], match["class"])] if match else []
    for stem, attribute in candidates:
        file = Path(f"{stem}.py")
        if file.is_file():
            classes = defined_classes(file)
            chosen = attribute if attribute in classes else next(iter(classes), "Class")
            return f"The file {str(file)!r} exists; did you mean '{file}:{chosen}'?"
    return ""


def _without_entry_point(name: str) -> str:
    """Return a sentence about a distribution of this name that offers nothing to grpo."""
    wanted = re.sub("[-_.]+", "-", name).lower()
    for distribution in importlib.metadata.distributions():
        owner = re.sub("[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        entries = [entry for entry in distribution.entry_points if entry.name == name]
        groups = {entry.group for entry in distribution.entry_points}
        is_meant = owner in (wanted, f"grpo-env-{wanted}", f"grpo-{wanted}") or any(
            "grpo" in entry.group for entry in entries
        )
        if is_meant and PROJECT not in groups:
            found = f"only in {', '.join(sorted(groups))}" if groups else "none at all"
            return (
                f"The distribution {owner!r} is installed, but it has no entry point in the group "
                f"{PROJECT!r} ({found}); correct its pyproject.toml to "
                f"[project.entry-points.{PROJECT}] and install it again."
            )
    return ""
