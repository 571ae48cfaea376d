"""Let a policy call Python functions as tools.

The chat template gets a description of each tool, calls are made with validated arguments, and
results come back as messages. `grpo_core.protocol.tool_calls` reads the calls.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.tool_calls import MAX_CALLS, calls_of
from grpo_core.protocol.types import Message, Task, ToolCall

__all__ = [
    "MAX_CALLS",
    "MAX_RESULT",
    "DescribedTool",
    "answers",
    "calls_of",
    "schemas",
    "tool",
    "tools_of",
]

MAX_RESULT = 4000
"""The most characters of a result that the policy sees."""
_MARK = "_is_tool_of_an_episode"
Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class DescribedTool:
    """Is a tool that brings its own description, such as one of a server.

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


def tool(method: Function) -> Function:
    """Mark a method of a `ToolEpisode` as a tool; it may be async."""
    setattr(method, _MARK, True)
    return method


def tools_of(episode: object) -> list[Callable[..., object]]:
    """Return the methods that are marked by `tool`, in the order of their definition.

    Args:
        episode: A class, for `Environment.tools`, which describes them; or one of its objects, with
            which they can be called.
    """
    cls = episode if isinstance(episode, type) else type(episode)
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    return [getattr(episode, name) for name in names if hasattr(getattr(cls, name, None), _MARK)]


def schemas(tools: Sequence[Callable[..., object]]) -> list[dict[str, Any]]:
    """Return the description of each function in the form that chat templates expect.

    It consists of the function's name, the first paragraph of its docstring and a JSON schema of
    its parameters. `Annotated[int, Field(description="...", ge=0)]` describes and limits a
    parameter. A parameter of the type `Task` is left out, since the environment fills it in.

    Raises:
        ConfigError: a function is async, and no tool of an episode.
    """
    descriptions = []
    for tool in tools:
        if isinstance(tool, DescribedTool):
            name, text, parameters = tool.name, tool.description, dict(tool.parameters)
        else:
            if inspect.iscoroutinefunction(tool) and not hasattr(tool, _MARK):
                raise ConfigError(
                    f"the tool {tool.__name__!r} is an async function; "
                    "write it as a plain one, it runs in a worker"
                )
            shown = _with_filled(tool, dict.fromkeys(_filled_parameters(tool)))
            parameters = _type_adapter(shown).json_schema()
            for parameter in parameters.get("properties", {}).values():
                parameter.pop("title", None)
            name, text = tool.__name__, inspect.cleandoc(tool.__doc__ or "").split("\n\n")[0]
        function = {
            "name": name,
            "description": " ".join(text.split()),
            "parameters": parameters,
        }
        descriptions.append({"type": "function", "function": function})
    return descriptions


def answers(
    tools: Sequence[Callable[..., object]],
    message: Message | str,
    *,
    task: Task[Any] | None = None,
) -> list[Message] | None:
    """Make the tool calls in `message` and return one message per call; None if there is no call.

    Every fault of a call, including an exception of the function, is reported to the policy in the
    message: the policy has to learn how to call tools.

    Args:
        tools: The functions.
        message: The policy's turn; or a text, whose calls are written as
            `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
        task: Fills in the parameters of the type `Task`.

    Raises:
        ConfigError: a tool needs the task, and there is none.
    """
    calls = calls_of(message)
    if not calls:
        return None
    by_name = {tool.__name__: filled(tool, task) for tool in tools}
    return [as_message(_call_result(by_name, call)) for call in calls]


def filled(tool: Callable[..., object], task: Task[Any] | None) -> Callable[..., object]:
    """Return the tool as a function of what the policy gives, with its other parameters filled in.

    Raises:
        ConfigError: it needs a task, and there is none; or it belongs to an episode.
    """
    names = _filled_parameters(tool)
    if names and (task is None or "self" in names):
        raise ConfigError(
            f"the tool {tool.__name__!r} needs "
            + (
                "its episode; answer its calls in ToolEpisode.reply"
                if "self" in names
                else "the task; pass answers(..., task=task)"
            )
        )
    return _with_filled(tool, dict.fromkeys(names, task))


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

    if isinstance(tool, DescribedTool):
        return tool.call(arguments)
    return _type_adapter(tool).validate_python(ArgsKwargs((), dict(arguments)))


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


def _type_adapter(tool: Any) -> Any:
    """Return pydantic's adapter of a function.

    It knows the schema of the arguments, and it validates them before it calls the function.
    """
    from pydantic import TypeAdapter

    return TypeAdapter(tool)


def _filled_parameters(tool: Callable[..., object]) -> list[str]:
    """Return the parameters that the policy does not give: the task, and a method's object."""
    if isinstance(tool, DescribedTool):
        return []
    unbound = hasattr(tool, _MARK) and not inspect.ismethod(tool)
    names = [name for name in list(inspect.signature(tool).parameters)[:1] if unbound]
    return names + [
        name
        for name, hint in _hints(tool).items()
        if name != "return" and (hint is Task or typing.get_origin(hint) is Task)
    ]


def _hints(tool: Any) -> Mapping[str, Any]:
    """Return the types of a function's parameters; as they are written if they cannot be read."""
    try:
        return typing.get_type_hints(tool, include_extras=True)
    except (NameError, TypeError, AttributeError):  # names of a function's inside, or no function
        return getattr(tool, "__annotations__", {})


def _with_filled(
    tool: Callable[..., object], values: Mapping[str, object]
) -> Callable[..., object]:
    """Return a tool as a function of its other parameters."""
    if not values:
        return tool
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


def _call_result(tools: Mapping[str, Callable[..., object]], call: ToolCall) -> str:
    """Make one call and return the text that the policy gets: the result, or "error: ..."."""
    if refused := refusal(tools, call):
        return refused
    try:
        return result_text(invoke(tools[call.name], call.arguments))
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the policy is told
        return fault_text(call.name, error)
