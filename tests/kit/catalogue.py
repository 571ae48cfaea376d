"""The register of planted faults and of honest designs by which the kit's checks are measured.

A theme's module (`faults_*.py`, `honest_*.py`) declares environments and registers them with
`@fault` or `@honest`. Modules whose name ends in `_fresh10` are the fresh part: its authors did not
look at the checks. The others are the development part, by which the checks are written.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from grpo_core import Environment

FOLDER = Path(__file__).parent
Part = Literal["dev", "fresh10"]
PARTS: tuple[Part, ...] = get_args(Part)
Build = Callable[[type[Environment[Any]]], Environment[Any]]
"""Makes an environment of its class, where it needs services or a config."""
AnyEnvironment = TypeVar("AnyEnvironment", bound=type[Environment[Any]])


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment of the catalogue."""

    environment: type[Environment[Any]]
    part: Part
    kind: str = ""
    """The kind of fault, in words; "" for an honest design."""
    checks: tuple[str, ...] = ()
    """The names of the checks of which any names the right cause of the fault."""
    why: str = ""
    """Why an honest design looks odd, and is right."""
    build: Build | None = None

    @property
    def name(self) -> str:
        """Return the name of the class, which is unique in the catalogue."""
        return self.environment.__name__

    @property
    def theme(self) -> str:
        """Return what the module is about, such as "spelling"."""
        module = self.environment.__module__.removesuffix("_fresh10")
        return module.partition("_")[2].replace("_", " ")

    def make(self) -> Environment[Any]:
        """Return a new environment of the class."""
        return self.build(self.environment) if self.build is not None else self.environment()


_faults: dict[str, Entry] = {}
_honest: dict[str, Entry] = {}


def fault(
    kind: str, *checks: str, build: Build | None = None
) -> Callable[[AnyEnvironment], AnyEnvironment]:
    """Register an environment with one planted fault.

    Args:
        kind: the kind of the fault, in words; variants of the same fault share it.
        checks: the names of the checks of which any names the right cause.
        build: makes the environment, where it needs services or a config.
    """
    if not checks:
        raise ValueError(f"the fault {kind!r} names no check that would find it")

    def register(environment: AnyEnvironment) -> AnyEnvironment:
        _add(_faults, Entry(environment, _part_of(environment), kind, checks, build=build))
        return environment

    return register


def honest(why: str, *, build: Build | None = None) -> Callable[[AnyEnvironment], AnyEnvironment]:
    """Register an environment that has no fault.

    Args:
        why: why its design looks odd, and is right.
        build: makes the environment, where it needs services or a config.
    """

    def register(environment: AnyEnvironment) -> AnyEnvironment:
        _add(_honest, Entry(environment, _part_of(environment), why=why, build=build))
        return environment

    return register


def variant(
    module: str, name: str, base: type[Environment[Any]], **members: Any
) -> type[Environment[Any]]:
    """Return a class of a module, by its name, that differs from its base in some members."""
    made = type(name, (base,), {"__module__": module, **members})
    setattr(sys.modules[module], name, made)
    return made


def planted(
    module: str, base: type[Environment[Any]], member: str, *, build: Build | None = None
) -> Callable[..., Callable[..., None]]:
    """Return what registers environments with a fault in one member of a sound one.

    It takes the kind and the checks as `fault` does, and then the member of each environment by
    the environment's name: `planted(__name__, Sound, "task")("a kind", "a.check")(Faulty=...)`.
    """

    def of_a_kind(kind: str, *checks: str) -> Callable[..., None]:
        def register(**members: Any) -> None:
            for name, value in members.items():
                made = variant(module, name, base, **{member: value})
                fault(kind, *checks, build=build)(made)

        return register

    return of_a_kind


def faults(part: Part) -> list[Entry]:
    """Return the planted faults of one part, in the order of their modules."""
    _load()
    return [entry for entry in _faults.values() if entry.part == part]


def honest_designs(part: Part) -> list[Entry]:
    """Return the honest designs of one part, in the order of their modules."""
    _load()
    return [entry for entry in _honest.values() if entry.part == part]


def entries(*parts: Part) -> list[Entry]:
    """Return the faults and then the honest designs of some parts; of all parts by default."""
    _load()
    everything = [*_faults.values(), *_honest.values()]
    return [entry for entry in everything if entry.part in (parts or PARTS)]


def _part_of(environment: type[Environment[Any]]) -> Part:
    return "fresh10" if environment.__module__.endswith("_fresh10") else "dev"


def _add(register: dict[str, Entry], entry: Entry) -> None:
    if entry.name in _faults or entry.name in _honest:
        raise ValueError(f"the catalogue has two environments named {entry.name}")
    register[entry.name] = entry


@cache
def _load() -> None:
    """Import every module of the catalogue, so that it registers its environments."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    for path in sorted([*FOLDER.glob("faults_*.py"), *FOLDER.glob("honest_*.py")]):
        importlib.import_module(path.stem)
