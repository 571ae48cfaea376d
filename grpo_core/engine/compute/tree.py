"""Pack rows into trees, in which a token that several rows share is computed once.

The nodes of a tree are tokens, and rows share a node if they have it and everything before it in
common. A node attends to its ancestors alone, by a mask, and has the position that it would have in
its own row. So one forward pass of N nodes gives exactly the log-probs of all rows, without
padding, and the gradient of a shared node is the sum over everything that follows it. Prompts share
their common start; the short completions of one prompt share most of their tokens. Attention also
computes some of what the mask hides, so rows that share little are put into trees of their own,
side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute import attention
from grpo_core.engine.compute.kv import cache_argument
from grpo_core.engine.compute.logprob import head_at
from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.compute.upload import upload
from grpo_core.protocol.types import shared_length

MIN_COMMON = 8
"""Least length of a common start that is worth a forward pass of its own."""


@dataclass(frozen=True, slots=True)
class Trees:
    """Hold B trees, padded to the N nodes of the largest."""

    tokens_BN: Tensor
    """Tokens of the nodes, in depth-first order."""
    positions_BN: Tensor
    """Positions of the nodes in their rows."""
    mask_BNN: Tensor
    """True where a node (row) attends to another (column)."""
    blocks: tuple[attention.AttentionBlock, ...]
    """Blocks of the mask that contain a visible pair."""
    predictors_K: Tensor
    """Indices of the nodes, out of B * N, whose logits are needed."""
    places: list[int]
    """Which of the K predicts each completion token, row by row."""

    def forward(
        self,
        model: Any,
        dtype: torch.dtype,
        *,
        masking: Masking,
        cache: Any = None,
        bare: bool = False,
    ) -> Tensor:
        """Return the model's logits (K, V) of the predictors, by one forward pass.

        Args:
            model: the model.
            dtype: type of the additive mask.
            masking: how the model takes masks.
            cache: a cache to fill, if any.
            bare: return the last hidden states (K, H) instead.
        """
        with head_at(model, self.predictors_K, bare=bare) as hidden_states:
            out = model(
                input_ids=self.tokens_BN,
                position_ids=self.positions_BN,
                attention_mask=masking.masks(
                    model, self.mask_BNN, self.positions_BN, self.positions_BN, dtype
                ),
                **cache_argument(model, cache),
                use_cache=cache is not None,
                **attention.arguments(model, self.blocks),
            )
        logits: Tensor = hidden_states[0] if bare else out.logits
        return logits[0]


def pair_cost(model: Any) -> float:
    """Return the cost of a pair of nodes relative to that of a node, from the model's shape.

    A node costs 2 operations per weight, and a pair 4 per layer and number that attention compares.
    """
    config = model.config.get_text_config(decoder=True)
    layers = getattr(config, "num_hidden_layers", 0)  # without it, only the speed suffers
    return float(2 * layers * getattr(config, "hidden_size", 0) / count_weights(model))


def count_weights(model: Any) -> int:
    """Return the number of weights that every token is multiplied by."""
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    return sum(
        parameter.numel() for parameter in model.parameters() if id(parameter) not in embeddings
    )


@dataclass(frozen=True, slots=True)
class _Tree:
    """Hold one tree of rows."""

    tokens: list[int]
    """Tokens of the nodes, in depth-first order."""
    positions: list[int]
    """Positions of the nodes in their rows."""
    ends: list[int]
    """One past each node's last descendant."""
    predictors: list[list[int]]
    """For each row, the nodes that predict its completion."""


def pack_trees(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    device: torch.device,
    together: Sequence[int] | None = None,
    block_rows: int | None = None,
) -> Trees:
    """Pack rows, each a prompt and a completion, into trees.

    The last token of a row predicts nothing, so it has no node.

    Args:
        prompts: the prompts, none of them empty.
        completions: one per prompt.
        device: where the tensors are made.
        together: number of rows in each tree; all rows share one tree if None.
        block_rows: rows of a block of attention; `attention.ROWS` if None.
    """
    trees, start = [], 0
    for count in together or [len(prompts)]:
        trees.append(_pack_tree(prompts[start : start + count], completions[start : start + count]))
        start += count
    width = max(len(tree.tokens) for tree in trees)

    def padded(row: list[int]) -> list[int]:
        return row + [0] * (width - len(row))

    ends = [padded(tree.ends) for tree in trees]
    node_N, end_BN = torch.arange(width, device=device), upload(ends, device)
    visible_BNN = (node_N <= node_N[:, None]) & (node_N[:, None] < end_BN[:, None])
    # Padding has to attend to something: it attends to itself.
    visible_BNN |= torch.eye(width, dtype=torch.bool, device=device)
    places = [
        [b * width + node for node in nodes]
        for b, tree in enumerate(trees)
        for nodes in tree.predictors
    ]
    needed = sorted({node for nodes in places for node in nodes})
    rank = {node: k for k, node in enumerate(needed)}
    return Trees(
        tokens_BN=upload([padded(tree.tokens) for tree in trees], device),
        positions_BN=upload([padded(tree.positions) for tree in trees], device),
        mask_BNN=visible_BNN,
        blocks=attention.blocks([max(column) for column in zip(*ends, strict=True)], block_rows),
        predictors_K=upload(needed, device, dtype=torch.long),
        places=[rank[node] for nodes in places for node in nodes],
    )


def _pack_tree(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> _Tree:
    """Pack rows into a single tree."""
    rows = [
        [*prompt, *completion[:-1]] for prompt, completion in zip(prompts, completions, strict=True)
    ]
    tree = _Tree([], [], [], [[] for _ in rows])
    previous: list[int] = []  # the row before
    path: list[int] = []  # its nodes
    # In lexicographic order a row shares more with the row before than with any earlier one, so the
    # nodes come out in depth-first order.
    for i in sorted(range(len(rows)), key=rows.__getitem__):
        row, shared = rows[i], shared_length(previous, rows[i])
        for node in path[shared:]:
            tree.ends[node] = len(tree.tokens)
        previous, new = row, row[shared:]
        path = [*path[:shared], *range(len(tree.tokens), len(tree.tokens) + len(new))]
        tree.tokens.extend(new)
        tree.positions.extend(range(shared, len(row)))
        tree.ends.extend([0] * len(new))
        tree.predictors[i] = path[len(prompts[i]) - 1 :][: len(completions[i])]
    for node in path:
        tree.ends[node] = len(tree.tokens)
    return tree


def size(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> int:
    """Return the number of nodes, at most, of a tree of distinct prompts and their completions."""
    start = common_length(prompts)
    return start + sum(len(p) - start for p in prompts) + sum(map(len, completions))


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all prompts share at the start.

    At least one token is left to each prompt; the result is 0 if the common start is too short to
    pay for a forward pass of its own.
    """
    # The lexicographic extremes differ earliest.
    first, last = min(prompts, key=list), max(prompts, key=list)
    common = min(shared_length(first, last), min(map(len, prompts)) - 1)
    return common if len(prompts) > 1 and common >= MIN_COMMON else 0
