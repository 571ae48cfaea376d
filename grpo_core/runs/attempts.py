"""Turn groups of rollouts into the JSON objects that a log of rollouts holds.

A group has a line of its own, which comes before those of its rollouts, and one after the update if
the log holds the ratios. Each is told by its fields: only that of a group has `prompt`, only those
of rollouts have `attempt`, and only that of an update has `attempts`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_core.protocol.types import Group, Rollout, Segment, TaskKey, Verdict
from grpo_core.runs.documents import is_deeper, is_too_large
from grpo_core.runs.lines import DEEPEST, JsonObject, finite

ATTEMPTS = "attempts.jsonl"
"""The file of rollouts in the folder of an evaluation of a model behind an endpoint."""

_RETURNED_LIMIT = 10_000
"""The most characters, as JSON, of what an agent returned; of more, only the length is kept."""

_MOST_RATIOS = 1_000_000
"""The most ratios, and as many entropies, in the line of an update that is shortened."""

TokenValues = Mapping[tuple[int, int], tuple[Sequence[float], Sequence[float]]]
"""Ratios and entropies of the policy's tokens, by the numbers of the attempt and its segment."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Choose what the lines of a group hold."""

    number: int = 0
    """The number of the group in its step and split."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the functions that the policy could call."""
    tokens: bool = False
    """Whether ids and log-probabilities of the policy's tokens are logged."""
    texts: bool = True
    """Whether prompt and completions are logged; else only the verdicts, without their words."""


def group_line(group: Group[Any], fields: Fields) -> JsonObject:
    """Return the JSON object of a group, without its rollouts."""
    prompt = group.task.prompt
    return {
        "group": fields.number,
        "key": asdict(group.task.key),
        "draw": group.task.draw,
        "prompt": prompt if isinstance(prompt, str) else [message.to_json() for message in prompt],
        **({"tools": [dict(tool) for tool in fields.tools]} if fields.tools else {}),
    }


def update_line(number: int, values: TokenValues) -> JsonObject:
    """Return the JSON object of a group after the update.

    Args:
        number: the number of the group in its step.
        values: those of the segments that were trained on.
    """
    segments: dict[int, dict[int, tuple[Sequence[float], Sequence[float]]]] = {}
    for (attempt, segment), pair in values.items():
        segments.setdefault(attempt, {})[segment] = pair
    return {
        "group": number,
        "attempts": [
            {
                "attempt": attempt,
                **{
                    name: [
                        None if n not in by_segment else _nine_digits(by_segment[n][which])
                        for n in range(max(by_segment) + 1)
                    ]
                    for which, name in enumerate(("ratios", "entropies"))
                },
            }
            for attempt, by_segment in sorted(segments.items())
        ],
    }


def without_texts(line: JsonObject) -> JsonObject:
    """Return the line of a rollout with nothing that the policy or the verifier wrote."""
    verdict = line["verdict"]
    rewards = {name: part | {"note": ""} for name, part in verdict["rewards"].items()}
    return {
        **{name: value for name, value in line.items() if name != "returned"},
        "messages": [],
        "texts_left_out": True,
        "verdict": {
            **{name: value for name, value in verdict.items() if name != "output"},
            "answer": None,
            "detail": {},
            "rewards": rewards,
        },
    }


def shortened(line: JsonObject) -> JsonObject:
    """Return a line that is too long to be read again without what makes it long.

    The line of a rollout loses its texts and tokens, that of an update the values of its last
    attempts, and that of a group its prompt.
    """
    if "attempt" in line:
        kept = {name: value for name, value in line.items() if name != "policy_tokens"}
        return without_texts(kept)
    if "attempts" in line:
        counts = itertools.accumulate(
            sum(len(segment or ()) for segment in attempt["ratios"]) for attempt in line["attempts"]
        )
        fitting = sum(count <= _MOST_RATIOS for count in counts)
        return {**line, "attempts": line["attempts"][:fitting]}
    return {**line, "prompt": "", "tools": []}


def line_text(line: JsonObject) -> str:
    """Return a line as JSON that can be read again, shortened only if nothing else helps."""
    if is_deeper(line, DEEPEST):
        line = finite(line)
    text = json.dumps(line, default=str)
    return json.dumps(shortened(line), default=str) if is_too_large(text.encode()) else text


def token_fields(rollout: Rollout) -> JsonObject:
    """Return the tokens that the policy wrote, segment by segment, with their log-probabilities."""
    return {
        "policy_tokens": [
            _token_fields(segment, turns)
            for segment, turns in zip(rollout.segments, rollout.turns_by_segment, strict=True)
        ]
    }


def _token_fields(segment: Segment, turns: Sequence[int]) -> JsonObject:
    def sampled(values: Sequence[Any]) -> list[Any]:
        pairs = zip(values, segment.trainable, strict=True)
        return [value for value, trainable in pairs if trainable]

    positions = segment.positions
    return {
        "ids": sampled(segment.token_ids),
        "logprobs": _nine_digits(sampled(segment.logprobs)),
        "turns": list(turns),
        **({} if positions is None else {"positions": sampled(positions)}),
    }


def _nine_digits(values: Sequence[float]) -> list[float]:
    """Return the values with nine significant digits, which tell every float32 apart."""
    return [float(f"{value:.9g}") for value in values]


def attempt_line(
    key: TaskKey, draw: int, number: int, rollout: Rollout, verdict: Verdict | None
) -> JsonObject:
    """Return the JSON object of an attempt.

    Args:
        key: the key of its task.
        draw: the draw of its task.
        number: its number among the attempts at its task.
        rollout: the attempt.
        verdict: its verdict; None: there is none yet.
    """
    return {
        "key": asdict(key),
        "draw": draw,
        "attempt": number,
        "messages": [message.to_json() for message in rollout.messages],
        "finish": rollout.finish,
        **({"reply_dropped": True} if rollout.reply_dropped else {}),
        "tokens": sum(len(segment.token_ids) for segment in rollout.segments),
        "versions": rollout.versions,
        **_agent_fields(rollout),
        "verdict": None if verdict is None else verdict.to_json(),
    }


def _agent_fields(rollout: Rollout) -> JsonObject:
    """Return the fields that only the rollouts of agents have.

    They are what the agent returned, or how long it is if that is too long, and of each segment,
    unless the messages show all turns, the tokens of its prefix, how many tokens it shares with an
    earlier one at the start, the tokens after its prefix and those of each turn.
    """
    fields: JsonObject = {}
    segments = rollout.segments
    if not rollout.shows_turns:
        fields["segments"] = [
            {
                "prompt_tokens": len(segment.prompt_ids),
                "shared_tokens": max(map(segment.shared_with, segments[:number]), default=0),
                "tokens": len(segment.token_ids),
                "turns": turns,
            }
            for number, (segment, turns) in enumerate(
                zip(segments, rollout.turns_by_segment, strict=True)
            )
        ]
    if rollout.returned is not None:
        length = len(json.dumps(rollout.returned, default=str))
        fields |= (
            {"returned": rollout.returned}
            if length <= _RETURNED_LIMIT
            else {"returned_length": length}
        )
    return fields
