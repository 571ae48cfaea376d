"""Turn rollouts with advantages into tensors.

Rows get their exact weights in the loss, and are packed into micro-batches of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.types import Group, Rollout, Segment
from grpo_core.train.algorithm.losses import AGGREGATIONS
from grpo_core.train.compute.tree import size as tree_size
from grpo_core.train.compute.upload import upload


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one segment of a scored attempt with its advantages."""

    segment: Segment
    """The completion with its prompt."""
    advantage: float | tuple[float, ...]
    """Advantage of all tokens, or of each token (T,)."""
    weight: float
    """Weight of the loss of each trainable token in the sum over the optimizer step (see
    `losses.AGGREGATIONS`)."""
    first: bool = True
    """Whether this is the first row of its attempt."""
    source: tuple[int, int, int] | None = None
    """The numbers of its prompt in the batch, of its attempt and of its segment, if known."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Hold B rows that share a forward pass, padded on the right to T completion tokens."""

    rows: tuple[Row, ...]
    """The rows, tree by tree."""
    together: tuple[int, ...]
    """Number of rows in each tree."""
    tokens_BT: Tensor
    """Completion tokens."""
    real_BT: Tensor
    """1 where a token is not padding."""
    trainable_BT: Tensor
    """1 where the policy wrote the token."""
    generated_BT: Tensor
    """Log-prob of each token when it was sampled."""
    advantage_BT: Tensor
    """Advantage of each token."""
    weight_B1: Tensor
    """`Row.weight` of each row."""

    @property
    def places(self) -> list[int]:
        """Return the index of each completion token into B * T, row by row."""
        width = self.tokens_BT.shape[1]
        return [
            b * width + t
            for b, row in enumerate(self.rows)
            for t in range(len(row.segment.token_ids))
        ]


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


def passes(
    rows: Sequence[Row], *, max_tokens: int, shared_prefix: bool = True, pair: float = 0.0
) -> Iterator[tuple[list[list[Row]], int]]:
    """Group rows into trees, and trees into forward passes.

    A pass has at most `max_tokens` tokens, padding included, unless a single tree has more. The
    longest trees come first, so that trees that are padded to the same size are similar.

    Args:
        rows: the rows to compute.
        max_tokens: most tokens of a pass.
        shared_prefix: put neighbouring rows into one tree, in which shared tokens count once, as
            long as that costs less than two trees.
        pair: cost of a pair of nodes relative to that of a node.

    Yields:
        The trees of a pass, as lists of rows, and its number of tokens.
    """
    if not shared_prefix:
        return packed([[row] for row in rows], max_tokens=max_tokens, padded=_padded)
    trees = list(_trees(rows, max_tokens=max_tokens, pair=pair))
    sizes = {id(tree): nodes for tree, nodes in trees}
    return packed(
        [tree for tree, _ in trees],
        max_tokens=max_tokens,
        padded=lambda chunk: len(chunk) * max(sizes[id(tree)] for tree in chunk),
    )


def packed(
    parts: Iterable[list[Row]], *, max_tokens: int, padded: Callable[[Sequence[list[Row]]], int]
) -> Iterator[tuple[list[list[Row]], int]]:
    """Pack `parts`, the longest first, into chunks of at most `max_tokens`.

    Args:
        parts: lists of rows that have to stay together.
        max_tokens: most tokens of a chunk, unless a single part has more.
        padded: returns the tokens of a chunk, padding included.

    Yields:
        A chunk and its number of tokens.
    """
    chunk: list[list[Row]] = []
    for part in sorted(parts, key=lambda part: -padded([part])):
        if chunk and padded([*chunk, part]) > max_tokens:
            yield chunk, padded(chunk)
            chunk = []
        chunk.append(part)
    if chunk:
        yield chunk, padded(chunk)


def _trees(rows: Sequence[Row], *, max_tokens: int, pair: float) -> Iterator[tuple[list[Row], int]]:
    """Yield lists of neighbouring rows that cost less in one tree than apart.

    Each comes with its number of nodes, at most: a row that continues an attempt adds the nodes
    that it does not share with an earlier row of that attempt.
    """

    def cost(nodes: int) -> float:
        return nodes + pair * nodes**2

    tree: list[Row] = []
    opening: list[Row] = []  # the rows of the tree that continue none before them
    tree_nodes = 0
    continued_nodes = 0  # what the other rows of the tree added
    for row in rows:
        row_nodes, opens = _nodes([row]), row.first or not tree
        joint_nodes = (
            _nodes([*opening, row]) + continued_nodes
            if opens
            else tree_nodes + _added_nodes(tree, row)
        )
        if tree and (
            joint_nodes > max_tokens or cost(joint_nodes) > cost(tree_nodes) + cost(row_nodes)
        ):
            yield tree, tree_nodes
            tree, opening, continued_nodes = [], [], 0
            joint_nodes, opens = row_nodes, True
        tree.append(row)
        if opens:
            opening.append(row)
        else:
            continued_nodes += joint_nodes - tree_nodes
        tree_nodes = joint_nodes
    if tree:
        yield tree, tree_nodes


def _nodes(rows: Sequence[Row]) -> int:
    """Return the number of nodes, at most, of a tree of `rows`."""
    return tree_size(
        list({row.segment.prompt_ids for row in rows}), [row.segment.token_ids for row in rows]
    )


def _added_nodes(tree: Sequence[Row], row: Row) -> int:
    """Return the number of nodes, at most, that a row adds to a tree that ends with its attempt."""
    shared = 0
    for earlier in reversed(tree):
        shared = max(shared, row.segment.shared_with(earlier.segment))
        if earlier.first:
            break
    return len(row.segment.prompt_ids) + len(row.segment.token_ids) - shared


def _padded(parts: Sequence[list[Row]]) -> int:
    """Return the padded size of rows that share nothing.

    Each takes the length of the longest prompt plus that of the longest completion.
    """
    segments = [part[0].segment for part in parts]
    return len(segments) * (
        max(len(segment.prompt_ids) for segment in segments)
        + max(len(segment.token_ids) for segment in segments)
    )


def tensors(
    parts: Sequence[Sequence[Row]], *, device: torch.device, dtype: torch.dtype
) -> MicroBatch:
    """Build the micro-batch of a forward pass.

    Args:
        parts: its trees, as lists of rows.
        device: where the tensors are made.
        dtype: type of log-probs, advantages and weights.
    """
    rows = [row for part in parts for row in part]
    width = max(1, *(len(row.segment.token_ids) for row in rows))

    def padded(values: Sequence[Sequence[float]], dtype: torch.dtype = torch.int64) -> Tensor:
        rows = [[*v, *[0] * (width - len(v))] for v in values]
        return upload(rows, device, dtype=dtype)

    return MicroBatch(
        rows=tuple(rows),
        together=tuple(map(len, parts)),
        tokens_BT=padded([row.segment.token_ids for row in rows]),
        real_BT=padded([[1] * len(row.segment.token_ids) for row in rows]),
        trainable_BT=padded([row.segment.trainable for row in rows]),
        generated_BT=padded([row.segment.logprobs for row in rows], dtype),
        advantage_BT=padded(
            [
                row.advantage
                if isinstance(row.advantage, tuple)
                else [row.advantage] * len(row.segment.token_ids)
                for row in rows
            ],
            dtype,
        ),
        weight_B1=upload([[row.weight] for row in rows], device, dtype=dtype),
    )
