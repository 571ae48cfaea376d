"""A component by name: what a plugin offers, imported only when it is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from grpo_core.errors import MissingExtraError, PluginError


@dataclass(frozen=True, slots=True)
class Spec:
    """name: "plugin" or "plugin/variant"; target: "package.module:Attribute"; extra: the extra of the distribution that it needs."""

    name: str
    target: str
    summary: str | None = ""
    extra: str | None = None

    def load(self) -> Any:
        """Import the target. A missing package becomes a message that names the extra, a missing attribute one that names the target."""
        module_name, _, attribute = self.target.partition(":")
        if not module_name or not attribute:
            raise PluginError(f"{self.name!r} has the target {self.target!r}; write it as 'package.module:Attribute'")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            if self.extra:
                raise MissingExtraError(f"{self.name!r}", self.extra, package=error.name or "") from error
            raise PluginError(f"{self.name!r} cannot be loaded: {error}; install the missing package") from error
        except AttributeError as error:
            raise PluginError(f"{self.name!r} cannot be loaded: {error}; its target is {self.target!r}") from error
