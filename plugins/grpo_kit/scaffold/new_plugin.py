"""Write the package of a new plugin other than an environment: a judge, a sampler and so on."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, Literal

from grpo_core import __version__
from grpo_kit.scaffold.new import TEMPLATES, Project, check_name, fill_template, write_files

Kind = Literal["judge", "sandbox", "sampler", "executor", "algorithm", "tracker", "recipe"]
_FILES: Mapping[str, str] = {
    ".github/workflows/test.yml": "project/test.yml.tmpl",
    ".gitignore": "project/gitignore.tmpl",
    "README.md": "plugins/project/README.md.tmpl",
    "pyproject.toml": "plugins/project/pyproject.toml.tmpl",
    "$package/__init__.py": "plugins/project/__init__.py.tmpl",
    "$package/$code": "plugins/$kind/code.tmpl",
    "tests/test_$kind.py": "plugins/$kind/test.py.tmpl",
}
"""Files of every project by path: their template."""
_ARTICLES: Mapping[Kind, str] = {"algorithm": "an", "executor": "an"}


def write_plugin(kind: Kind, name: str, *, folder: Path | None = None) -> Project:
    """Write the project of a plugin that offers one component.

    Errors are detected before anything is written, and the folder appears with all its files at
    once.

    Args:
        kind: What the plugin offers.
        name: The name of the component.
        folder: The new folder, which must not exist; by default grpo-KIND-NAME.

    Raises:
        UserError: The name is not usable, or the folder exists or cannot be written.
    """
    check_name(name, package=_package_name(kind, name), what=f"{_ARTICLES.get(kind, 'a')} {kind}")
    target = folder or Path(f"grpo-{kind}-{name}")
    write_files(target, plugin_files(kind, name))
    commands = [
        Template(command).substitute(name=name) for command in _kind_values(kind)["commands"]
    ]
    return Project(
        target,
        (
            f"cd {shlex.quote(str(target))}",
            "pip install -e '.[test]'",
            "pytest",
            f"grpo plugins {name} --check",
            *commands,
        ),
    )


def plugin_files(kind: Kind, name: str) -> dict[str, str]:
    """Return the text of every file by its path in the project."""
    values = _template_values(kind, name)
    files = {
        Template(path).substitute(values): fill_template(
            TEMPLATES / Template(source).substitute(values), values
        )
        for path, source in _FILES.items()
    }
    data = TEMPLATES / "plugins" / kind / "tests"  # its files are copied unchanged
    for source in data.iterdir() if data.is_dir() else ():
        files[f"tests/{source.name.removesuffix('.tmpl')}"] = source.read_text(encoding="utf-8")
    return dict(sorted({**files, f"{_package_name(kind, name)}/py.typed": ""}.items()))


def _template_values(kind: Kind, name: str) -> dict[str, str]:
    """Return the values that the templates use, by name."""
    values = {
        "kind": kind,
        "name": name,
        "distribution": f"grpo-{kind}-{name}",
        "package": _package_name(kind, name),
        # a bare name might be one that the module imports
        "class_name": "".join(word.capitalize() for word in (*name.split("-"), kind)),
        "version": __version__,
        "prepare": "",
        "check": f"      - run: grpo plugins {name} --check\n",
    }
    texts = {key: text for key, text in _kind_values(kind).items() if isinstance(text, str)}
    values |= {key: Template(text).substitute(values) for key, text in texts.items()}
    return {
        **values,
        "card": fill_template(TEMPLATES / "plugins" / kind / "card.md.tmpl", values).rstrip(),
        "use": values["use"].strip(),
    }


def _kind_values(kind: Kind) -> dict[str, Any]:
    """Return what differs between the kinds."""
    text = (TEMPLATES / "plugins" / kind / "kind.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _package_name(kind: Kind, name: str) -> str:
    """Return the import name of a plugin's package."""
    return f"grpo_{kind}_{name.replace('-', '_')}"
