"""Create an environment from its name and settings, and validate the settings."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import TypeAdapter, ValidationError

from grpo_core.calls.isolation import reason
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.environment import Environment, Need, Services
from grpo_core.protocol.errors import ConfigError, GrpoError, PluginError, did_you_mean
from grpo_core.protocol.spec import Spec, names_file


def load_environment(
    host: PluginHost,
    name: str,
    overrides: Mapping[str, object] | None = None,
    *,
    lend: Callable[[type[Environment[Any]], Any], Services] | None = None,
) -> Environment[Any]:
    """Return a new environment.

    Args:
        host: the installed plugins.
        name: name of the environment, or FILE.py:CLASS.
        overrides: settings that replace the defaults of its Config.
        lend: returns the services that the environment's class needs with its settings; None: it
            gets none.

    Raises:
        ConfigError: a setting is not known or not valid.
        PluginError: the environment cannot be loaded or created.
    """
    env_class = environment_class(host, name)
    with creation_errors(f"environment {name!r}"):
        return _create(env_class, name, overrides, lend)


@contextmanager
def creation_errors(component: str) -> Iterator[None]:
    """Turn any exception of a plugin's class into a PluginError of one line that names it."""
    try:
        yield
    except GrpoError:
        raise
    except Exception as error:
        raise PluginError(f"{component} cannot be created: {reason(error)}") from error


def environment_class(host: PluginHost, name: str) -> type[Environment[Any]]:
    """Return the environment class called `name`.

    Raises:
        PluginError: it cannot be loaded, or is not an environment class.
    """
    return _check_class(host.load("environment", name), name)


def build_environment(
    spec: Spec,
    overrides: Mapping[str, object] | None = None,
    *,
    lend: Callable[[type[Environment[Any]], Any], Services] | None = None,
) -> Environment[Any]:
    """Return a new environment from its Spec, without a plugin host.

    A worker process and a place of verification use this: they are sent the Spec.

    Args:
        spec: its Spec.
        overrides: settings that replace the defaults of its Config.
        lend: as for `load_environment`.
    """
    return _create(_check_class(spec.load(), spec.name), spec.name, overrides, lend)


def _create(
    env_class: type[Environment[Any]],
    name: str,
    overrides: Mapping[str, object] | None,
    lend: Callable[[type[Environment[Any]], Any], Services] | None,
) -> Environment[Any]:
    """Return a new environment of a class.

    Raises:
        ConfigError: a setting is not known or not valid.
        PluginError: the class takes no settings, or declares something of a wrong type.
    """
    settings = settings_of(env_class, name, overrides or {}, prefix="env")
    try:
        inspect.signature(env_class).bind(settings, None)
    except TypeError:
        raise PluginError(
            f"{_place_of(env_class)} has an __init__ that does not take (config, services); "
            "remove it, or write `def __init__(self, config=None, services=None)` and begin it "
            "with `super().__init__(config, services)`"
        ) from None
    environment = env_class(settings, lend(env_class, settings) if lend else None)
    _check_methods(environment)
    _check_declarations(environment)
    return environment


def _check_class(component: Any, name: str) -> type[Environment[Any]]:
    """Return `component` if it is an environment class; raise PluginError if it is not."""
    if not isinstance(component, type) or not issubclass(component, Environment):
        found = "another class" if isinstance(component, type) else f"{component!r:.80}"
        raise PluginError(
            f"environment {name!r} is {found}, not a subclass of grpo_core.Environment; "
            f"{'name such a class' if names_file(name) else 'its Spec must name one'}"
        )
    if missing := sorted(component.__abstractmethods__):
        form = f"def {missing[0]}{inspect.signature(getattr(component, missing[0]))}"
        raise PluginError(
            f"{_place_of(component)} has no {' and no '.join(missing)}; write "
            f"`{form.replace(chr(39), '')}`"
        )
    return component


def _check_methods(environment: Environment[Any]) -> None:
    """Raise PluginError for a method that cannot be called as those of Environment are."""
    for name, method in vars(Environment).items():
        own = getattr(environment, name, None)
        if not inspect.isfunction(method) or not inspect.ismethod(own) or own.__func__ is method:
            continue
        parameters = list(inspect.signature(method).parameters.values())[1:]
        required = [part for part in parameters if part.default is part.empty]
        named = {part.name: None for part in required if part.kind is part.KEYWORD_ONLY}
        try:
            inspect.signature(own).bind(*[None] * (len(required) - len(named)), **named)
        except TypeError:
            form = ", ".join(["self", *(part.name for part in required)])
            raise PluginError(
                f"{_place_of(own.__func__)} cannot be called as grpo does; write "
                f"`def {name}({form})`"
            ) from None


def _check_declarations(environment: Environment[Any]) -> None:
    """Raise PluginError for a declaration of a type with which nothing can be computed."""
    parts: object = environment.parts
    if not isinstance(parts, Mapping) or not all(
        isinstance(name, str) and isinstance(weight, int | float) for name, weight in parts.items()
    ):
        raise PluginError(
            f"{_place_of(type(environment))} declares parts = {parts!r:.80}; write a dict of "
            'names and weights, such as {"right": 1.0}'
        )
    needs: object = environment.needs
    known = typing.get_args(Need)
    if isinstance(needs, str) or not isinstance(needs, Collection):
        raise PluginError(
            f"{_place_of(type(environment))} declares needs = {needs!r:.80}; write a set of names, "
            f"such as frozenset({{{known[0]!r}}})"
        )
    if unknown := sorted(set(map(str, needs)) - set(known)):
        raise PluginError(
            f"{_place_of(type(environment))} needs {unknown[0]!r}, which is no service"
            f"{did_you_mean(unknown[0], known).removesuffix('.')}; they are {', '.join(known)}"
        )


def _place_of(component: Any) -> str:
    """Return the name of a class or function with its file and line, if these are known."""
    try:
        file, (_, line) = inspect.getsourcefile(component), inspect.getsourcelines(component)
    except (OSError, TypeError):
        return str(component.__qualname__)
    return f"{component.__qualname__} ({file}, line {line})"


def settings_of(
    component_class: Any, name: str, overrides: Mapping[str, object], *, prefix: str
) -> Any:
    """Return the validated Config of a component.

    Args:
        component_class: class of an environment, sandbox or judge.
        name: its name, for error messages.
        overrides: settings that replace the defaults of its Config.
        prefix: path of these settings in a recipe and after --set; error messages name a setting
            as `prefix.key`.

    Raises:
        ConfigError: a setting is not known or not valid.
        PluginError: the class has no Config that is a dataclass.
    """
    config_class: Any = getattr(component_class, "Config", None)
    if not dataclasses.is_dataclass(config_class):
        raise PluginError(
            f"the Config of {name!r} is {config_class!r}; write it as a frozen dataclass"
        )
    _refuse_unknown_keys(config_class, overrides, name=name, prefix=f"{prefix}.")
    try:
        return TypeAdapter(config_class).validate_python(_with_lists(config_class, overrides))
    except ValidationError as error:
        raise ConfigError(
            "; ".join(_explain(details, name, prefix) for details in error.errors())
        ) from None


def _refuse_unknown_keys(
    config_class: Any, overrides: Mapping[str, object], *, name: str, prefix: str
) -> None:
    """Raise ConfigError for a key that the Config does not have, at any depth.

    pydantic ignores unknown keys of standard dataclasses, and the user would not notice that a
    setting has no effect.
    """
    known_keys = [prefix + field.name for field in dataclasses.fields(config_class)]
    hints = typing.get_type_hints(config_class)
    for key, value in overrides.items():
        if prefix + key not in known_keys:
            suggestion = did_you_mean(prefix + key, known_keys)
            listing = f"; it has {', '.join(known_keys) or 'none'}."
            hint = listing if suggestion == "." else suggestion
            raise ConfigError(f"{prefix}{key} is not a setting of {name!r}{hint}")
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            _refuse_unknown_keys(hints[key], value, name=name, prefix=f"{prefix}{key}.")


def _with_lists(config_class: Any, overrides: Mapping[str, object]) -> dict[str, object]:
    """Return the overrides with a list where the Config takes a list and one value is given.

    After --set a single item needs no brackets, and several texts are separated by commas, as in
    the other settings of a run.
    """
    hints = typing.get_type_hints(config_class)
    values: dict[str, object] = {}
    for key, value in overrides.items():
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            value = _with_lists(hints[key], value)
        elif isinstance(value, str | int | float) and _takes_only_lists(hints[key]):
            value = (
                [part.strip() for part in value.split(",") if part.strip()]
                if isinstance(value, str)
                else [value]
            )
        values[key] = value
    return values


def _takes_only_lists(hint: Any) -> bool:
    """Return whether a type is that of a list, or of a list or None."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _takes_only_lists(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return all(map(_takes_only_lists, members))
    container = origin or hint
    return (
        isinstance(container, type)
        and issubclass(container, Collection)
        and not issubclass(container, str | bytes | Mapping)
    )


def _explain(details: Any, name: str, prefix: str) -> str:
    """Return the message for one of the errors that pydantic found."""
    key = ".".join([prefix, *(str(part) for part in details["loc"])])
    message = details["msg"].removeprefix("Value error, ")
    if not details["loc"] or details["type"] == "missing":
        # A check over several settings, or a setting without a default: no single value is wrong.
        return f"{key} of {name!r}: {message}"
    return f"{key} of {name!r}: {message[0].lower()}{message[1:]}; found {details['input']!r}"
