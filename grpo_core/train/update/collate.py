"""Turn rollouts with advantages into rows, each with its exact weight in the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from grpo_core.engine.compute.batch import Row
from grpo_core.protocol.types import Group, Rollout
from grpo_core.train.algorithm.losses import AGGREGATIONS


def collate(
    groups: Sequence[Group[Any]],
    advantage: Tensor,
    scored_PG: Tensor,
    *,
    aggregation: str,
    max_length: int,
    minibatches: int = 1,
    mask_truncated: bool = False,
    skip_dead: bool = False,
) -> list[list[Row]]:
    """Split the attempts of one batch into a list of rows per optimizer step.

    The split is by prompts, as even as possible. Unscored attempts are left out of everything, and
    a step without a scored row is left out. The weights of a step's rows are fixed here, over the
    whole step; the length of an attempt is that of all its segments.

    Args:
        groups: the rollouts of P prompts, G each.
        advantage: of the rollouts (P, G), or of the policy's turns in them (P, G, T).
        scored_PG: which of them were scored.
        aggregation: how token losses are weighted (see `losses.AGGREGATIONS`).
        max_length: the configured generation budget in tokens.
        minibatches: number of optimizer steps.
        mask_truncated: leave truncated attempts out of the loss and its denominators, too.
        skip_dead: do not compute groups whose advantages are all exactly 0, but keep them in the
            denominators. This is exact where the loss depends on nothing but the advantage.
    """
    P, steps = len(groups), []
    computed = [bool(advantage[p].any()) or not skip_dead for p in range(P)]
    for i in range(minibatches):
        kept = [
            (p, g)
            for p in range(i * P // minibatches, (i + 1) * P // minibatches)
            for g, rollout in enumerate(groups[p].rollouts)
            if scored_PG[p, g] and not (mask_truncated and rollout.finish == "length")
        ]
        if kept:
            lengths = [groups[p].rollouts[g].sampled_tokens for p, g in kept]
            weights = AGGREGATIONS[aggregation](lengths, max_length)
            steps.append(
                [
                    row
                    for (p, g), weight in zip(kept, weights, strict=True)
                    if computed[p]
                    for row in rows_of(
                        groups[p].rollouts[g], advantage[p, g], weight, source=(p, g)
                    )
                ]
            )
    return steps


def rows_of(
    rollout: Rollout, advantage: Tensor, weight: float, *, source: tuple[int, int] | None = None
) -> Iterator[Row]:
    """Yield a row for each segment of a rollout that has a trainable token.

    If none has, there is a row for the first one, unless nobody asked the policy for anything.

    Args:
        rollout: the rollout.
        advantage: of the whole rollout (), or of each turn (T,).
        weight: weight of each of its trainable tokens.
        source: the numbers of its prompt and attempt in the batch.

    Raises:
        ValueError: there is an advantage for each turn, and the rollout does not say which tokens
            each turn has.
    """
    by_token = None if advantage.dim() == 0 else _by_token(rollout, advantage)
    segments = tuple(enumerate(rollout.segments))
    trained = [(number, segment) for number, segment in segments if any(segment.trainable)]
    rows = trained or segments[: bool(rollout.prompt_ids)]
    for number, segment in rows:
        yield Row(
            segment,
            float(advantage)
            if by_token is None
            else tuple(next(by_token) if sampled else 0.0 for sampled in segment.trainable),
            weight,
            first=number == rows[0][0],
            source=None if source is None else (*source, number),
        )


def _by_token(rollout: Rollout, advantage_T: Tensor) -> Iterator[float]:
    """Return the advantage of each trainable token of a rollout, segment by segment.

    A turn is the number of trainable tokens that `Rollout.turn_lengths` says, whether or not tokens
    of the environment lie between it and the next one.
    """
    if sum(rollout.turn_lengths) != rollout.sampled_tokens:
        raise ValueError(
            f"the turns of a rollout have {sum(rollout.turn_lengths)} tokens together, and "
            f"{rollout.sampled_tokens} of its tokens are trainable; set Rollout.turn_lengths"
        )
    return (
        value
        for value, length in zip(advantage_T.tolist(), rollout.turn_lengths, strict=False)
        for _ in range(length)
    )
