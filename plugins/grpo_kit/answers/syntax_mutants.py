"""Make wrong programs of a right one, by small changes of its syntax tree.

The changes know nothing of the task: a constant and 1, another comparison, a branch or a statement
dropped, an order changed. Most make the program wrong, and some change nothing that it returns.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Change = tuple[str, Callable[[Any], ast.AST]]
"""What a change does, and the function that returns a changed node, which may be its argument."""
_COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPERATORS: Mapping[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
}
_FUNCTIONS: Mapping[str, str] = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS: Mapping[str, str] = {
    "startswith": "endswith",
    "endswith": "startswith",
    "lower": "upper",
    "upper": "lower",
    "find": "rfind",
    "index": "rindex",
}
_CONVERSIONS = frozenset({"abs", "int", "str", "sorted", "reversed", "set", "list", "len"})
"""Functions whose argument may stand in their place."""


def syntax_mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yield what was changed, and the source of the changed program, once for each.

    Raises:
        SyntaxError: the source is not Python.
    """
    tree = ast.parse(source)
    seen = {ast.unparse(tree)}
    for index, node in enumerate(_nodes(tree)):
        for number, (what, _) in enumerate(_changes(node)):
            copied = copy.deepcopy(tree)
            target = list(_nodes(copied))[index]
            changed = _changes(target)[number][1](target)
            whole = ast.fix_missing_locations(_Replace(target, changed).visit(copied))
            program = ast.unparse(whole)
            if program not in seen:
                seen.add(program)
                yield f"line {getattr(node, 'lineno', 1)}: {what}", program


class _Replace(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self._target, self._replacement = target, replacement

    def visit(self, node: ast.AST) -> Any:
        return self._replacement if node is self._target else super().generic_visit(node)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that may be changed: no docstrings, annotations and imports."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_inert(child):
                yield from _nodes(child)


def _is_inert(node: ast.AST) -> bool:
    """Return whether a node does nothing, as a docstring, or names what is imported."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


def _changes(node: ast.AST) -> list[Change]:
    """Return the changes of a node itself, of which its children have their own."""
    changes = _STATEMENT_CHANGES(node) if isinstance(node, ast.stmt | ast.Module) else []
    for kind, of_kind in _EXPRESSION_CHANGES.items():
        if isinstance(node, kind):
            changes += of_kind(node)
    return changes


def _set(field: str, value: Any) -> Callable[[Any], ast.AST]:
    """Return a change that sets a field of the node."""

    def change(node: ast.AST) -> ast.AST:
        setattr(node, field, value)
        return node

    return change


def _take(field: str) -> Callable[[Any], ast.AST]:
    """Return a change that puts a part of the node in its place."""

    def change(node: ast.AST) -> ast.AST:
        part: ast.AST = getattr(node, field)
        return part

    return change


def _put(replacement: ast.AST) -> Callable[[Any], ast.AST]:
    """Return a change that puts another node in the place of the node."""
    return lambda _: replacement


def _negate(node: Any) -> ast.AST:
    return ast.UnaryOp(ast.Not(), node)


def _of_constant(node: ast.Constant) -> list[Change]:
    value = node.value
    if isinstance(value, bool):
        return [(f"{value} becomes {not value}", _set("value", not value))]
    if isinstance(value, int | float):
        others: list[Any] = [value + 1, value - 1]
    elif isinstance(value, str):
        others = [f"{value}x", value[1:], value[:-1]]
    else:
        return []
    return [(f"{value!r} becomes {other!r}", _set("value", other)) for other in others]


def _of_comparison(node: ast.Compare) -> list[Change]:
    changes: list[Change] = []
    for place, operator in enumerate(node.ops):
        for other in _COMPARISONS[type(operator)]:
            ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
            what = f"{type(operator).__name__} becomes {other.__name__}"
            changes.append((what, _set("ops", ops)))
    if len(node.ops) > 1:
        first = ast.Compare(node.left, node.ops[:1], node.comparators[:1])
        rest = ast.Compare(node.comparators[0], node.ops[1:], node.comparators[1:])
        changes += [("the upper bound is dropped", _put(first))]
        changes += [("the lower bound is dropped", _put(rest))]
    return changes


def _of_bool_op(node: ast.BoolOp) -> list[Change]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    changes: list[Change] = [("and and or are exchanged", _set("op", other))]
    for place in range(len(node.values)):
        values = [*node.values[:place], *node.values[place + 1 :]]
        rest = values[0] if len(values) == 1 else ast.BoolOp(node.op, values)
        changes.append(("a condition is dropped", _put(rest)))
    return changes


def _of_bin_op(node: ast.BinOp) -> list[Change]:
    changes: list[Change] = [
        (f"{type(node.op).__name__} becomes {other.__name__}", _set("op", other()))
        for other in _OPERATORS.get(type(node.op), ())
    ]
    changes += [("only the left operand", _take("left")), ("only the right one", _take("right"))]
    exchanged = ast.BinOp(node.right, node.op, node.left)
    return [*changes, ("the operands are exchanged", _put(exchanged))]


def _of_call(node: ast.Call) -> list[Change]:
    changes: list[Change] = []
    function, arguments = node.func, node.args
    if isinstance(function, ast.Name):
        if other := _FUNCTIONS.get(function.id):
            called = _set("func", ast.Name(other, ast.Load()))
            changes.append((f"{function.id} becomes {other}", called))
        if function.id in _CONVERSIONS and len(arguments) == 1:
            changes.append((f"{function.id} is dropped", lambda node: node.args[0]))
    elif isinstance(function, ast.Attribute):
        if other := _METHODS.get(function.attr):
            called = _set("func", ast.Attribute(function.value, other, ast.Load()))
            changes.append((f"{function.attr} becomes {other}", called))
        if function.attr == "pop" and not arguments:
            changes.append(("pop() becomes pop(0)", _set("args", [ast.Constant(0)])))
        if function.attr == "append":
            first = ast.Attribute(function.value, "insert", ast.Load())
            inserted = ast.Call(first, [ast.Constant(0), *arguments], [])
            changes.append(("append becomes insert at 0", _put(inserted)))
    if len(arguments) == 2:
        changes.append(("the arguments are exchanged", _set("args", arguments[::-1])))
    return changes


def _of_slice(node: ast.Slice) -> list[Change]:
    return [
        (f"the {field} bound of a slice is dropped", _set(field, None))
        for field in ("lower", "upper", "step")
        if getattr(node, field) is not None
    ]


def _of_conditional(node: ast.IfExp) -> list[Change]:
    return [
        ("the condition is negated", _set("test", _negate(node.test))),
        ("only the first of two values", _take("body")),
        ("only the second of two values", _take("orelse")),
    ]


def _of_iteration(node: ast.comprehension) -> list[Change]:
    changes: list[Change] = []
    for what, lower, upper in (("first", 1, None), ("last", None, -1)):
        part = ast.Slice(*(None if at is None else ast.Constant(at) for at in (lower, upper)))
        items = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
        changes.append(
            (f"without the {what}", _set("iter", ast.Subscript(items, part, ast.Load())))
        )
    if node.ifs:
        changes.append(("the filter is dropped", _set("ifs", [])))
    return changes


def _of_statement(node: Any) -> list[Change]:  # noqa: C901 - a kind of statement after the other
    """Return the changes of a statement's own fields, and of the order of those inside it."""
    changes: list[Change] = []
    for field in ("body", "orelse"):
        statements = getattr(node, field, [])
        if not isinstance(statements, list):
            continue
        for place, statement in enumerate(statements):
            if isinstance(statement, ast.FunctionDef) or _is_inert(statement):
                continue
            before, after = statements[:place], statements[place + 1 :]
            if len(statements) > 1 or field == "body":
                rest = [*before, *after] or [ast.Pass()]
                changes.append((f"line {statement.lineno} is dropped", _set(field, rest)))
            if after and not isinstance(after[0], ast.FunctionDef):
                order = [*before, after[0], statement, *after[1:]]
                what = f"lines {statement.lineno} and {after[0].lineno} are exchanged"
                changes.append((what, _set(field, order)))
    if isinstance(node, ast.If | ast.While):
        changes.append(("the condition is negated", _set("test", _negate(node.test))))
    if isinstance(node, ast.If):
        changes.append(("always", _set("test", ast.Constant(True))))
        if node.orelse:
            changes.append(("the else branch is dropped", _set("orelse", [])))
    if isinstance(node, ast.For):
        changes += _of_iteration(ast.comprehension(node.target, node.iter, [], 0))
        once = [*node.body, ast.Break()]
        changes.append(("the loop runs once", _set("body", once)))
    if isinstance(node, ast.AugAssign):
        changes += [
            (f"{type(node.op).__name__} becomes {other.__name__}", _set("op", other()))
            for other in _OPERATORS.get(type(node.op), ())
        ]
        assigned = ast.Assign([node.target], node.value)
        changes.append(("assigned instead of changed", _put(assigned)))
    if isinstance(node, ast.Return) and isinstance(
        node.value, ast.Compare | ast.BoolOp | ast.UnaryOp
    ):
        changes.append(("the value is negated", _set("value", _negate(node.value))))
    if isinstance(node, ast.Break):
        changes.append(("break becomes continue", _put(ast.Continue())))
    if isinstance(node, ast.Continue):
        changes.append(("continue becomes break", _put(ast.Break())))
    return changes


_STATEMENT_CHANGES = _of_statement
_EXPRESSION_CHANGES: Mapping[type[ast.AST], Callable[[Any], list[Change]]] = {
    ast.Constant: _of_constant,
    ast.Compare: _of_comparison,
    ast.BoolOp: _of_bool_op,
    ast.UnaryOp: lambda node: [("a sign is dropped", _take("operand"))],
    ast.BinOp: _of_bin_op,
    ast.Call: _of_call,
    ast.Slice: _of_slice,
    ast.IfExp: _of_conditional,
    ast.comprehension: _of_iteration,
}
