"""Makes an environment out of its name and settings: the border where the settings are validated."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from grpo_core.calls.isolation import reason
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, GrpoError, PluginError, did_you_mean
from grpo_core.protocol.spec import Spec


def load_environment(
    host: PluginHost,
    name: str,
    overrides: Mapping[str, object] | None = None,
    *,
    lend: Callable[[type[Environment[Any]]], Services] | None = None,
) -> Environment[Any]:
    """The environment called `name`, with `overrides` on top of the defaults of its Config. lend: gives its class what it needs."""
    found = environment_class(host, name)
    try:
        return _make(found, name, overrides or {}, lend)
    except GrpoError:
        raise
    except Exception as error:
        raise PluginError(f"environment {name!r} cannot be made: {reason(error)}") from error


def environment_class(host: PluginHost, name: str) -> type[Environment[Any]]:
    """The class that `name` means; raises PluginError for what is none."""
    return _checked(host.load("environment", name), name)


def build_environment(
    spec: Spec, overrides: Mapping[str, object] | None = None
) -> Environment[Any]:
    """The same without a host, as in a worker process, which is sent the Spec."""
    return _make(_checked(spec.load(), spec.name), spec.name, overrides or {}, None)


def _checked(found: Any, name: str) -> type[Environment[Any]]:
    if not isinstance(found, type) or not issubclass(found, Environment):
        raise PluginError(
            f"environment {name!r} is {found!r}; its Spec must name a subclass of grpo_core.Environment"
        )
    return found


def _make(
    found: type[Environment[Any]],
    name: str,
    overrides: Mapping[str, object],
    lend: Callable[[type[Environment[Any]]], Services] | None,
) -> Environment[Any]:
    settings = settings_of(found, name, overrides, prefix="env")
    return found(settings, lend(found) if lend else None)


def settings_of(
    component_class: Any, name: str, overrides: Mapping[str, object], *, prefix: str
) -> Any:
    """The frozen Config of a component. Errors speak of `prefix.key`, as one writes it in a recipe and after --set."""
    config_class: Any = getattr(component_class, "Config", None)
    if not dataclasses.is_dataclass(config_class):
        raise PluginError(
            f"the Config of {name!r} is {config_class!r}; write it as a frozen dataclass"
        )
    _refuse_unknown_keys(config_class, overrides, name=name, prefix=f"{prefix}.")
    try:
        return TypeAdapter(config_class).validate_python(dict(overrides))
    except ValidationError as error:
        raise ConfigError(
            "; ".join(_explain(problem, name, prefix) for problem in error.errors())
        ) from None


def _refuse_unknown_keys(
    config_class: Any, overrides: Mapping[str, object], *, name: str, prefix: str
) -> None:
    """pydantic ignores unknown keys of standard dataclasses, and a setting that is silently ignored is the worst kind."""
    known = [prefix + field.name for field in dataclasses.fields(config_class)]
    types = typing.get_type_hints(config_class)
    for key, value in overrides.items():
        if prefix + key not in known:
            near = did_you_mean(prefix + key, known)
            listing = f"; it has {', '.join(known) or 'none'}." if near == "." else near
            raise ConfigError(f"{prefix}{key} is not a setting of {name!r}{listing}")
        if dataclasses.is_dataclass(types[key]) and isinstance(value, Mapping):
            _refuse_unknown_keys(types[key], value, name=name, prefix=f"{prefix}{key}.")


def _explain(problem: Any, name: str, prefix: str) -> str:
    key = ".".join([prefix, *(str(part) for part in problem["loc"])])
    message = problem["msg"].removeprefix("Value error, ")
    if (
        not problem["loc"] or problem["type"] == "missing"
    ):  # a check over several settings, or one without a default
        return f"{key} of {name!r}: {message}"
    return f"{key} of {name!r}: {message[0].lower()}{message[1:]}; found {problem['input']!r}"
