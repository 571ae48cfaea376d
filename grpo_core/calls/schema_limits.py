"""Refuse JSON schemas that are too large for any library that turns them into a grammar.

A schema comes from a client, and what reads it is native code that cannot be interrupted. These
bounds are those above which the work of llguidance grows faster than the schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from grpo_core.calls.json_limits import JsonLimitError, JsonLimits, check_json
from grpo_core.protocol.sampler import UnsupportedSchemaError

MAX_BYTES = 131_072
MAX_PROPERTIES = 400
"""Of one object; a grammar of optional ones has more branches than the library takes."""
MAX_ALTERNATIVES = 500
"""Of one anyOf, oneOf or allOf."""
MAX_ENUM = 8_000
MAX_PATTERN_CHARACTERS = 4_000
MAX_LEAST = 1_000_000
"""Of minItems, minLength and the like: no completion reaches more."""
MAX_MULTIPLE = 10_000
"""Of the least common multiple of all multipleOf, which the library counts through."""
_LIMITS = JsonLimits(depth=62, containers=10_000, strings=20_000, values=20_000)
_LEAST = frozenset({"minItems", "minLength", "minProperties", "minContains"})
_LISTS = {"enum": MAX_ENUM, "anyOf": MAX_ALTERNATIVES, "oneOf": MAX_ALTERNATIVES}
_LISTS |= {"allOf": MAX_ALTERNATIVES, "prefixItems": 1_000, "required": 2_000}
_MAPPINGS = ("properties", "patternProperties")
_COSTLY = ("allOf", "oneOf", "pattern", "patternProperties", "multipleOf")


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON text, after checking its size.

    Raises:
        UnsupportedSchemaError: it is not JSON, or too large.
    """
    try:
        text = json.dumps(dict(schema), allow_nan=False)
        check_json(text, _LIMITS)
    except JsonLimitError as error:
        raise UnsupportedSchemaError(f"the JSON schema is too large: {error}") from None
    except (RecursionError, TypeError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UnsupportedSchemaError(f"the JSON schema cannot be read: {reason}") from None
    if len(text) > MAX_BYTES:
        raise _too_large(f"it has {len(text)} bytes", f"{MAX_BYTES}")
    if "x-guidance" in schema:
        raise UnsupportedSchemaError(
            "the JSON schema has options of the library that follows it (x-guidance); remove them"
        )
    multiple = 1
    for place in _objects(schema):
        _check_object(place)
        multiple = math.lcm(multiple, _multiple_of(place))
        if multiple > MAX_MULTIPLE:
            raise _too_large("its values of multipleOf have a larger common multiple", MAX_MULTIPLE)
    return text


def needs_trial(schema: Mapping[str, Any]) -> bool:
    """Return whether compiling a schema may take long, in spite of the limits.

    The intersection of patterns, for example, has a size that nothing but computing it tells.
    """
    return any(name in place for place in _objects(schema) for name in _COSTLY)


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object inside a schema, whatever it means there."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)


def _check_object(place: Mapping[str, Any]) -> None:
    for name, most in _LISTS.items():
        if isinstance(values := place.get(name), (list, tuple)) and len(values) > most:
            raise _too_large(f"{name} has {len(values)} entries", most)
    for name in _MAPPINGS:
        values = place.get(name)
        if isinstance(values, Mapping) and len(values) > MAX_PROPERTIES:
            raise _too_large(f"{name} has {len(values)} entries", MAX_PROPERTIES)
    for name in _LEAST & place.keys():
        if isinstance(least := place[name], (int, float)) and least > MAX_LEAST:
            raise _too_large(f"{name} is larger", MAX_LEAST)
    patterns = [place.get("pattern")]
    if isinstance(named := place.get("patternProperties"), Mapping):
        patterns += named
    for pattern in patterns:
        if isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARACTERS:
            raise _too_large(f"a pattern has {len(pattern)} characters", MAX_PATTERN_CHARACTERS)


def _multiple_of(place: Mapping[str, Any]) -> int:
    """Return the digits of an object's multipleOf as a whole number; 1 if it has none."""
    value = place.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value:
        return 1
    if isinstance(value, int) and abs(value) > MAX_MULTIPLE:
        return abs(value)
    digits = Decimal(str(abs(value))).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


def _too_large(problem: str, most: object) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(
        f"the JSON schema is too large: {problem}, and {most} is the most; simplify it"
    )
