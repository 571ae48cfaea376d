"""Say with a verdict that the policy's last turn holds thoughts and no answer."""

from __future__ import annotations

from dataclasses import replace

from grpo_core.protocol.thoughts import closing_tag
from grpo_core.protocol.types import Rollout, Verdict


def with_note(verdict: Verdict, note: str) -> Verdict:
    """Return a verdict whose first part has a note on the last turn; no reward depends on it."""
    name, part = next(iter(verdict.rewards.items()))
    if part.note.startswith(note):  # of a cached verdict
        return verdict
    noted = replace(part, note=f"{note}; {part.note}" if part.note else note)
    return replace(verdict, rewards={**verdict.rewards, name: noted})


def note_on(rollout: Rollout) -> str:
    """Return what is to be said of the last turn; "" if it has an answer, or no thoughts.

    It is not asked about an attempt that passed: its environment looks for no answer in that turn.
    """
    turn = rollout.last_turn
    if turn.content.strip() or turn.tool_calls or not (turn.thoughts or any(turn.thought_marks)):
        return ""
    if turn.thought_marks[1].strip():
        return "the turn holds only thoughts, and no answer follows them"
    if turn.thought_marks[0].strip():
        tag = closing_tag(turn.thought_marks)
        by = f" by {tag}" if tag else ""
        return f"the turn holds only thoughts, which are never closed{by}, so there is no answer"
    return "the turn holds only thoughts, which are never closed or have no answer beside them"
