"""Read the tool calls that a policy has written, in the formats of the common chat templates.

Reading is separate from making the calls (`grpo_core.protocol.tools`). A format follows from the
template of the model, which only the trainer has, so the trainer reads the calls and hands them on
in `Message.tool_calls`; whoever answers them sees one form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, get_args

from grpo_core.protocol.types import Message, ToolCall

ToolFormat = Literal["hermes", "llama", "mistral", "qwen-coder"]
"""A way to write tool calls; see `FORMATS`."""
MAX_CALLS = 8
"""The most calls of one turn that are read and answered."""
_MAX_DEPTH = 64
"""The most levels of lists and objects in arguments: they have to be written as JSON again."""
_FORM = 'a call is an object such as {"name": "...", "arguments": {...}}'
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]*)>(.*?)(?:</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>\n]*)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)
_PYTHON_TAG = "<|python_tag|>"
_MISTRAL_MARK = "[TOOL_CALLS]"
_NAMED_CALL = re.compile(r"\s*([\w./:-]+)\s*(?:\[CALL_ID\]\s*(\w*)\s*)?\[ARGS\](.*)", re.DOTALL)
_NAMED_OBJECT = re.compile(r'\{\s*"(?:name|type)"\s*:')
"""How a call of Llama begins that has no tag before it."""


def calls_of(message: Message | str) -> tuple[ToolCall, ...]:
    """Return the calls in a turn of the policy, at most `MAX_CALLS`; () if there are none.

    Args:
        message: The turn. A str, and a message without `tool_calls`, is read in the format hermes.
    """
    if isinstance(message, Message) and message.tool_calls is not None:
        return message.tool_calls
    return read_calls(message if isinstance(message, str) else message.content, "hermes")


def read_calls(
    text: str, format: ToolFormat, tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[ToolCall, ...]:
    """Return the calls in a text, at most `MAX_CALLS`; () if there are none.

    Args:
        text: What the policy wrote, with the special tokens that mark calls.
        format: How its calls are written.
        tools: The descriptions of the tools; where a format has no types, they decide what a text
            stands for.
    """
    return tuple(islice(FORMATS[format](text, tools), MAX_CALLS))


def read_api_calls(calls: object) -> tuple[ToolCall, ...]:
    """Return the calls that an answer of the OpenAI API holds apart, at most `MAX_CALLS`.

    Args:
        calls: The field `tool_calls` of its message, whatever it is; () if it is no list.
    """
    return tuple(map(_api_call, calls[:MAX_CALLS])) if isinstance(calls, list) else ()


def _api_call(value: Any) -> ToolCall:
    """Return one call of an answer, whose arguments are a JSON text or, by some servers, JSON."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        return ToolCall(error=_FORM)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(error=f"the arguments are not valid JSON: {error}")
    return _call({"name": function.get("name"), "arguments": arguments, "id": value.get("id")})


def sendable_calls(
    text: str, format: ToolFormat, tools: Sequence[Mapping[str, Any]]
) -> tuple[ToolCall, ...]:
    """Return the calls in a text as clients of the OpenAI API get them; () if there are none.

    A turn with a call whose form is wrong is text and holds no calls. So is one with arguments that
    a client could not send back: NaN, the infinities, and halves of characters of UTF-16.

    Args:
        text: As for `read_calls`.
        format: As for `read_calls`.
        tools: As for `read_calls`.
    """
    calls = read_calls(text, format, tools)
    try:
        for call in calls:
            fields = [call.name, dict(call.arguments)]
            json.dumps(fields, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return ()
    return () if any(call.error for call in calls) else calls


def text_beside_calls(text: str, format: ToolFormat) -> str:
    """Return a text without the calls that `read_calls` reads in it."""
    match format:
        case "mistral":
            return text.partition(_MISTRAL_MARK)[0]
        case "llama":  # without the tag, the calls are the whole text
            before, tag, _ = text.partition(_PYTHON_TAG)
            return before if tag else ""
        case _:
            return _BLOCK.sub("", text)


def format_of(template: object) -> ToolFormat:
    """Return the format that a chat template teaches; "hermes" if it teaches none.

    Of several templates by name it is that of "tool_use", which transformers takes for tools.
    """
    if isinstance(template, Mapping):
        template = template.get("tool_use", template.get("default"))
    if not isinstance(template, str):
        return "hermes"
    if _MISTRAL_MARK in template:
        return "mistral"
    if "<function=" in template:
        return "qwen-coder"
    if "<tool_call>" in template:
        return "hermes"
    if _PYTHON_TAG in template or ('"parameters": ' in template and "ipython" in template):
        return "llama"
    return "hermes"


def _hermes(text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Yield the calls of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}`."""
    for block in _BLOCK.findall(text):
        yield from _json_calls(block)


def _llama(text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Yield the calls of Llama 3: the whole turn is `{"name": ..., "parameters": {...}}`.

    After a tag for Python it is a call in any case. Several objects are several calls.
    """
    _, tag, tagged = text.partition(_PYTHON_TAG)
    body = (tagged if tag else text).strip()
    if not tag and not _NAMED_OBJECT.match(body):
        return
    try:
        values = list(_json_values(body))
    except (ValueError, RecursionError) as error:
        yield ToolCall(error=f"the call is not valid JSON: {error}")
        return
    calls = [_call(value, "parameters", "arguments") for value in values]
    if tag or not all(call.error for call in calls):
        yield from calls or [ToolCall(error=_FORM)]


def _mistral(text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Yield the calls of Mistral after `[TOOL_CALLS]`: a list of objects, or `name[ARGS]{...}`."""
    for piece in text.split(_MISTRAL_MARK)[1:]:
        named = _NAMED_CALL.match(piece)
        if named is None:
            yield from _json_calls(piece, _DECODER)
            continue
        name, call_id, body = named.groups()
        try:
            arguments = _DECODER.decode(body)
        except (ValueError, RecursionError) as error:
            yield ToolCall(error=f"the arguments of {name} are not valid JSON: {error}")
            continue
        yield _call({"name": name, "arguments": arguments, "id": call_id or ""})


def _qwen_coder(text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Yield the calls of Qwen3-Coder: `<function=name><parameter=name>value</parameter>`.

    Values have no quotes; the description of the tool says whether one is a text or JSON.
    """
    for block in _BLOCK.findall(text):
        functions = _FUNCTION.findall(block)
        if not functions:
            yield from _json_calls(block, _DECODER)
        for name, body in functions:
            schemas = _parameters(name.strip(), tools)
            arguments = {
                key.strip(): _typed(value, schemas.get(key.strip(), {}))
                for key, value in _PARAMETER.findall(body)
            }
            yield _call({"name": name.strip(), "arguments": arguments})


FORMATS: Mapping[ToolFormat, Callable[[str, Sequence[Mapping[str, Any]]], Iterator[ToolCall]]] = (
    dict(zip(get_args(ToolFormat), (_hermes, _llama, _mistral, _qwen_coder), strict=True))
)
"""The function that reads each format."""


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""Reads only what JSON defines, so that it can be written again."""


def _json_calls(text: str, decoder: json.JSONDecoder | None = None) -> Iterator[ToolCall]:
    """Yield the calls that a JSON text holds: one object, or a list of them."""
    try:
        value = (decoder or json.JSONDecoder()).decode(text)
    except (ValueError, RecursionError) as error:
        yield ToolCall(error=f"the call is not valid JSON: {error}")
        return
    values = value if isinstance(value, list) else [value]
    yield from map(_call, values or [None])


def _json_values(text: str) -> Iterator[Any]:
    """Yield the JSON values that follow each other in a text; lists are taken apart.

    Raises:
        ValueError, RecursionError: something else stands there.
    """
    place = 0
    while place < len(text):
        value, place = _DECODER.raw_decode(text, place)
        yield from value if isinstance(value, list) else [value]
        while place < len(text) and text[place] in " \t\r\n;,":
            place += 1


def _call(value: Any, *keys: str) -> ToolCall:
    """Return the call that a JSON value describes, with an error if it describes none.

    Args:
        value: The value.
        keys: Names under which the arguments may stand, "arguments" if there are none.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall(error=_FORM)
    key = next((key for key in keys if key in value), "arguments")
    arguments, call_id = value.get(key, {}), value.get("id")
    if not isinstance(arguments, dict):
        return ToolCall(error=_FORM)
    if _is_deeper(arguments, _MAX_DEPTH):
        return ToolCall(error="the arguments are nested too deeply")
    return ToolCall(value["name"], arguments, call_id if isinstance(call_id, str) else "")


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether lists and objects are nested in more levels than `depth`."""
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return depth < 0 or any(_is_deeper(child, depth - 1) for child in children)


def _parameters(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the schemas of a tool's parameters; {} if there is no such tool."""
    for tool in tools:
        if tool["function"]["name"] == name:
            properties: Mapping[str, Mapping[str, Any]] = tool["function"]["parameters"].get(
                "properties", {}
            )
            return properties
    return {}


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value that a text without quotes stands for: JSON, if the schema wants no text."""
    choices = schema.get("anyOf")
    choices = [schema, *(choices if isinstance(choices, Sequence) else ())]
    if not schema or any(
        isinstance(choice, Mapping) and choice.get("type") == "string" for choice in choices
    ):
        return text
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return text  # the check of the arguments says what is wrong with it
