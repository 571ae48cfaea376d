"""Writes the package of a new environment from templates: small, complete, and fit to be trained on as it stands."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Literal

from grpo_core import __version__
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import UserError
from grpo_core.runs.atomic import whole_folder

Kind = Literal["text", "code", "judge", "dialogue", "dataset"]
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TEMPLATES = resources.files("grpo_core.kit") / "templates"
_COMMON: Mapping[str, str] = MappingProxyType(
    {
        ".github/workflows/test.yml": "test.yml.tmpl",
        ".gitignore": "gitignore.tmpl",
        "README.md": "README.md.tmpl",
        "pyproject.toml": "pyproject.toml.tmpl",
        "$package/__init__.py": "__init__.py.tmpl",
    }
)
_OPTIONAL = ("spec_extra", "prepare", "run_options")
"""What a kind.toml may leave out."""
_OF_ITS_KIND: Mapping[str, str] = MappingProxyType(
    {"$package/env.py": "env.py.tmpl", "tests/test_env.py": "test_env.py.tmpl"}
)


@dataclass(frozen=True, slots=True)
class Project:
    """folder: where it is; commands: what its author does next, in this order."""

    folder: Path
    commands: tuple[str, ...]


def write_project(name: str, *, kind: Kind, folder: Path | None = None) -> Project:
    """The project of the environment `name` in `folder` (by default grpo-env-NAME), which must not be there yet.

    Everything that can be wrong is found before anything is written, and the folder appears with all its files at once.
    """
    check_name(name)
    target = folder or Path(f"grpo-env-{name}")
    if os.path.lexists(target):
        raise UserError(
            f"{target} exists already; choose another name, or another folder with --out"
        )
    files, values = project_files(name, kind=kind), _values(name, kind)
    try:
        with whole_folder(target) as partial:
            for path, text in files.items():
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                (partial / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{target} cannot be written: {error.strerror or error}; choose another folder with --out"
        ) from None
    more = values["run_options"]
    check, run = f"grpo env check {name}{more}", f"grpo run --env {name} --steps 2{more}"
    return Project(
        target, (f"cd {shlex.quote(str(target))}", "pip install -e '.[test]'", "pytest", check, run)
    )


def check_name(name: str) -> None:
    """Raises UserError for a name that cannot be that of a new environment."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot name an environment; write lowercase letters and digits with dashes between, such as word-sums"
        )
    if keyword.iskeyword(name):
        raise UserError(f"{name!r} is a keyword of Python; choose another name")
    plugin = PluginHost(disabled="").plugins.get(name)
    if plugin is not None:
        raise UserError(
            f"the name {name!r} is taken by {plugin.distribution} {plugin.version}; choose another one"
        )
    if importlib.util.find_spec(_package(name)) is not None:
        raise UserError(f"a package {_package(name)!r} is installed already; choose another name")


def project_files(name: str, *, kind: Kind) -> dict[str, str]:
    """The text of every file by its path in the project."""
    values = _values(name, kind)
    sources = {path: _TEMPLATES / "project" / source for path, source in _COMMON.items()}
    sources |= {path: _TEMPLATES / kind / source for path, source in _OF_ITS_KIND.items()}
    files = {
        Template(path).substitute(values): _filled(source, values)
        for path, source in sources.items()
    }
    files |= {
        f"{_package(name)}/{source.name}": source.read_text(encoding="utf-8")
        for source in _data(kind)
    }
    return dict(sorted({**files, f"{_package(name)}/py.typed": ""}.items()))


def _values(name: str, kind: Kind) -> dict[str, str]:
    """What stands in the templates, by its name there."""
    about: dict[str, str] = tomllib.loads(
        (_TEMPLATES / kind / "kind.toml").read_text(encoding="utf-8")
    )
    camel = "".join(word.capitalize() for word in name.split("-"))
    values = {
        "name": name,
        "distribution": f"grpo-env-{name}",
        "package": _package(name),
        "camel": camel,
        "class_name": f"{camel}Env",  # a bare name might be one that the module imports
        "version": __version__,
        **dict.fromkeys(_OPTIONAL, ""),
        "check": f"      - run: grpo env check {name}\n",
        **about,
    }
    return {**values, "card": _filled(_TEMPLATES / kind / "card.md.tmpl", values).rstrip()}


def _data(kind: Kind) -> Iterator[Traversable]:
    folder = _TEMPLATES / kind / "data"
    return folder.iterdir() if folder.is_dir() else iter(())


def _filled(source: Traversable, values: Mapping[str, str]) -> str:
    return Template(source.read_text(encoding="utf-8")).substitute(values)


def _package(name: str) -> str:
    return f"grpo_env_{name.replace('-', '_')}"
