"""Read from a prompt what a lazy policy sees in it: numbers, words, lists, calls and examples."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpo_core import Task
from grpo_core.words import last_text, prompt_text

_NUMBER = re.compile(r"(?<![\w.])-?\d{1,18}(?:\.\d{1,18})?(?![\w]|\.\d)")
_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)")
_EITHER = re.compile(r"(?<![\w.-])(\w[\w.-]*),? or (\w[\w-]*)")
_LIST = re.compile(r"[:=]\s*\[?((?:[^\s,:.?!\[\]]+,\s*)+(?:(?:and|or)\s+)?[^\s,:.?!\[\]]+)")
_CHOICE = re.compile(r"^[ \t]*\(?([A-Za-z0-9])[).:][ \t]+(\S.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```[^\n]*\n(.*?)\n```\s*$", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"`(?:def )?([A-Za-z_]\w*)\(([\w\s,:*=]*)\)`|\bdef ([A-Za-z_]\w*)\(([^()\n]*)\)")
_EXAMPLE = re.compile(
    r"^[ \t>$*-]*(?:assert )?([A-Za-z_]\w*)\((.*)\)[ \t]*(?:==|->|=>|→|returns|#)[ \t]*(\S.*)$",
    re.MULTILINE,
)
_FILE = re.compile(r"(?<![\w/.-])[\w/-]+\.[A-Za-z]\w{0,4}\b")
_TABLE = re.compile(r"create table (?:if not exists )?[\"`\[]?(\w+)", re.IGNORECASE)
_MOST_READ = 20_000
"""Characters of a prompt in which parts are looked for."""
_LONGEST_LITERAL = 200
"""Characters of arguments and values of an example that are read."""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call in a prompt with the value that it returns."""

    arguments: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class SeenPrompt:
    """Holds all that a policy sees before it answers."""

    text: str
    """The prompt as one text."""
    question: str
    """Its last message, which tells it from others."""

    @classmethod
    def of(cls, task: Task[Any]) -> SeenPrompt:
        """Return what a task asks."""
        return cls(prompt_text(task), last_text(task))

    @cached_property
    def _head(self) -> str:
        """Return as much of the question as is searched for parts."""
        return self.question[:_MOST_READ]

    @cached_property
    def _whole_head(self) -> str:
        """Return as much of the prompt as is searched for parts, from its end."""
        return self.text[-_MOST_READ:]

    @cached_property
    def numbers(self) -> list[str]:
        """Return the numbers of the question, as they are written."""
        return _NUMBER.findall(self._head)

    @cached_property
    def words(self) -> list[str]:
        """Return the words of the question without the marks around them."""
        return re.findall(r"\w[\w'-]*", self._head)

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines of the question that are not empty."""
        return [line.strip() for line in self._head.splitlines() if line.strip()]

    @cached_property
    def quoted(self) -> list[str]:
        """Return what stands between quotation marks or ticks in the question."""
        return ["".join(groups) for groups in _QUOTED.findall(self._head)]

    @cached_property
    def alternatives(self) -> tuple[str, str] | None:
        """Return the last two words with "or" between them."""
        pairs: list[tuple[str, str]] = _EITHER.findall(self._head)
        return pairs[-1] if pairs else None

    @cached_property
    def items(self) -> list[str]:
        """Return the members of the longest list behind a colon."""
        lists = [
            re.split(r",\s*(?:(?:and|or)\s+)?|\s+(?:and|or)\s+", text)
            for text in _LIST.findall(self._head)
        ]
        return max(lists, key=len, default=[])

    @cached_property
    def choices(self) -> list[tuple[str, str]]:
        """Return the label and the text of each choice, one on each line."""
        return _CHOICE.findall(self._head)

    @cached_property
    def blocks(self) -> list[str]:
        """Return what stands between fences anywhere in the prompt."""
        return _FENCE.findall(self._whole_head)

    @cached_property
    def files(self) -> list[str]:
        """Return the names of files in the question, each once."""
        return list(dict.fromkeys(_FILE.findall(self._head)))

    @cached_property
    def tables(self) -> list[str]:
        """Return the names of the tables that the prompt creates."""
        return _TABLE.findall(self._whole_head)

    @cached_property
    def function(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the name and the parameters of the function that the prompt asks for last."""
        calls = _CALL.findall(self._whole_head)
        if not calls:
            return None
        name, parameters = calls[-1][:2] if calls[-1][0] else calls[-1][2:]
        names = (re.match(r"\s*\**(\w*)", part) for part in parameters.split(","))
        return name, tuple(match[1] for match in names if match and match[1])

    @cached_property
    def examples(self) -> list[ShownCall]:
        """Return the examples of that function in the prompt."""
        if self.function is None:
            return []
        examples = list[ShownCall]()
        for name, arguments, value in _EXAMPLE.findall(self._whole_head):
            short = len(arguments) + len(value) <= _LONGEST_LITERAL
            if name == self.function[0] and short:
                try:
                    values = ast.literal_eval(f"({arguments},)"), ast.literal_eval(value.strip())
                    examples.append(ShownCall(*values))
                except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                    continue
        return examples

    @cached_property
    def wording(self) -> str:
        """Return the question without its numbers and quotations: what alike questions share."""
        return re.sub(r"\b\w*\d[\w.]*", "#", _QUOTED.sub("Q", self._head))
