"""Compare installed versions with the ranges that a distribution declares, without an import.

The ranges come from metadata, so that they stand in one place, the project's pyproject.toml.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from grpo_core.protocol.errors import UserError

State = Literal["ok", "missing", "unknown", "newer", "outside"]


class VersionError(UserError):
    """An installed package has a version outside the range that is needed."""


@dataclass(frozen=True, slots=True)
class Package:
    """Hold a required package: the range that is declared and the version that is installed."""

    name: str
    range: str
    """The declared range, such as ">=5.10.1,<6"; "" if every version fits."""
    version: str | None
    """The installed version; None if there is none, or if its metadata names none."""
    state: State
    """"newer" is a later release of the last major version that the range permits, which was not
    tried; "unknown" has no version that can be compared, so its import shows whether it works."""

    @property
    def requirement(self) -> str:
        """Return the package and its range as pip takes them."""
        return f"{self.name}{self.range}"


def packages(distribution: str, extra: str | None = None) -> tuple[Package, ...]:
    """Return the packages that an extra needs, or, for None, those that are always needed.

    Requirements that hold only on other systems or other versions of Python are left out.

    Args:
        distribution: the distribution that declares them; one without metadata needs nothing.
        extra: the name of the extra.
    """
    listed = {item.name: item for item in _packages(distribution, extra or "", set())}
    return tuple(listed.values())


def declared_extras(distribution: str) -> tuple[str, ...]:
    """Return the names of the extras that a distribution declares."""
    try:
        declared = importlib.metadata.metadata(distribution).get_all("Provides-Extra")
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(declared or ())


def check_versions(what: str, *extras: str, distribution: str = "grpo-core") -> str | None:
    """Check the installed packages of some extras before they are imported.

    What is not installed is left to the import, which names the extra.

    Args:
        what: what needs them, for the message.
        extras: the extras; none for what is always needed.
        distribution: the distribution that declares them.

    Returns:
        A line about packages that are newer than what was tried, if there are any.

    Raises:
        VersionError: a package is too old, or of a later major version.
    """
    listed = {p.name: p for extra in extras or (None,) for p in packages(distribution, extra)}
    if outside := [package for package in listed.values() if package.state == "outside"]:
        raise VersionError(f"{what} needs {_described(outside)}: {install_command(outside)}")
    if newer := [package for package in listed.values() if package.state == "newer"]:
        return f"{what} was tried with {_described(newer)}; if it fails: {install_command(newer)}"
    return None


def install_command(wanted: list[Package]) -> str:
    """Return the command that installs versions in the ranges."""
    return "pip install " + " ".join(f"'{package.requirement}'" for package in wanted)


def _described(listed: list[Package]) -> str:
    return " and ".join(f"{p.requirement} ({p.version} is installed)" for p in listed)


def _packages(distribution: str, extra: str, seen: set[tuple[str, str]]) -> Iterator[Package]:
    """Yield the packages of an extra, and those of the extras that it names in turn."""
    key = (canonicalize_name(distribution), canonicalize_name(extra))
    if key in seen:
        return
    seen.add(key)
    for requirement in _requirements(distribution, extra):
        if canonicalize_name(requirement.name) != key[0]:
            yield _compared(requirement)
        for inner in sorted(requirement.extras):
            yield from _packages(requirement.name, inner, seen)


def _requirements(distribution: str, extra: str) -> Iterator[Requirement]:
    """Yield the requirements that hold here and that come with the extra; "" for no extra."""
    try:
        declared = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in declared:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip could not have installed it
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if (always and not extra) or (not always and extra and _holds(requirement, extra)):
            yield requirement


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate({"extra": extra})


def _compared(requirement: Requirement) -> Package:
    specifiers = sorted(map(str, requirement.specifier), key=lambda text: text.startswith("<"))
    version: str | None = None
    state: State = "missing"
    try:
        version = importlib.metadata.version(requirement.name)
        state = _state(version, list(requirement.specifier))
    except importlib.metadata.PackageNotFoundError:
        pass
    except (InvalidVersion, TypeError, KeyError):  # no version in the metadata, or another text
        state = "unknown"
    return Package(requirement.name, ",".join(specifiers), version, state)


def _state(version: str, specifiers: list[Specifier]) -> State:
    """Return how a version stands to a range.

    A pre-release counts as its release, as images of NVIDIA have 2.11.0a0+nv25 of torch.

    Raises:
        InvalidVersion: the version is not one by the rules of Python's packages.
    """
    release = Version(Version(version).base_version)
    violated = [specifier for specifier in specifiers if not specifier.contains(release)]
    if not violated:
        return "ok"
    if all(_is_minor_cap(specifier, release) for specifier in violated):
        return "newer"
    return "outside"


def _is_minor_cap(specifier: Specifier, release: Version) -> bool:
    """Return whether a bound such as <2.14 ends within the major version of the release."""
    if specifier.operator not in ("<", "<="):
        return False
    bound = Version(specifier.version)
    return bound.major == release.major and bound > Version(str(bound.major))
