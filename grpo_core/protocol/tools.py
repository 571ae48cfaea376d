"""Python functions as tools of a policy: described for the chat template, called with checked arguments, answered as messages."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message

MAX_RESULT = 4000
"""Characters of a result that the policy gets to see."""
MAX_CALLS = 8
"""Calls of one turn that are answered."""
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def schemas(tools: Sequence[Callable[..., object]]) -> list[dict[str, Any]]:
    """Each function as chat templates take it: its name, the first paragraph of its docstring and a JSON schema of its parameters.

    `Annotated[int, Field(description="...", ge=0)]` describes and bounds a parameter.
    """
    found = []
    for tool in tools:
        if inspect.iscoroutinefunction(tool):
            raise ConfigError(
                f"the tool {tool.__name__!r} is an async function; write it as a plain one, it runs in a worker"
            )
        parameters = _adapter(tool).json_schema()
        for value in parameters.get("properties", {}).values():
            value.pop("title", None)
        about = inspect.cleandoc(tool.__doc__ or "").split("\n\n")[0]
        function = {
            "name": tool.__name__,
            "description": " ".join(about.split()),
            "parameters": parameters,
        }
        found.append({"type": "function", "function": function})
    return found


def answers(tools: Sequence[Callable[..., object]], text: str) -> list[Message] | None:
    """What the tools answer to the calls in `text`, one message each; None if it calls nothing.

    A call is written as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, a list of such objects counts as several. Whatever
    is wrong with a call, an exception of the function included, is told to the policy: it is the policy that has to learn to call.
    """
    blocks = _BLOCK.findall(text)
    if not blocks:
        return None
    by_name = {tool.__name__: tool for tool in tools}
    results: list[str] = []
    for block in blocks:
        try:
            calls = json.loads(block)
        except (ValueError, RecursionError) as error:
            results.append(f"error: the call is not valid JSON: {error}")
            continue
        results += [
            _result(by_name, call)
            for call in (calls if isinstance(calls, list) else [calls])[:MAX_CALLS]
        ]
    return [Message("tool", result[:MAX_RESULT]) for result in results[:MAX_CALLS]]


def _adapter(tool: Any) -> Any:
    """pydantic's view of a function: the schema of its arguments, and a call that checks them first."""
    from pydantic import TypeAdapter

    return TypeAdapter(tool)


def _result(tools: Mapping[str, Callable[..., object]], call: Any) -> str:
    from pydantic import ValidationError
    from pydantic_core import ArgsKwargs

    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments", {}), dict)
    ):
        return 'error: a call is an object such as {"name": "...", "arguments": {...}}'
    if call["name"] not in tools:
        return f"error: there is no tool {call['name']!r}; there are {', '.join(sorted(tools))}"
    try:
        value = _adapter(tools[call["name"]]).validate_python(
            ArgsKwargs((), call.get("arguments", {}))
        )
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()
        )
        return f"error: {call['name']} was called wrongly: {wrong}"
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the policy is told
        return f"error: {type(error).__name__}: {error}"
    return text.encode("utf-8", "replace").decode()  # a lone surrogate could not be tokenised
