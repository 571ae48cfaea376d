"""Rollouts with advantages as tensors: rows, their exact weights in the loss, and micro-batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.protocol.types import Rollout
from grpo_core.train.algorithm.losses import row_weights
from grpo_core.train.compute.tree import size as tree_size


@dataclass(frozen=True, slots=True)
class Row:
    """One scored attempt. weight: of each trainable token's loss in the sum over the optimizer step (see `algorithm.row_weights`)."""

    rollout: Rollout
    advantage: float
    weight: float


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that share a forward pass, padded on the right. together: how many of them stand in each tree.

    tokens_BT, real_BT: completion tokens and 1 where they are no padding; trainable_BT: 1 where the policy wrote the token;
    generated_BT: its log-prob when it was drawn; advantage_B1, weight_B1: one number a row.
    """

    rows: tuple[Row, ...]
    together: tuple[int, ...]
    tokens_BT: Tensor
    real_BT: Tensor
    trainable_BT: Tensor
    generated_BT: Tensor
    advantage_B1: Tensor
    weight_B1: Tensor


def collate(
    rollouts_PG: Sequence[Sequence[Rollout]],
    advantage_PG: Tensor,
    scored_PG: Tensor,
    *,
    aggregation: str,
    max_length: int,
    minibatches: int = 1,
    mask_truncated: bool = False,
    skip_dead: bool = False,
) -> list[list[Row]]:
    """One list of rows per optimizer step, split by prompts as evenly as possible. Unscored attempts are left out of everything.

    The weights of a step's rows are fixed here, over the whole step. A step without a scored row is left out.
    mask_truncated: completions that were cut off leave the loss and its denominators, too. skip_dead: groups whose advantages are all
    exactly 0 are not computed, but stay in the denominators: exact where nothing but the advantage makes a loss.
    """
    P = len(rollouts_PG)
    steps = []
    for i in range(minibatches):
        prompts = range(i * P // minibatches, (i + 1) * P // minibatches)
        kept = [(p, g) for p in prompts for g in range(len(rollouts_PG[p])) if scored_PG[p, g]]
        if mask_truncated:
            kept = [(p, g) for p, g in kept if rollouts_PG[p][g].finish != "length"]
        lengths = [sum(rollouts_PG[p][g].trainable) for p, g in kept]
        weights = row_weights(lengths, aggregation, max_length=max_length) if kept else []
        if kept:
            live = [bool(advantage_PG[p].any()) or not skip_dead for p in range(P)]
            found = [
                (Row(rollouts_PG[p][g], float(advantage_PG[p, g]), w), live[p])
                for (p, g), w in zip(kept, weights, strict=True)
            ]
            steps.append([row for row, counts in found if counts])
    return steps


def passes(
    rows: Sequence[Row], *, max_tokens: int, shared_prefix: bool = True, pair: float = 0.0
) -> Iterator[tuple[list[list[Row]], int]]:
    """The trees of each forward pass, as lists of rows, and how many tokens it has, padding included: at most `max_tokens`, but where one
    tree alone has more. Longest first, so that those that are padded to one another are alike.

    shared_prefix: neighbouring rows stand in a tree, where what they share counts once, as long as that costs less than two trees; pair:
    the cost of a pair of nodes beside that of a node, which is 1.
    """
    if not shared_prefix:
        return packed([[row] for row in rows], max_tokens=max_tokens, padded=_padded)
    trees = list(_trees(rows, max_tokens=max_tokens, pair=pair))
    sizes = {id(tree): _nodes(tree) for tree in trees}
    return packed(
        trees,
        max_tokens=max_tokens,
        padded=lambda chunk: len(chunk) * max(sizes[id(tree)] for tree in chunk),
    )


def packed(
    parts: Iterable[list[Row]], *, max_tokens: int, padded: Callable[[Sequence[list[Row]]], int]
) -> Iterator[tuple[list[list[Row]], int]]:
    """`parts` in chunks of at most `max_tokens`, each with its tokens; longest first. padded: how many a chunk has."""
    chunk: list[list[Row]] = []
    for part in sorted(parts, key=lambda part: -padded([part])):
        if chunk and padded([*chunk, part]) > max_tokens:
            yield chunk, padded(chunk)
            chunk = []
        chunk.append(part)
    if chunk:
        yield chunk, padded(chunk)


def _trees(rows: Sequence[Row], *, max_tokens: int, pair: float) -> Iterator[list[Row]]:
    def cost(nodes: int) -> float:
        return nodes + pair * nodes**2

    tree: list[Row] = []
    before = 0
    for row in rows:
        together, alone = _nodes([*tree, row]), _nodes([row])
        if tree and (together > max_tokens or cost(together) > cost(before) + cost(alone)):
            yield tree
            tree, together = [], alone
        tree.append(row)
        before = together
    if tree:
        yield tree


def _nodes(rows: Sequence[Row]) -> int:
    return tree_size(
        list({row.rollout.prompt_ids for row in rows}), [row.rollout.token_ids for row in rows]
    )


def _padded(parts: Sequence[list[Row]]) -> int:
    """Of rows that share nothing: the longest prompt beside the longest completion."""
    rows = [part[0].rollout for part in parts]
    return len(rows) * (
        max(len(row.prompt_ids) for row in rows) + max(len(row.token_ids) for row in rows)
    )


def tensors(
    parts: Sequence[Sequence[Row]], *, device: torch.device, dtype: torch.dtype
) -> MicroBatch:
    """The trees of a forward pass, as lists of rows, as tensors."""
    rows = [row for part in parts for row in part]
    width = max(1, *(len(row.rollout.token_ids) for row in rows))

    def padded(values: Sequence[Sequence[float]], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(
            [[*v, *[0] * (width - len(v))] for v in values], device=device, dtype=dtype
        )

    return MicroBatch(
        rows=tuple(rows),
        together=tuple(map(len, parts)),
        tokens_BT=padded([row.rollout.token_ids for row in rows]),
        real_BT=padded([[1] * len(row.rollout.token_ids) for row in rows]),
        trainable_BT=padded([row.rollout.trainable for row in rows]),
        generated_BT=padded([row.rollout.logprobs for row in rows], dtype),
        advantage_B1=torch.tensor([[row.advantage] for row in rows], device=device, dtype=dtype),
        weight_B1=torch.tensor([[row.weight] for row in rows], device=device, dtype=dtype),
    )
