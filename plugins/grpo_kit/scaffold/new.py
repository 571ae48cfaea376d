"""Write the package of a new environment from templates.

The package is small and complete, and can be trained on as it is.
"""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Literal

from grpo_core import UserError, __version__
from grpo_core.api.plugins import OFFER_HOOKS, PluginHost
from grpo_core.api.runs import whole_folder

Kind = Literal["text", "code", "judge", "dialogue", "episode", "terminal", "agent", "dataset"]
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TEMPLATES = resources.files("grpo_kit.scaffold") / "templates"
_COMMON_FILES: Mapping[str, str] = {
    ".github/workflows/test.yml": "test.yml.tmpl",
    ".gitignore": "gitignore.tmpl",
    "README.md": "README.md.tmpl",
    "pyproject.toml": "pyproject.toml.tmpl",
    "$package/__init__.py": "__init__.py.tmpl",
}
"""Files of every project by path: their template in templates/project."""
_OPTIONAL_VALUES = ("spec_extra", "prepare", "run_options")
"""Template values that a kind.toml may omit."""
_KIND_FILES: Mapping[str, str] = {
    "$package/env.py": "env.py.tmpl",
    "tests/test_env.py": "test_env.py.tmpl",
}
"""Files of each kind of project by path: their template in templates/KIND."""


@dataclass(frozen=True, slots=True)
class Project:
    """A project that was written."""

    folder: Path
    commands: tuple[str, ...]
    """The commands that its author runs next, in this order."""


def write_project(name: str, *, kind: Kind, folder: Path | None = None) -> Project:
    """Write the project of the environment `name`.

    Errors are detected before anything is written, and the folder appears with all its files at
    once.

    Args:
        name: The environment's name.
        kind: The template.
        folder: The new folder, which must not exist; by default grpo-env-NAME.

    Raises:
        UserError: The name is not usable, or the folder exists or cannot be written.
    """
    check_name(name, package=_package_name(name), what="an environment")
    target = folder or Path(f"grpo-env-{name}")
    write_files(target, project_files(name, kind=kind))
    options = _template_values(name, kind)["run_options"]
    return Project(
        target,
        (
            f"cd {shlex.quote(str(target))}",
            "pip install -e '.[test]'",
            "pytest",
            f"grpo env check {name}{options}",
            f"grpo run --env {name} --steps 2{options}",
        ),
    )


def write_files(target: Path, files: Mapping[str, str]) -> None:
    """Write the files of a project, all at once, into a folder that must not exist.

    Args:
        target: The new folder.
        files: The text of each file by its path in the project.

    Raises:
        UserError: The folder exists or cannot be written.
    """
    if os.path.lexists(target):
        raise UserError(
            f"{target} exists already; choose another name, or another folder with --out"
        )
    try:
        with whole_folder(target) as partial:
            for path, text in files.items():
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                (partial / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{target} cannot be written: {error.strerror or error}; choose another folder with "
            "--out"
        ) from None


def check_name(name: str, *, package: str, what: str) -> None:
    """Raise UserError if `name` cannot be the name of a new component.

    Args:
        name: The name of the component and its plugin.
        package: The import name of the plugin's package.
        what: The component with its article, for the message.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot name {what}; write lowercase letters and digits with dashes "
            "between, such as word-sums"
        )
    if keyword.iskeyword(name):
        raise UserError(f"{name!r} is a keyword of Python; choose another name")
    host = PluginHost()
    names = {offer.spec.name: offer.plugin for kind in OFFER_HOOKS for offer in host.specs(kind)}
    if plugin := host.plugins.get(name) or names.get(name):
        raise UserError(
            f"the name {name!r} is taken by {plugin.distribution} {plugin.version}; choose another "
            "one"
        )
    if importlib.util.find_spec(package) is not None:
        raise UserError(f"a package {package!r} is installed already; choose another name")


def project_files(name: str, *, kind: Kind) -> dict[str, str]:
    """Return the text of every file by its path in the project."""
    values = _template_values(name, kind)
    sources = {path: TEMPLATES / "project" / source for path, source in _COMMON_FILES.items()} | {
        path: TEMPLATES / kind / source for path, source in _KIND_FILES.items()
    }
    files = {
        Template(path).substitute(values): fill_template(source, values)
        for path, source in sources.items()
    }
    data = TEMPLATES / kind / "data"  # its files are copied unchanged
    for source in data.iterdir() if data.is_dir() else ():
        files[f"{_package_name(name)}/{source.name}"] = source.read_text(encoding="utf-8")
    return dict(sorted({**files, f"{_package_name(name)}/py.typed": ""}.items()))


def _template_values(name: str, kind: Kind) -> dict[str, str]:
    """Return the values that the templates use, by name."""
    camel = "".join(word.capitalize() for word in name.split("-"))
    values = {
        "name": name,
        "distribution": f"grpo-env-{name}",
        "package": _package_name(name),
        "camel": camel,
        "class_name": f"{camel}Env",  # a bare name might be one that the module imports
        "version": __version__,
        **dict.fromkeys(_OPTIONAL_VALUES, ""),
        "check": f"      - run: grpo env check {name}\n",
        **tomllib.loads((TEMPLATES / kind / "kind.toml").read_text(encoding="utf-8")),
    }
    return {**values, "card": fill_template(TEMPLATES / kind / "card.md.tmpl", values).rstrip()}


def fill_template(source: Traversable, values: Mapping[str, str]) -> str:
    """Return the text of a template with its values."""
    return Template(source.read_text(encoding="utf-8")).substitute(values)


def _package_name(name: str) -> str:
    """Return the import name of an environment's package."""
    return f"grpo_env_{name.replace('-', '_')}"
