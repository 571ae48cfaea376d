"""Strategies of several turns that hear nothing: one guess after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.shortcuts.asked import SeenPrompt
from grpo_kit.shortcuts.constants import constantly
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Strategy

_MOST_TURNS = 20
"""Turns of a script; where there may be more, the rest is silence."""
_LISTS: Mapping[str, Callable[[SeenPrompt], Sequence[str]]] = {
    "the items of the prompt's list": lambda asked: asked.items,
    "the numbers of the prompt": lambda asked: asked.numbers,
    "the words of the prompt, from the back": lambda asked: asked.words[::-1],
    "the quotations of the prompt": lambda asked: asked.quoted,
}


def turn_strategies(shape: ReferenceShape, max_turns: int) -> Iterator[Strategy]:
    """Yield scripts that say another answer in each turn.

    Args:
        shape: The shape of the references.
        max_turns: The most turns of the policy.
    """
    if max_turns < 2:
        return
    most = min(max_turns, _MOST_TURNS)
    frequent = [answer for answer, _ in Counter(shape.answers).most_common(most)]
    series = {
        "0, 1, 2, ...": [str(number) for number in range(most)],
        "1, 2, 3, ...": [str(number) for number in range(1, most + 1)],
        "the most frequent answers": frequent,
        "the most frequent answer": frequent[:1] * most,
    }
    for name, answers in series.items():
        if script := _script(shape, answers):
            yield Strategy(f"{name}, one in each turn", "constant", constantly(script))
    for name, values in _LISTS.items():
        yield Strategy(f"{name}, one in each turn", "prompt", partial(_listed, shape, values, most))


def _listed(
    shape: ReferenceShape,
    values: Callable[[SeenPrompt], Sequence[str]],
    most: int,
    asked: SeenPrompt,
) -> str | None:
    """Return a script that says values of a prompt, one in each turn."""
    return _script(shape, list(dict.fromkeys(values(asked)))[:most])


def _script(shape: ReferenceShape, answers: Sequence[str]) -> str | None:
    """Return a script of answers in their form; None unless there are several."""
    turns = [shape.form.before + text + shape.form.after for text in answers]
    return join_turns(turns) if len(turns) > 1 else None
