"""Generate the plugin reference as Markdown from the hooks.

A test compares the result with the document, so that the document cannot be out of date.

python -m grpo_kit.scaffold.reference environments/README.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from grpo_core import UserError
from grpo_core.protocol import hookspecs

BEGIN = "<!-- plugin reference: made by python -m grpo_kit.scaffold.reference -->"
END = "<!-- end of the plugin reference -->"


def plugin_reference() -> str:
    """Return a table of all hooks with signature and docstring, in the order of hookspecs.py."""
    hooks = [value for name, value in vars(hookspecs).items() if name.startswith("grpo_")]
    return "\n\n".join(
        [
            "Hooks return Specs; a component is imported when a command or a config names it:",
            _table("what it offers", hooks),
        ]
    )


def with_reference(text: str) -> str:
    """Return `text` with the current reference between its two marks.

    Raises:
        UserError: The marks are missing.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UserError(
            f"the marks of the plugin reference are missing; add the lines {BEGIN} and {END}"
        )
    return f"{head}{BEGIN}\n\n{plugin_reference()}\n\n{END}{tail}"


def _table(title: str, hooks: Iterable[Callable[..., Any]]) -> str:
    """Return a Markdown table of hooks."""
    rows = [
        f"| `{hook.__name__}{_signature(hook)}` | {' '.join((hook.__doc__ or '').split())} |"
        for hook in hooks
    ]
    return "\n".join([f"| hook | {title} |", "| --- | --- |", *rows])


def _signature(hook: Callable[..., Any]) -> str:
    """Return the signature as in hookspecs.py, without the quotes that inspect adds."""
    return str(inspect.signature(hook)).replace("'", "").removesuffix(" -> None")


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_reference(document.read_text(encoding="utf-8")), encoding="utf-8")
