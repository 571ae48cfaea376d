"""Count what the turns of one attempt cost, and which of them have no text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from grpo_evals.chat import ChatTurn
from grpo_evals.types import EndpointUsage, NoText, Refusal


@dataclass(slots=True)
class Tally:
    """Counts the turns of one attempt."""

    usage: EndpointUsage = field(default_factory=EndpointUsage)
    """What they cost."""
    lengths: list[int] = field(default_factory=list)
    """Number of tokens of each."""
    refused: Refusal | None = None
    """Why the server refused one."""
    no_text: Counter[NoText] = field(default_factory=Counter)
    """Number of turns without a text, by the reason."""
    thoughts_in: str = ""
    """The field in which the server sent thoughts."""

    def add(self, turn: ChatTurn) -> None:
        """Count an answer, whose text is a turn of the attempt unless it was refused."""
        self.usage += turn.usage
        self.refused = turn.refused or self.refused
        self.thoughts_in = turn.thoughts_in or self.thoughts_in
        if turn.no_text is not None:
            self.no_text[turn.no_text] += 1
