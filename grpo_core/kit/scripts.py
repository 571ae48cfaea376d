"""Scripts of several turns as one text, so that checks can change, list and compare them as texts.

The checks put things before, behind and in place of the answer in a reference. In a dialogue the
answer stands in one of several turns, and the others have to be said as well.
"""

from __future__ import annotations

from typing import overload

from grpo_core.protocol.types import Script
from grpo_core.verify.playing import turns_of

_MARK = "\n⟪next turn⟫\n"
"""What stands between two turns; no ordinary answer contains it."""


@overload
def join_turns(script: Script) -> str: ...


@overload
def join_turns(script: None) -> None: ...


@overload
def join_turns(script: Script | None) -> str | None: ...


def join_turns(script: Script | None) -> str | None:
    """Return a script as one text, with a mark between its turns; None for None."""
    return None if script is None else _MARK.join(turns_of(script))


def split_turns(text: str) -> tuple[str, ...]:
    """Return the turns of a text that `join_turns` made, or that a check made from one."""
    return tuple(text.split(_MARK))
