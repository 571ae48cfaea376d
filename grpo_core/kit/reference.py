"""The plugin reference as markdown, made of the hooks themselves, so that a test can tell when a document is out of date.

python -m grpo_core.kit.reference environments/README.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from grpo_core.protocol import hookspecs
from grpo_core.protocol.errors import UserError

BEGIN = "<!-- plugin reference: made by python -m grpo_core.kit.reference -->"
END = "<!-- end of the plugin reference -->"


def plugin_reference() -> str:
    """Every hook with its signature and docstring, in the order of hookspecs.py."""
    hooks = [value for name, value in vars(hookspecs).items() if name.startswith("grpo_")]
    offers = set(hookspecs.OFFER_HOOKS.values())
    return "\n\n".join(
        [
            "Offer hooks return Specs; a component is imported when a command or a config names it:",
            _table("what it offers", (hook for hook in hooks if hook.__name__ in offers)),
            "Event hooks only observe; one that raises is reported once and hears no more of the run:",
            _table("when it is called", (hook for hook in hooks if hook.__name__ not in offers)),
        ]
    )


def with_reference(text: str) -> str:
    """`text` with the reference of today between its two marks. Raises UserError without them."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UserError(
            f"the marks of the plugin reference are missing; put in the lines {BEGIN} and {END}"
        )
    return f"{head}{BEGIN}\n\n{plugin_reference()}\n\n{END}{tail}"


def _table(title: str, hooks: Iterable[Callable[..., Any]]) -> str:
    rows = [
        f"| `{hook.__name__}{_signature(hook)}` | {' '.join((hook.__doc__ or '').split())} |"
        for hook in hooks
    ]
    return "\n".join([f"| hook | {title} |", "| --- | --- |", *rows])


def _signature(hook: Callable[..., Any]) -> str:
    """As hookspecs.py has it; annotations are texts there, and inspect quotes them."""
    return str(inspect.signature(hook)).replace("'", "").removesuffix(" -> None")


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_reference(document.read_text(encoding="utf-8")), encoding="utf-8")
