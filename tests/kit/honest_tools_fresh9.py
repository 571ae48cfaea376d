"""An honest design of a tool, of the kinds E."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Annotated

from bases_e3_fresh9 import DarkroomSeconds, call
from catalogue import honest
from pydantic import Field

from grpo_core import Task

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def reckon(
    formula: Annotated[str, Field(description="whole numbers, + - * and brackets", max_length=80)],
) -> int:
    """Work out a formula, such as 12 * (3 + 4)."""
    if len(formula) > 80 or not set(formula) <= set("0123456789+-* ()"):
        raise ValueError("a formula has up to 80 of the characters 0123456789+-* ()")
    return _value(ast.parse(formula.strip(), mode="eval").body)


def _value(node: ast.expr) -> int:
    """Return the value of a part of a formula, without executing anything."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return int(OPERATIONS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError("only whole numbers, + - * and brackets are understood")


@honest("the tool takes a formula, but reads its tree: it knows whole numbers, + - * and no names")
class DarkroomReckoner(DarkroomSeconds):
    """Asks how long a series of prints takes, with a calculator of three operations."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (reckon,)

    def asked(self, task: Task[tuple[int, int, int, int]]) -> str:
        prints, tenths, factor, rinse = task.data
        return call("reckon", formula=f"{prints} * ({tenths} * {factor} + {rinse})")
