"""Read rollouts back from a log, as a verifier sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_core.protocol.types import Message, Rollout
from grpo_core.runs.older_turns import split_older_turns


def saved_rollout(line: Mapping[str, Any], *, is_split: bool = True) -> Rollout | None:
    """Return the rollout of a line of rollouts.jsonl, without tokens.

    None if the line does not hold all that a verifier sees: an agent returned more than is kept,
    or the run logs no texts.

    Args:
        line: the line.
        is_split: whether the run split its turns into thoughts and content;
            if not, they are split now.
    """
    if "returned_length" in line or "texts_left_out" in line:
        return None
    messages = tuple(Message.from_json(fields) for fields in line["messages"])
    return Rollout(
        messages=messages if is_split else split_older_turns(messages),
        finish=line["finish"],
        reply_dropped=line.get("reply_dropped", False),
        turn_lengths=tuple(
            length for segment in line.get("segments", ()) for length in segment["turns"]
        ),
        returned=line.get("returned"),
    )
