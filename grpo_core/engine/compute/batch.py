"""Pack rows, segments of rollouts with what each weighs, into micro-batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.engine.compute.tree import size as tree_size
from grpo_core.engine.compute.upload import upload
from grpo_core.protocol.types import Segment


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one segment of a scored attempt with its advantages."""

    segment: Segment
    """The completion with its prompt."""
    advantage: float | tuple[float, ...]
    """Advantage of all tokens, or of each token (T,)."""
    weight: float
    """Weight of the loss of each trainable token in the sum over the optimizer step."""
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
