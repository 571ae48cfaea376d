"""Call a function as a tool: what fills its parameters, what it may return, what its faults are.

`grpo_core.protocol.tools` and `grpo_core.protocol.tool_episode` answer the calls of a turn by it.
"""

from __future__ import annotations

import copy
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message, Task, ToolCall

MAX_RESULT = 4000
"""The most characters of a result that the policy sees."""
MARK = "_is_tool_of_an_episode"
"""The attribute of a method that is marked as a tool."""


@dataclass(frozen=True, slots=True)
class DescribedTool:
    """Hold a tool that brings its own description, such as a tool of a server.

    Its arguments are not validated here but where it is served.
    """

    name: str
    """The name by which the policy calls it."""
    description: str
    """What it does, for the policy."""
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments, an object."""
    call: Callable[[Mapping[str, Any]], object]
    """Makes a call with these arguments; it may be async."""

    @property
    def __name__(self) -> str:
        """Return the name, as a function has it."""
        return self.name

    def __call__(self, **arguments: Any) -> object:
        """Make a call."""
        return self.call(arguments)


def filled(tool: Callable[..., object], task: Task[Any] | None) -> Callable[..., object]:
    """Return the tool as a function of what the policy gives, with its other parameters filled in.

    Raises:
        ConfigError: it needs a task, and there is none; or it belongs to an episode.
    """
    names = filled_parameters(tool)
    if names and (task is None or "self" in names):
        raise ConfigError(
            f"the tool {tool.__name__!r} needs "
            + (
                "its episode; answer its calls in ToolEpisode.reply"
                if "self" in names
                else "the task; pass answers(..., task=task)"
            )
        )
    return with_filled(tool, dict.fromkeys(names, task))


def refusal(tools: Mapping[str, Callable[..., object]], call: ToolCall) -> str:
    """Return why a call cannot be made, as the policy is told; "" if it can."""
    if call.error:
        return f"error: {call.error}"
    if call.name not in tools:
        return f"error: there is no tool {call.name!r}; there are {', '.join(sorted(tools))}"
    return ""


def invoke(tool: Callable[..., object], arguments: Mapping[str, Any]) -> object:
    """Call a tool with arguments that are validated before, and return what it returns.

    Raises:
        ValidationError: pydantic's, if the arguments do not fit.
    """
    from pydantic_core import ArgsKwargs

    own = copy.deepcopy(dict(arguments))  # a tool may change what it gets, and not the message
    if isinstance(tool, DescribedTool):
        return tool.call(own)
    return type_adapter(tool).validate_python(ArgsKwargs((), own))


def result_text(value: object) -> str:
    """Return a result as the policy gets it: a text as it is, everything else as JSON.

    Raises:
        TypeError, ValueError: it cannot be written as JSON.
    """
    return value if isinstance(value, str) else json.dumps(value, default=str)


def fault_text(name: str, error: Exception) -> str:
    """Return what the policy is told of an exception in a call of the tool `name`."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}"
            for fault in error.errors()
        )
        return f"error: {name} was called wrongly: {faults}"
    return f"error: {type(error).__name__}: {error}"


def as_message(text: str) -> Message:
    """Return the message with a result: cut, and without half surrogate pairs."""
    return Message("tool", text[:MAX_RESULT].encode("utf-8", "replace").decode())


def type_adapter(tool: Any) -> Any:
    """Return pydantic's adapter of a function.

    It knows the schema of the arguments, and it validates them before it calls the function.
    """
    from pydantic import TypeAdapter

    # Of a method it would look for names in annotations elsewhere than in the method's module.
    described: Any = _as_function(tool, {}) if inspect.ismethod(tool) else tool
    return TypeAdapter(described)


def filled_parameters(tool: Callable[..., object]) -> list[str]:
    """Return the parameters that the policy does not give: the task, and a method's object."""
    if isinstance(tool, DescribedTool):
        return []
    unbound = hasattr(tool, MARK) and not inspect.ismethod(tool)
    names = list(inspect.signature(tool).parameters)[:1] if unbound else []
    return names + [
        name
        for name, hint in _hints(tool).items()
        if name != "return" and (hint is Task or typing.get_origin(hint) is Task)
    ]


def _hints(tool: Any) -> Mapping[str, Any]:
    """Return the types of a function's parameters; as they are written if they cannot be read."""
    try:
        return typing.get_type_hints(tool, include_extras=True)
    except Exception:  # noqa: BLE001 - names of a function's inside, or annotations of any kind
        return getattr(tool, "__annotations__", {})


def with_filled(tool: Callable[..., object], values: Mapping[str, object]) -> Callable[..., object]:
    """Return a tool as a function of its other parameters."""
    return _as_function(tool, values) if values else tool


def _as_function(
    tool: Callable[..., object], values: Mapping[str, object]
) -> Callable[..., object]:
    """Return a tool as a function of its other parameters, whose types are no texts any more."""
    given: Any = tool

    def call(*arguments: Any, **named: Any) -> object:
        return given(*arguments, **named, **values)

    signature = inspect.signature(tool)
    described: Any = call
    described.__name__, described.__module__ = given.__name__, given.__module__
    described.__annotations__ = {
        name: hint for name, hint in _hints(tool).items() if name not in values
    }
    described.__signature__ = signature.replace(
        parameters=[p for name, p in signature.parameters.items() if name not in values]
    )
    return call
