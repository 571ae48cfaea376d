"""What a number is called: rules, their order, and what is said when none holds. The same thing as words, as a function and as source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["divides", "contains", "prime", "between"]


@dataclass(frozen=True, slots=True)
class Rule:
    """kind and value: when it holds ("between" means value <= n <= last); word: what is said then."""

    kind: Kind
    value: int
    word: str
    last: int = 0

    def holds(self, n: int) -> bool:
        if self.kind == "divides":
            return n % self.value == 0
        if self.kind == "contains":
            return str(self.value) in str(abs(n))
        if self.kind == "between":
            return self.value <= n <= self.last
        return n > 1 and all(n % divisor for divisor in range(2, int(n**0.5) + 1))

    def said(self) -> str:
        """The condition in English."""
        return {
            "divides": f"n is divisible by {self.value}",
            "contains": f"the decimal digits of n contain a {self.value}",
            "prime": "n is a prime number",
            "between": f"n is between {self.value} and {self.last}, both included",
        }[self.kind]

    def source(self) -> str:
        """The condition in Python."""
        return {
            "divides": f"n % {self.value} == 0",
            "contains": f"'{self.value}' in str(abs(n))",
            "prime": "n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))",
            "between": f"{self.value} <= n <= {self.last}",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class Game:
    """rules in their order; joined: all that hold are said together, else only the first; otherwise: said when none holds, None means the
    number itself; listed: the function gets start and stop and returns the list for all numbers from start to stop."""

    rules: tuple[Rule, ...]
    joined: bool = True
    otherwise: str | None = None
    listed: bool = False

    def call(self, n: int) -> str:
        words = [rule.word for rule in self.rules if rule.holds(n)]
        if not words:
            return str(n) if self.otherwise is None else self.otherwise
        return "".join(words) if self.joined else words[0]

    def solve(self, *arguments: int) -> str | list[str]:
        """What the function must return."""
        if not self.listed:
            return self.call(arguments[0])
        start, stop = arguments
        return [self.call(n) for n in range(start, stop + 1)]

    def statement(self, entry: str) -> str:
        lines = [f'- if {rule.said()}: "{rule.word}"' for rule in self.rules]
        how = (
            "the words of all rules that hold, joined in this order"
            if self.joined
            else "the word of the first rule that holds"
        )
        rest = "the number itself as a string" if self.otherwise is None else f'"{self.otherwise}"'
        what = (
            "the list of these strings for every n from start to stop, both included"
            if self.listed
            else "this string"
        )
        given = f"`{entry}(start, stop)`" if self.listed else f"`{entry}(n)`"
        return "\n".join(["A whole number n is called by these rules:", *lines, f"Its name is {how}; if none holds, {rest}.",
                          f"Write {given}, which returns {what}."])  # fmt: skip

    def source(self, entry: str) -> str:
        """A program that solves it."""
        body = [
            f"    if {rule.source()}:\n        words.append({rule.word!r})" for rule in self.rules
        ]
        rest = "str(n)" if self.otherwise is None else repr(self.otherwise)
        said = "''.join(words)" if self.joined else "words[0]"
        name = "name" if self.listed else entry
        one = "\n".join(
            [f"def {name}(n):", "    words = []", *body, f"    return {said} if words else {rest}"]
        )
        return (
            f"{one}\n\ndef {entry}(start, stop):\n    return [name(n) for n in range(start, stop + 1)]"
            if self.listed
            else one
        )
