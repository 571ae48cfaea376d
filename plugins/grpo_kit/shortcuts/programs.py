"""Short wrong Python functions, made from the signature and the examples in a prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from grpo_kit.shortcuts.asked import SeenPrompt, ShownCall
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Strategy

_LANGUAGES = ("python", "py", "python3")
_LARGEST = 10_000
"""A number in an example above this is not given to the expressions, which may make lists."""
_VALUES: tuple[str, ...] = ("None", "0", "1", "-1", "''", "'0'", "True", "False", "[]")
"""Constants, as they are written."""
_EXPRESSIONS: tuple[str, ...] = (
    # of anything
    *("{0}", "str({0})", "len({0})", "bool({0})", "{0} == {1}", "[{0}]", "type({0})()"),
    # of numbers
    *("{0} % 2 == 0", "{0} % 2 == 1", "{0} > 0", "-{0}", "abs({0})", "{0} + 1", "{0} - 1"),
    *("{0} * 2", "{0} % 10", "{1}", "{0} + {1}", "{0} * {1}", "{0} - {1}", "max({0}, {1})"),
    *("min({0}, {1})", "str({0})[-1]", "len(str({0}))", "sum(map(int, str(abs({0}))))"),
    *("list(range({0}, {1} + 1))", "[str(i) for i in range({0}, {1} + 1)]"),
    "all({0} % i for i in (2, 3, 5, 7) if i < {0})",
    # of texts and lists
    *("{0}[0]", "{0}[-1]", "{0}[::-1]", "sorted({0})", "''.join(sorted({0}))", "len(set({0}))"),
    *("len({0}) % 2 == 0", "len({0}) // 2", "{0} == {0}[::-1]", "{0}.upper()", "{0}.lower()"),
    *("{0}.split()[0]", "{0}.split()[-1]", "len({0}.split())", "{0}.strip()", "{0}.title()"),
    *("sum({0})", "max({0})", "min({0})", "sum({0}) % 2 == 0", "sum({0}) / len({0})"),
    *("{0}.count({0}[0])", "max(map({0}.count, {0}))", "{0}.count(' ')", "''.join(set({0}))"),
    "sum(c in 'aeiou' for c in {0})",
)
"""Expressions of the parameters {0} and {1} that look at little of them."""
_OPEN, _CLOSE = "sum(c in '([{{<' for c in {0})", "sum(c in ')]}}>' for c in {0})"
_DEPTHS = "[0, *__import__('itertools').accumulate((c in '([{{<') - (c in ')]}}>') for c in {0})]"
_OF_BRACKETS: Mapping[str, str] = {
    "as many brackets open as close": f"{_OPEN} == {_CLOSE}",
    "as many brackets of each kind open as close": "all({0}.count(a) == {0}.count(b) "
    "for a, b in ('()', '[]', '{{}}', '<>'))",
    "brackets at both ends and an even length": "len({0}) % 2 == 0 and {0}[:1] in '([{{<' "
    "and {0}[-1:] in ')]}}>'",
    "as many brackets open as close, and the ends are right": f"{_OPEN} == {_CLOSE} "
    "and {0}[:1] not in tuple(')]}}>') and {0}[-1:] not in tuple('([{{<')",
    "brackets are balanced, whatever their kind": f"min({_DEPTHS}) >= 0 and {_DEPTHS}[-1] == 0",
    "the depth of brackets, whatever their kind": f"max({_DEPTHS})",
    "the number of opening brackets": _OPEN,
    "the difference of opening and closing brackets": f"abs({_OPEN} - {_CLOSE})",
    "twice the rarer of opening and closing brackets": f"2 * min({_OPEN}, {_CLOSE})",
}
"""Expressions that count brackets, by what they return."""


def program_strategies(shape: ReferenceShape) -> Iterator[Strategy]:
    """Yield short programs in the form of an answer, where answers are Python functions."""
    if not are_programs(shape):
        return
    for value in _VALUES:
        yield _strategy(f"a program that returns {value}", shape, partial(_constant_body, value))
    for name in ("the first", "the last", "the most common"):
        yield _strategy(
            f"a program that returns {name} value of the examples", shape, partial(_value, name)
        )
    shown = {expression.format("x", "y"): expression for expression in _EXPRESSIONS}
    for name, expression in {**shown, **_OF_BRACKETS}.items():
        yield _strategy(f"a program that returns {name}", shape, partial(_expressed, expression))
    yield _strategy("the first short program that fits the examples", shape, _fitting)
    for otherwise in ("the last value", "str(x)", "x", "False", "True", "0"):
        yield _strategy(
            f"a table of the examples, else {otherwise}", shape, partial(_table, otherwise)
        )


def are_programs(shape: ReferenceShape) -> bool:
    """Return whether answers of a shape are Python functions."""
    return shape.language in _LANGUAGES or (
        bool(shape.answers)
        and all(answer.startswith(("def ", "from ", "import ")) for answer in shape.answers)
    )


def _strategy(name: str, shape: ReferenceShape, body: Any) -> Strategy:
    """Return a strategy whose function has the body that `body` makes."""

    def answer(asked: SeenPrompt) -> str | None:
        lines = None if asked.function is None else body(asked)
        if lines is None or asked.function is None:
            return None
        entry, parameters = asked.function
        source = f"def {entry}({', '.join(parameters)}):\n    {lines}"
        return shape.reply(source)

    return Strategy(name, "program", answer)


def _constant_body(value: str, asked: SeenPrompt) -> str:
    return f"return {value}"


def _value(which: str, asked: SeenPrompt) -> str | None:
    """Return a body that returns a value of the examples."""
    values = [repr(example.value) for example in asked.examples]
    if not values:
        return None
    common = Counter(values).most_common(1)[0][0]
    chosen = {"the first": values[0], "the last": values[-1], "the most common": common}[which]
    return f"return {chosen}"


def _expressed(expression: str, asked: SeenPrompt) -> str | None:
    """Return a body that returns an expression; None where it fails on the examples.

    It must also return values of the type of those in the examples.
    """
    values = _values(expression, asked)
    if values is None or any(
        type(value) is not type(example.value)
        for value, example in zip(values, asked.examples, strict=True)
    ):
        return None
    return f"return {_filled(expression, asked)}"


def _fitting(asked: SeenPrompt) -> str | None:
    """Return a body with the first constant or expression that fits all examples."""
    wanted = [example.value for example in asked.examples]
    if not wanted:
        return None
    for expression in (*_VALUES, *_EXPRESSIONS, *_OF_BRACKETS.values()):
        values = _values(expression, asked)
        if values is not None and list(map(repr, values)) == list(map(repr, wanted)):
            return f"return {_filled(expression, asked)}"
    return None


def _filled(expression: str, asked: SeenPrompt) -> str:
    """Return an expression with the parameters of the function that is asked for."""
    _, parameters = asked.function or ("", ())
    return expression.format(*(*parameters, *parameters[-1:] * 2, "None", "None")[:2])


def _values(expression: str, asked: SeenPrompt) -> list[Any] | None:
    """Return what an expression of this file gives for the examples; None if it fails."""
    _, parameters = asked.function or ("", ())
    if not parameters or ("{1}" in expression and len(parameters) < 2):
        return None
    try:
        code = compile(_filled(expression, asked), "<expression>", "eval")
        return [_evaluate(code, parameters, example) for example in asked.examples]
    except Exception:  # noqa: BLE001 - an expression of texts is tried on numbers, too
        return None


def _evaluate(code: Any, parameters: Sequence[str], example: ShownCall) -> Any:
    """Return the value of an expression of this file; raise an exception if it has none."""
    if any(isinstance(a, int) and abs(a) > _LARGEST for a in example.arguments):
        raise ValueError("the number may be too large for a list")
    return eval(code, dict(zip(parameters, example.arguments, strict=True)))


def _table(otherwise: str, asked: SeenPrompt) -> str | None:
    """Return a body with a table of the examples, and one value or expression for the rest."""
    _, parameters = asked.function or ("", ())
    if not asked.examples or not parameters:
        return None
    rest = {
        "the last value": repr(asked.examples[-1].value),
        "str(x)": f"str({parameters[0]})",
        "x": parameters[0],
    }.get(otherwise, otherwise)
    table = {repr(example.arguments): example.value for example in asked.examples}
    return f"return {table!r}.get(repr(({', '.join(parameters)},)), {rest})"
