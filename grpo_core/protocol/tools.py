"""Let a policy call Python functions as tools.

The chat template gets a description of each tool, calls are made with validated arguments, and
results come back as messages.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message

MAX_RESULT = 4000
"""The most characters of a result that the policy sees."""
MAX_CALLS = 8
"""The most calls of one turn that are answered."""
_CALL_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def schemas(tools: Sequence[Callable[..., object]]) -> list[dict[str, Any]]:
    """Return the description of each function in the form that chat templates expect.

    It consists of the function's name, the first paragraph of its docstring and a JSON schema of
    its parameters. `Annotated[int, Field(description="...", ge=0)]` describes and limits a
    parameter.

    Raises:
        ConfigError: a function is async.
    """
    descriptions = []
    for tool in tools:
        if inspect.iscoroutinefunction(tool):
            raise ConfigError(
                f"the tool {tool.__name__!r} is an async function; "
                "write it as a plain one, it runs in a worker"
            )
        parameters = _type_adapter(tool).json_schema()
        for parameter in parameters.get("properties", {}).values():
            parameter.pop("title", None)
        docstring_start = inspect.cleandoc(tool.__doc__ or "").split("\n\n")[0]
        function = {
            "name": tool.__name__,
            "description": " ".join(docstring_start.split()),
            "parameters": parameters,
        }
        descriptions.append({"type": "function", "function": function})
    return descriptions


def answers(tools: Sequence[Callable[..., object]], text: str) -> list[Message] | None:
    """Run the tool calls in `text` and return one message per call; None if there is no call.

    A call is written as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; a list of such
    objects counts as several calls. Every fault of a call, including an exception of the function,
    is reported to the policy in the message: the policy has to learn how to call tools.
    """
    blocks = _CALL_BLOCK.findall(text)
    if not blocks:
        return None
    by_name = {tool.__name__: tool for tool in tools}
    results: list[str] = []
    for block in blocks:
        results += _block_results(by_name, block, at_most=MAX_CALLS - len(results))
    return [Message("tool", result[:MAX_RESULT]) for result in results]


def _block_results(
    tools: Mapping[str, Callable[..., object]], block: str, *, at_most: int
) -> list[str]:
    """Make up to `at_most` calls of a block; the others of a text with too many are not made."""
    if at_most <= 0:
        return []
    try:
        calls = json.loads(block)
    except (ValueError, RecursionError) as error:
        return [f"error: the call is not valid JSON: {error}"]
    listed = calls if isinstance(calls, list) else [calls]
    return [_call_result(tools, call) for call in listed[:at_most]]


def _type_adapter(tool: Any) -> Any:
    """Return pydantic's adapter of a function.

    It knows the schema of the arguments, and it validates them before it calls the function.
    """
    from pydantic import TypeAdapter

    return TypeAdapter(tool)


def _call_result(tools: Mapping[str, Callable[..., object]], call: Any) -> str:
    """Make one call and return the text that the policy gets: the result, or "error: ..."."""
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
        value = _type_adapter(tools[call["name"]]).validate_python(
            ArgsKwargs((), call.get("arguments", {}))
        )
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}"
            for fault in error.errors()
        )
        return f"error: {call['name']} was called wrongly: {faults}"
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the policy is told
        return f"error: {type(error).__name__}: {error}"
    return text.encode("utf-8", "replace").decode()  # a lone surrogate could not be tokenised
