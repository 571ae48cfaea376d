"""Tell from metadata, without an import, whether the packages of an extra are installed."""

from __future__ import annotations

import importlib.metadata
import re

_REQUIREMENT = re.compile(
    r"""(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^\]]*)\])?[^;]*;\s*\(?(?P<marker>.*?)\)?\s*$"""
)
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def missing_packages(distribution: str, extra: str | None) -> tuple[str, ...]:
    """Return the packages of an extra that are not installed, in the order of the metadata.

    Requirements that hold only on other systems or other versions of Python are ignored, as are
    versions: whether a package works shows when it is imported.

    Args:
        distribution: the distribution that declares the extra.
        extra: the name of the extra; None has no packages.
    """
    if extra is None:
        return ()
    return tuple(dict.fromkeys(_missing(distribution, _normalised(extra))))


def _missing(distribution: str, extra: str) -> tuple[str, ...]:
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    missing: list[str] = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        named = _EXTRA.fullmatch(match["marker"]) if match else None
        if match is None or named is None or _normalised(named[1]) != extra:
            continue  # always needed, of another extra, or under a further condition
        if not _is_installed(match["name"]):
            missing.append(match["name"])
            continue
        for inner in filter(None, re.split(r"[\s,]+", match["extras"] or "")):
            if (_normalised(match["name"]), _normalised(inner)) != (distribution, extra):
                missing += _missing(_normalised(match["name"]), _normalised(inner))
    return tuple(missing)


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _normalised(name: str) -> str:
    """Return a name as metadata compare names: in lower case, with dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()
