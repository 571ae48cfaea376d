"""Calls of an environment's tools, as a policy writes them: ordinary and malformed ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core import ConfigError, Environment
from grpo_core.api.calls import ForeignError, isolated
from grpo_core.protocol.tools import schemas
from grpo_kit.result import NotCheckedError

SAMPLES = 3
"""Different arguments with which each tool is called."""
_WORDS = ("apple", "7", "x")
_INTEGERS = (3, 12, 1)
_NUMBERS = (2.5, 10.0, 1.0)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the environment with the description that the policy gets."""

    function: Callable[..., object]
    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""

    @property
    def properties(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the schema of each parameter."""
        properties: Mapping[str, Mapping[str, Any]] = self.parameters.get("properties", {})
        return properties

    def samples(self) -> list[dict[str, Any]]:
        """Return different arguments that the schema allows."""
        return [_example(self.parameters, self.parameters, number) for number in range(SAMPLES)]

    def required(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of some arguments that have no default."""
        names = self.parameters.get("required", ())
        return {name: value for name, value in arguments.items() if name in names}

    def calls_with_text(self, text: str, *others: str) -> list[str]:
        """Return a call for each parameter that takes a text, with `text` as its value.

        Args:
            text: The value.
            others: Values of the other parameters that take a text, of which the first is taken.
        """
        return self._calls_with(text, str, *others)

    def calls_with_number(self, number: int) -> list[str]:
        """Return a call for each parameter that takes a number, with `number` as its value."""
        return self._calls_with(number, (int, float))

    def calls_of_examples(self, examples: Sequence[str]) -> list[str]:
        """Return calls with texts that the description quotes, if the tool takes one text."""
        texts = self.calls_with_text("")
        return (
            [call for example in examples for call in self.calls_with_text(example)]
            if len(texts) == len(self.properties) == 1
            else []
        )

    def calls_with_words(self, words: Sequence[str]) -> list[str]:
        """Return calls in which every parameter that takes a text has one of `words`, in turn."""
        example = self.samples()[0]
        names = [name for name in self.properties if isinstance(example.get(name), str)]
        if not names or not words:
            return []
        return [
            call_text(
                self.name,
                {
                    **example,
                    **{
                        name: words[(start + place) % len(words)]
                        for place, name in enumerate(names)
                    },
                },
            )
            for start in range(len(words))
        ]

    def _calls_with(
        self, value: object, kind: type | tuple[type, ...], *others: object
    ) -> list[str]:
        arguments = self.samples()[0]
        if others:
            arguments |= {name: others[0] for name, old in arguments.items() if type(old) is str}
        return [
            call_text(self.name, {**arguments, name: value})
            for name, schema in self.properties.items()
            if isinstance(arguments.get(name), kind)
            and not isinstance(arguments[name], bool)
            and not schema.keys() & {"enum", "const"}
        ]


def described_tools(env: Environment[Any]) -> list[Tool]:
    """Return the tools of `env`.

    Raises:
        ForeignError: tools() fails, or one of them cannot be described; the message says how.
    """
    tools = []
    for function in isolated(lambda: list(env.tools())):
        try:
            (schema,) = isolated(lambda function=function: schemas([function]))  # type: ignore[misc]
        except ForeignError as error:
            if isinstance(error.__cause__, ConfigError):
                raise ForeignError(str(error.__cause__)) from error
            name = getattr(function, "__name__", repr(function))
            raise ForeignError(f"the tool {name} cannot be described: {error}") from error
        described = schema["function"]
        tools.append(
            Tool(function, described["name"], described["description"], described["parameters"])
        )
    return tools


def usable_tools(env: Environment[Any]) -> list[Tool]:
    """Return the tools of `env`, none if there are none.

    Raises:
        NotCheckedError: they cannot be described, which is the subject of tool.form.
    """
    try:
        return described_tools(env)
    except ForeignError as error:
        raise NotCheckedError(f"its tools cannot be described (see tool.form): {error}") from None


def call_text(name: str, arguments: object) -> str:
    """Return a call as a policy writes it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{call}</tool_call>"


def sample_calls(tools: Sequence[Tool]) -> Iterator[str]:
    """Return calls with arguments that the schemas allow: one of each tool, then further ones."""
    for arguments_of_all in zip(*(tool.samples() for tool in tools), strict=True):
        for tool, arguments in zip(tools, arguments_of_all, strict=True):
            yield call_text(tool.name, arguments)


def malformed_calls(tool: Tool) -> Mapping[str, str]:
    """Return calls that are wrong, by what is wrong with them."""
    name, arguments = tool.name, tool.samples()[0]
    return {
        "a tool that does not exist": call_text("no_such_tool", {}),
        "an unknown argument": call_text(name, {**arguments, "no_such_argument": 1}),
        "no arguments": call_text(name, {}),
        "a list as arguments": call_text(name, [1]),
        "a text as arguments": call_text(name, "x"),
        "null as arguments": call_text(name, None),
        "arguments of other types": call_text(name, {key: [{}] for key in arguments} or {"x": []}),
        "a call without a name": f"<tool_call>{json.dumps({'arguments': {}})}</tool_call>",
        "a number as a name": '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        "a number": "<tool_call>7</tool_call>",
        "nothing in a call": "<tool_call></tool_call>",
        "a call that is not JSON": f"<tool_call>{name}(</tool_call>",
        "a call that is never closed": f'<tool_call>{{"name": "{name}"',
        "a call that is closed twice": call_text(name, arguments) + "</tool_call>",
        "brackets as a call": "<tool_call>" + "[" * 5000 + "</tool_call>",
        "a list of calls": f"<tool_call>[{json.dumps({'name': name, 'arguments': arguments})}, 3]"
        "</tool_call>",
        "200 calls": call_text(name, arguments) * 200,
    }


def _example(schema: Mapping[str, Any], root: Mapping[str, Any], number: int) -> Any:
    """Return the example `number` of the values that a JSON schema allows."""
    if (other := _stands_for(schema, root)) is not None:
        return _example(other, root, number)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][number % len(schema["enum"])]
    match schema.get("type"):
        case "integer":
            return int(_bounded(schema, _INTEGERS[number % SAMPLES]))
        case "number":
            return _bounded(schema, _NUMBERS[number % SAMPLES])
        case "boolean":
            return number % 2 == 0
        case "null":
            return None
        case "array":
            items = [_example(item, root, number) for item in schema.get("prefixItems", ())]
            item = schema.get("items") or {}
            least = max(1, schema.get("minItems", 0)) if "items" in schema else 0
            return items + [_example(item, root, number)] * max(0, least - len(items))
        case "object":
            # Texts differ, as those of a tool from one place to another do.
            return {
                name: _example(child, root, number + place * (child.get("type") == "string"))
                for place, (name, child) in enumerate(schema.get("properties", {}).items())
            }
    text = _WORDS[number % SAMPLES].ljust(schema.get("minLength", 0), "x")
    return text[: schema.get("maxLength", len(text))]


def _stands_for(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that another one refers to, or the first that it combines; or None."""
    if "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return target  # type: ignore[no-any-return]
    if "const" in schema or schema.get("enum"):
        return None
    choices = (schema[choice] for choice in ("anyOf", "oneOf", "allOf") if schema.get(choice))
    return next((choice[0] for choice in choices), None)


def _bounded(schema: Mapping[str, Any], value: float) -> float:
    """Return the number next to `value` that the limits of a schema allow."""
    step = schema.get("multipleOf", 1)
    above, below = (
        schema.get("exclusiveMinimum", -math.inf),
        schema.get("exclusiveMaximum", math.inf),
    )
    low, high = schema.get("minimum", above + step), schema.get("maximum", below - step)
    if low > high:  # the limits are less than a step apart
        return float(schema.get("minimum", above) + schema.get("maximum", below)) / 2
    return float(min(max(value * step, low), high))
