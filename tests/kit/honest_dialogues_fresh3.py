"""Honest designs of the third fresh part: dialogues and tools that look odd and are right."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from bases_talk_fresh3 import MOTHERS, NUMBERS, PEOPLE, Registry, Swaps, Vault, in_order, known
from catalogue import honest

from grpo_core import Reward, Rollout, Task, Verdict


@honest("the sound base: a list that is sorted by exchanges, and shown after each")
class HonestSwaps(Swaps):
    """What the environment shows last is never the sorted list."""


@honest("the sound base: a code, of which right digits are counted, with one prompt for all")
class HonestVault(Vault):
    """Only the hidden code differs between the tasks of a level."""


@honest("each exchange above the fewest costs a tenth, and every sorted list passes")
class FewExchanges(Swaps):
    """Turns that are no exchange count, too."""

    def verify(self, task: Task[tuple[int, ...]], rollout: Rollout) -> Verdict:
        said = sum(message.role == "assistant" for message in rollout.messages)
        right = in_order(self.after(task, rollout.messages))
        more = said - len(self.reference(task))
        paid = max(0.2, 1 - 0.1 * more) if right else 0.0
        return Verdict({"reward": Reward(paid)}, passed=right, answer=rollout.text[:20])


@honest("a tool suggests names that are close to a wrong one")
class CloseNames(Registry):
    """The names are in the register for everybody, and the sums are not."""

    def number(self, name: str) -> object:
        """Return the registered number of a person; close names if there is nobody of that name."""
        if name in NUMBERS:
            return NUMBERS[name]
        close = difflib.get_close_matches(name[:20], PEOPLE)
        return f"nobody is called that; close are: {', '.join(close) or 'none'}"


@honest("a tool answers with a person's whole card, and takes a list of names")
class Cards(Registry):
    """Most of what a card says does not matter for the sum."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), self.cards)

    def cards(self, names: list[str]) -> list[dict[str, object]]:
        """Return the cards of some people: name, registered number, mother and letters."""
        return [
            {
                "name": known(name),
                "number": NUMBERS[name],
                "mother": {"name": MOTHERS[name], "number": NUMBERS[MOTHERS[name]]},
                "letters": len(name),
            }
            for name in names[:20]
        ]
