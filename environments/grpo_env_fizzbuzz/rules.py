"""Games that give each number a name: ordered rules, and a name for when no rule holds.

Each game is available in three forms: a statement in English, a function and Python source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["divides", "contains", "prime", "between"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a number, and the word for numbers that fulfil it."""

    kind: Kind
    """Kind of condition."""
    value: int
    """Divisor, digit or lower bound, depending on `kind`; unused for "prime"."""
    word: str
    """Word for the numbers that fulfil the rule."""
    last: int = 0
    """Upper bound, included, if `kind` is "between"."""

    def holds(self, n: int) -> bool:
        """Return whether `n` fulfils the rule."""
        if self.kind == "divides":
            return n % self.value == 0
        if self.kind == "contains":
            return str(self.value) in str(abs(n))
        if self.kind == "between":
            return self.value <= n <= self.last
        return n > 1 and all(n % divisor for divisor in range(2, int(n**0.5) + 1))

    def condition(self) -> str:
        """Return the condition in English."""
        return {
            "divides": f"n is divisible by {self.value}",
            "contains": f"the decimal digits of n contain a {self.value}",
            "prime": "n is a prime number",
            "between": f"n is between {self.value} and {self.last}, both included",
        }[self.kind]

    def source(self) -> str:
        """Return the condition as a Python expression."""
        return {
            "divides": f"n % {self.value} == 0",
            "contains": f"'{self.value}' in str(abs(n))",
            "prime": "n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))",
            "between": f"{self.value} <= n <= {self.last}",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class NumberGame:
    """Ordered rules that together give each number a name."""

    rules: tuple[Rule, ...]
    """The rules in their order."""
    joined: bool = True
    """Whether the words of all rules that hold are joined, or only the first one is used."""
    otherwise: str | None = None
    """Name of a number for which no rule holds; None for the number itself."""
    listed: bool = False
    """Whether the function takes start and stop, and returns a list with the names of all numbers
    from start to stop, instead of one number's name."""

    def call(self, n: int) -> str:
        """Return the name of `n`."""
        words = [rule.word for rule in self.rules if rule.holds(n)]
        if not words:
            return str(n) if self.otherwise is None else self.otherwise
        return "".join(words) if self.joined else words[0]

    def solve(self, *arguments: int) -> str | list[str]:
        """Return what the policy's function must return for these arguments."""
        if not self.listed:
            return self.call(arguments[0])
        start, stop = arguments
        return [self.call(n) for n in range(start, stop + 1)]

    def statement(self, entry: str) -> str:
        """Return the problem's statement in English, for a function named `entry`."""
        lines = [f'- if {rule.condition()}: "{rule.word}"' for rule in self.rules]
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
        signature = f"`{entry}(start, stop)`" if self.listed else f"`{entry}(n)`"
        return "\n".join(
            [
                "A whole number n is called by these rules:",
                *lines,
                f"Its name is {how}; if none holds, {rest}.",
                f"Write {signature}, which returns {what}.",
            ]
        )

    def source(self, entry: str) -> str:
        """Return a program that solves the problem, with a function named `entry`."""
        body = [
            f"    if {rule.source()}:\n        words.append({rule.word!r})" for rule in self.rules
        ]
        rest = "str(n)" if self.otherwise is None else repr(self.otherwise)
        result = "''.join(words)" if self.joined else "words[0]"
        name = "name" if self.listed else entry
        function = "\n".join(
            [
                f"def {name}(n):",
                "    words = []",
                *body,
                f"    return {result} if words else {rest}",
            ]
        )
        return (
            f"{function}\n\ndef {entry}(start, stop):\n"
            "    return [name(n) for n in range(start, stop + 1)]"
            if self.listed
            else function
        )
