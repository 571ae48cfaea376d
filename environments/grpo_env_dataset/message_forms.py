"""Give reward functions of other trainers their prompts and completions as lists of messages."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from grpo_core import Message


class ChatMessage(dict[str, Any]):
    """Holds a message, whose fields are read as keys or as attributes: both are in use."""

    def __getattr__(self, name: str) -> Any:
        """Return a field.

        Raises:
            AttributeError: there is no such field.
        """
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a message has no {name!r}; it has {', '.join(self)}") from None


class NoTokens:
    """Stands for the ids of tokens, which do not reach a verifier; many functions never look."""

    def _refuse(self, *arguments: object) -> Any:
        """Refuse every use.

        Raises:
            TypeError: always; it says what to do.
        """
        raise TypeError(
            "the ids of tokens do not reach a verifier: measure the text of `completions` instead, "
            "as in len(completion)"
        )

    __len__ = __iter__ = __getitem__ = __contains__ = __add__ = _refuse

    def __getattr__(self, name: str) -> Any:
        """Refuse to be taken for a tensor, or a list."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


class Parser:
    """Stands for the parser that functions of verifiers may ask for: the answer is the text."""

    def parse(self, text: str) -> str:
        """Return the text."""
        return text

    def parse_answer(self, completion: Sequence[ChatMessage] | str) -> str | None:
        """Return the text of the last message of the assistant; None if there is none."""
        if isinstance(completion, str):
            return completion
        texts = [each["content"] for each in completion if each["role"] == "assistant"]
        return texts[-1] if texts else None


def as_chat(messages: Sequence[Message]) -> list[ChatMessage]:
    """Return messages as dictionaries with `role` and `content`."""
    return [ChatMessage(role=each.role, content=each.content) for each in messages]


def reads_messages(function: Callable[..., Any]) -> bool:
    """Return whether a function reads the `content` of messages, as its source tells.

    The functions of the same file that it names, directly or through others, are looked at, too.
    Where there is no source, it is said to read texts.
    """
    function = plain_function(function)
    try:
        tree = ast.parse(inspect.getsource(inspect.getmodule(function) or function))
    except (OSError, TypeError, SyntaxError):
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    definitions = {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}
    waiting, seen = [getattr(function, "__name__", type(function).__name__)], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in definitions:
            continue
        seen.add(name)
        for node in ast.walk(definitions[name]):
            if _names_content(node):
                return True
            if isinstance(node, ast.Name):
                waiting.append(node.id)
    return False


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function below partial applications and decorators."""
    while isinstance(function, functools.partial):
        function = function.func
    plain: Callable[..., Any] = inspect.unwrap(function)
    return plain


def _names_content(node: ast.AST) -> bool:
    """Return whether a node is `x["content"]`, `x.content` or `x.get("content")`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "content"
    if isinstance(node, ast.Subscript):
        return _is_content(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "get" and bool(node.args) and _is_content(node.args[0])
    return False


def _is_content(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "content"
