"""A component by name: what a plugin offers, imported only when it is used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_core.protocol.errors import MissingExtraError, PluginError


@dataclass(frozen=True, slots=True)
class Spec:
    """name: "plugin" or "plugin/variant"; target: "package.module:Attribute", or "/path/of/a/file.py:Attribute" for what is not packaged;
    extra: the extra of the distribution that it needs."""

    name: str
    target: str
    summary: str | None = ""
    extra: str | None = None

    def load(self) -> Any:
        """Import the target. A missing package becomes a message that names the extra, a missing attribute one that names the target."""
        module_name, _, attribute = self.target.rpartition(":")
        if not module_name or not attribute:
            raise PluginError(
                f"{self.name!r} has the target {self.target!r}; write it as 'package.module:Attribute'"
            )
        try:
            return getattr(
                _file(Path(module_name))
                if module_name.endswith(".py")
                else importlib.import_module(module_name),
                attribute,
            )
        except ModuleNotFoundError as error:
            if self.extra:
                raise MissingExtraError(
                    f"{self.name!r}", self.extra, package=error.name or ""
                ) from error
            raise PluginError(
                f"{self.name!r} cannot be loaded: {error}; install the missing package"
            ) from error
        except AttributeError as error:
            raise PluginError(
                f"{self.name!r} cannot be loaded: {error}; its target is {self.target!r}"
            ) from error


def names_file(name: str) -> bool:
    """Whether `name` means a file (path/to/file.py:Class, or one that lacks its class) and not something installed."""
    return ".py:" in name or name.endswith(".py")


def _file(path: Path) -> ModuleType:
    """A file as a module. Its neighbours can be imported as if it had been run, unless something installed has their name."""
    if not path.is_file():
        raise PluginError(
            f"{str(path)!r} is no file; name one that exists, as in path/to/file.py:Class"
        )
    name = f"grpo_file_{path.resolve()}".replace(
        ".", "_"
    )  # no dot, or Python would look for a parent package
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None  # it ends in .py
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    if str(path.parent.resolve()) not in sys.path:
        sys.path.append(str(path.parent.resolve()))
    sys.modules[name] = module  # dataclasses look themselves up there
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
