"""Mistakes in Python programs: each changes every place of one kind in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_LOOP_END = 10
"""Where loops end that are cut short: just above the primes of one digit."""
_MOST_BRANCHES = 5
"""Branches that are dropped one by one."""
Change = Callable[[ast.AST], ast.AST | None]
"""Returns what stands in the place of a node: itself, another one, or None to remove it."""


def mistaken_programs(source: str) -> Iterator[tuple[str, str]]:
    """Yield programs with one kind of mistake, each with the name of the mistake.

    What leaves the program as it was is left out.

    Raises:
        SyntaxError: the source is not Python.
    """
    plain = ast.unparse(ast.parse(source))
    branches = sum(isinstance(node, ast.If) for node in ast.walk(ast.parse(source)))
    changes = dict(CHANGES)
    for number in range(min(branches, _MOST_BRANCHES)):
        changes[f"branch {number + 1} is dropped"] = _Branches(number, keeps=False)
        if branches > 2:
            changes[f"branch {number + 1} is the only one"] = _Branches(number, keeps=True)
    for name, change in changes.items():
        tree = _Changing(change).visit(ast.parse(source))
        changed = ast.unparse(ast.fix_missing_locations(tree))
        if changed != plain:
            yield name, changed


class _Changing(ast.NodeTransformer):
    """Applies a change to every node, the inner ones first."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if getattr(node, "body", None) == []:
            vars(node)["body"] = [ast.Pass()]
        return self._change(node)


class _Branches:
    """Removes one `if`, or all but one, in the order in which they are visited."""

    def __init__(self, number: int, *, keeps: bool) -> None:
        self._number, self._keeps = number, keeps
        self._seen = 0

    def __call__(self, node: ast.AST) -> ast.AST | None:
        """Return the node, or None if it is removed."""
        if not isinstance(node, ast.If):
            return node
        self._seen += 1
        return node if (self._seen - 1 == self._number) == self._keeps else None


def _compared(pairs: Mapping[type[ast.cmpop], type[ast.cmpop]]) -> Change:
    """Return a change of comparisons."""

    def change(node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Compare):
            node.ops = [pairs.get(type(op), type(op))() for op in node.ops]
        return node

    return change


def _last_bound(node: ast.AST) -> ast.AST:
    """Make the last comparison of a chain, or the end of a range, exclusive."""
    if isinstance(node, ast.Compare) and len(node.ops) > 1 and isinstance(node.ops[-1], ast.LtE):
        node.ops[-1] = ast.Lt()
    return node


def _first_bound(node: ast.AST) -> ast.AST:
    """Make the first comparison of a chain exclusive."""
    if isinstance(node, ast.Compare) and len(node.ops) > 1 and isinstance(node.ops[0], ast.LtE):
        node.ops[0] = ast.Lt()
    return node


def _range_end(node: ast.AST) -> ast.AST:
    """Drop the + 1 at the end of a range."""
    if (call := _call_of(node, "range")) and isinstance(end := call.args[-1], ast.BinOp):
        call.args[-1] = end.left
    return node


def _short_range(node: ast.AST) -> ast.AST:
    """End each range from a constant on at a small number, however large its end is."""
    call = _call_of(node, "range")
    if call is None or [isinstance(end, ast.Constant) for end in call.args] != [True, False]:
        return node
    call.args[1] = ast.Call(ast.Name("min"), [call.args[1], ast.Constant(_LOOP_END)], [])
    return node


def _ends_with(method: str) -> Change:
    """Return a change of "contains" to a test of the start or the end."""

    def change(node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            whole, part = node.comparators[0], node.left
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                return ast.Call(ast.Attribute(whole, method), [part], [])
        return node

    return change


def _numbers(step: int, *, within: type[ast.AST]) -> Change:
    """Return a change of the constants directly inside of nodes of a type."""

    def change(node: ast.AST) -> ast.AST:
        if isinstance(node, within):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Constant) and type(child.value) is int:
                    child.value += step
        return node

    return change


def _reversed(node: ast.AST) -> ast.AST:
    """Join texts from the back, and take the last for the first item and the other way round."""
    if call := _join(node):
        back = ast.Slice(step=ast.UnaryOp(ast.USub(), ast.Constant(1)))
        call.args[0] = ast.Subscript(ast.Call(ast.Name("list"), [call.args[0]], []), back)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "0":
        node.slice = ast.UnaryOp(ast.USub(), ast.Constant(1))
    elif isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "-1":
        node.slice = ast.Constant(0)
    return node


def _exchanged(node: ast.AST) -> ast.AST:
    """Take the first item where all are joined, and join where the first one is taken."""
    if call := _join(node):
        first = ast.Call(ast.Name("list"), [call.args[0]], [])
        return ast.Subscript(first, ast.Constant(0))
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "0":
        return ast.Call(ast.Attribute(ast.Constant(""), "join"), [node.value], [])
    return node


def _join(node: ast.AST) -> ast.Call | None:
    """Return a node if it is a call of the method join, else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node if node.func.attr == "join" and node.args else None
    return None


def _boolean(node: ast.AST) -> ast.AST:
    """Take "and" for "or" and the other way round."""
    if isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return node


def _first_condition(node: ast.AST) -> ast.AST:
    """Test only the last of several conditions that must all hold."""
    return node.values[-1] if isinstance(node, ast.BoolOp) else node


def _without(function: str) -> Change:
    """Return a change that drops the calls of a function with one argument."""

    def change(node: ast.AST) -> ast.AST:
        call = _call_of(node, function)
        return call.args[0] if call and len(call.args) == 1 else node

    return change


def _call_of(node: ast.AST, name: str) -> ast.Call | None:
    """Return a node if it is a call of a function of that name with arguments, else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node if node.func.id == name and node.args else None
    return None


CHANGES: Mapping[str, Change] = {
    "upper bounds are exclusive": _last_bound,
    "lower bounds are exclusive": _first_bound,
    "<= and >= are < and >": _compared({ast.LtE: ast.Lt, ast.GtE: ast.Gt}),
    "< and > are <= and >=": _compared({ast.Lt: ast.LtE, ast.Gt: ast.GtE}),
    "ranges end one earlier": _range_end,
    "ranges from a constant end at 10": _short_range,
    "what contains only has to end with it": _ends_with("endswith"),
    "what contains only has to start with it": _ends_with("startswith"),
    "numbers of comparisons are one larger": _numbers(1, within=ast.Compare),
    "numbers of comparisons are one smaller": _numbers(-1, within=ast.Compare),
    "divisors are one larger": _numbers(1, within=ast.BinOp),
    "the order is reversed": _reversed,
    "joining and taking the first are exchanged": _exchanged,
    "and is or": _boolean,
    "only the last of joined conditions counts": _first_condition,
    "max is dropped": _without("max"),
    "sorted is dropped": _without("sorted"),
    "set is dropped": _without("set"),
}
