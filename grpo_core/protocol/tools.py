"""Let a policy call Python functions as tools.

The chat template gets a description of each tool, calls are made with validated arguments, and
results come back as messages. `grpo_core.protocol.tool_calls` reads the calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.tool_calling import (
    MARK,
    MAX_RESULT,
    DescribedTool,
    as_message,
    fault_text,
    filled,
    filled_parameters,
    invoke,
    refusal,
    result_text,
    type_adapter,
    with_filled,
)
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

Function = TypeVar("Function", bound=Callable[..., object])


def tool(method: Function) -> Function:
    """Mark a method of a `ToolEpisode` as a tool; it may be async."""
    setattr(method, MARK, True)
    return method


def tools_of(episode: object) -> list[Callable[..., object]]:
    """Return the methods that are marked by `tool`, in the order of their definition.

    Args:
        episode: A class, for `Environment.tools`, which describes them; or one of its objects, with
            which they can be called.
    """
    cls = episode if isinstance(episode, type) else type(episode)
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    return [getattr(episode, name) for name in names if hasattr(getattr(cls, name, None), MARK)]


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
            if inspect.iscoroutinefunction(tool) and not hasattr(tool, MARK):
                raise ConfigError(
                    f"the tool {tool.__name__!r} is an async function; "
                    "write it as a plain one, it runs in a worker"
                )
            shown = with_filled(tool, dict.fromkeys(filled_parameters(tool)))
            parameters = type_adapter(shown).json_schema()
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


def _call_result(tools: Mapping[str, Callable[..., object]], call: ToolCall) -> str:
    """Make one call and return the text that the policy gets: the result, or "error: ..."."""
    if refused := refusal(tools, call):
        return refused
    try:
        return result_text(invoke(tools[call.name], call.arguments))
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the policy is told
        return fault_text(call.name, error)
