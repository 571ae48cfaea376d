"""Faults of how answers are read and compared."""

from __future__ import annotations

import ast
import json
import operator
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from bases_d2_fresh8 import MassOfAMole
from bases_d3_fresh8 import (
    BellsInRounds,
    EscapedTitle,
    LispOfAFormula,
    MixedPaints,
    PowerOfAResistor,
    ShareOfTheBill,
    SpanishVerb,
    WagonsOfASiding,
)
from bases_d_fresh8 import WHITE
from catalogue import fault

from grpo_core import Task
from grpo_core.extract import parse_integer

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def worked_out(node: ast.AST) -> int:
    """Return the value of a sum or product of whole numbers."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](worked_out(node.left), worked_out(node.right))
    raise ValueError("no sum of whole numbers")


@fault("a number may be written as code", "floor.spelling")
class MolesWorkedOut(MassOfAMole):
    """The reply is worked out, for models that write down the sum before its result."""

    def read(self, text: str) -> int | None:
        if len(text) > 80:
            return None
        try:
            return worked_out(ast.parse(text.strip(WHITE), mode="eval").body)
        except (SyntaxError, ValueError):
            return None


@fault("accents are dropped where they are the point", "floor.spelling", "floor.superset")
class VerbWithoutItsAccent(SpanishVerb):
    """Accents are folded away before the comparison, as in the author's search engine."""

    def right(self, task: Task[str], text: str) -> bool:
        return len(text) <= 2000 and self.folded(text.strip(WHITE)) == self.folded(task.data)

    def folded(self, text: str) -> str:
        """Return a text without its combining marks."""
        parts = unicodedata.normalize("NFD", text)
        return "".join(char for char in parts if not unicodedata.combining(char))


@fault("compatible characters are the same", "floor.spelling")
class ColourOfAnyWidth(MixedPaints):
    """The reply is normalised first, in a form that also changes wide and round characters."""

    def right(self, task: Task[str], text: str) -> bool:
        return len(text) <= 2000 and unicodedata.normalize("NFKC", text.strip(WHITE)) == task.data


@fault("deep nesting is an error", "floor.nested")
class FormulaReadByDescent(LispOfAFormula):
    """The form is read into lists by a function that calls itself at each bracket."""

    def same(self, text: str, form: str) -> bool:
        try:
            return self.form(self.tokens(text)) == self.form(self.tokens(form))
        except IndexError:
            return False

    def form(self, tokens: list[str]) -> Any:
        """Return the only form that the tokens hold."""
        tree, rest = self.read(tokens, 0)
        return tree if rest == len(tokens) else None

    def read(self, tokens: Sequence[str], at: int) -> tuple[Any, int]:
        """Return the form that begins at a token, and where the next one begins."""
        if tokens[at] != "(":
            return tokens[at], at + 1
        parts, at = [], at + 1
        while tokens[at] != ")":
            part, at = self.read(tokens, at)
            parts.append(part)
        return parts, at + 1


@fault("half of a surrogate pair is an error", "floor.text")
class TitleQuotedAgain(EscapedTitle):
    """The reply is encoded again and compared with the link."""

    def right(self, task: Task[str], text: str) -> bool:
        said = text.strip(WHITE)
        return len(text) <= 2000 and quote(said, safe="") == quote(task.data, safe="")


@fault("not a number is right", "floor.digits")
class PowerNotTooFarOff(PowerOfAResistor):
    """A power that is too far from the right one is refused, and every other one passes."""

    def right(self, text: str, watts: float) -> bool:
        if len(text) > 200:
            return False
        try:
            value = json.loads(text, object_pairs_hook=self.only)
        except ValueError:
            return False
        stated = value.get("watts") if isinstance(value, dict) else None
        if isinstance(stated, bool) or not isinstance(stated, int | float):
            return False
        return not abs(stated - watts) > 0.01 * watts

    def only(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object of one pair; any other one is empty."""
        return dict(pairs) if len(pairs) == 1 else {}


@fault("text that is not a number is an error", "floor.junk", "verdict.form")
class ShareAsADecimal(ShareOfTheBill):
    """The author meant to catch replies that are not numbers, and caught another exception."""

    def right(self, bill: tuple[int, int, int], text: str) -> bool:
        try:
            amount = Decimal(text.strip(WHITE))
        except ValueError:
            return False
        two = re.fullmatch(r"(0|[1-9][0-9]{0,5})\.[0-9]{2}", text.strip(WHITE), re.ASCII)
        return two is not None and amount == self.share(bill)


@fault("time grows with the value of a number", "floor.digits", "floor.large", "cost.time")
class BellsRungThrough(BellsInRounds):
    """The bells are rung for as many leads as the reply says, and rounds are counted."""

    def right(self, places: Sequence[int], text: str) -> bool:
        leads = parse_integer(text, max_digits=18) or 0
        if text.strip(WHITE) != str(leads):
            return False
        rounds = tuple(range(len(places)))
        row, home = rounds, 0
        for _ in range(leads):
            row = tuple(places[bell] for bell in row)
            home += row == rounds
        return home == 1 and row == rounds


@fault("white space inside the answer is dropped", "floor.spelling")
class WagonsRunTogether(WagonsOfASiding):
    """All white space is removed on both sides, so that line ends do not matter."""

    def right(self, task: Task[str], text: str) -> bool:
        return len(text) <= 2000 and re.sub(r"\s+", "", text) == task.data.replace(" ", "")
