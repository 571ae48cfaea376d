"""Rows as packed trees: a token that several rows share, with everything before it, is computed once, and nothing is padded.

The nodes are tokens. A node attends to its ancestors alone, by a mask, and has the position that it would have in its own row. So one
forward pass of N nodes gives exactly the log-probs of all rows, and the gradient of a shared node is the sum over everything that
follows it. Prompts share their common start; the short completions of one prompt share most of what they say. Attention computes some
of what the mask hides, too, so rows that share little stand in trees of their own, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.train.compute import attention
from grpo_core.train.compute.kv import cache_argument
from grpo_core.train.compute.logprob import head_at

MIN_COMMON = 8
"""A shorter common start is not worth a forward pass of its own."""

MASKED_ATTENTION = (attention.NAME, "sdpa", "eager")
"""Implementations that take a mask of their own shape."""


@dataclass(frozen=True, slots=True)
class Trees:
    """B trees, padded to the N nodes of the largest. tokens_BN, positions_BN: the nodes, depth first; mask_B1NN: True where a node (row)
    attends to another (column); blocks: which of those there are at all.

    predictors_K: which of the B * N nodes have logits that are needed; place_M: for each completion token, row by row, which of the K
    predicts it.
    """

    tokens_BN: Tensor
    positions_BN: Tensor
    mask_B1NN: Tensor
    blocks: tuple[attention.Block, ...]
    predictors_K: Tensor
    place_M: Tensor

    def through(
        self, model: Any, dtype: torch.dtype, *, cache: Any = None, bare: bool = False
    ) -> Tensor:
        """The model's logits of the predictors (K, V), by one forward pass; bare: its last hidden states instead."""
        with head_at(model, self.predictors_K, bare=bare):
            out = model(
                input_ids=self.tokens_BN,
                position_ids=self.positions_BN,
                attention_mask=additive(self.mask_B1NN, dtype),
                **cache_argument(model, cache),
                use_cache=cache is not None,
                **attention.arguments(model, self.blocks),
            )
        found: Tensor = out.logits[0]
        return found


def pair_cost(model: Any) -> float:
    """What a pair of nodes costs of what a node costs, by the model's shape: 2 operations for each node and weight, 4 for each pair, layer
    and number that attention compares."""
    config = model.config.get_text_config(decoder=True)
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    weights = sum(
        parameter.numel() for parameter in model.parameters() if id(parameter) not in embeddings
    )
    return float(2 * config.num_hidden_layers * config.hidden_size / weights)


@dataclass(frozen=True, slots=True)
class _Tree:
    """tokens, positions: the nodes, depth first; ends: one past a node's last descendant; predictors: of each row, the nodes that predict
    its completion."""

    tokens: list[int]
    positions: list[int]
    ends: list[int]
    predictors: list[list[int]]


def plant(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    device: torch.device,
    together: Sequence[int] | None = None,
) -> Trees:
    """The trees of rows, a prompt (not empty) and a completion each. together: how many of the rows stand in each tree; all in one, if left
    out. The last token of a row predicts nothing, so it needs no node."""
    trees, start = [], 0
    for count in together or [len(prompts)]:
        trees.append(_grow(prompts[start : start + count], completions[start : start + count]))
        start += count
    width = max(len(tree.tokens) for tree in trees)

    def padded(row: list[int]) -> list[int]:
        return row + [0] * (width - len(row))

    ends = [padded(tree.ends) for tree in trees]
    node_N, end_BN = torch.arange(width, device=device), torch.tensor(ends, device=device)
    above_BNN = (node_N <= node_N[:, None]) & (node_N[:, None] < end_BN[:, None])
    above_BNN |= torch.eye(
        width, dtype=torch.bool, device=device
    )  # padding, which has to see something, sees itself
    places = [
        [b * width + node for node in nodes]
        for b, tree in enumerate(trees)
        for nodes in tree.predictors
    ]
    needed = sorted({node for nodes in places for node in nodes})
    rank = {node: k for k, node in enumerate(needed)}
    return Trees(
        tokens_BN=torch.tensor([padded(tree.tokens) for tree in trees], device=device),
        positions_BN=torch.tensor([padded(tree.positions) for tree in trees], device=device),
        mask_B1NN=above_BNN[:, None],
        blocks=attention.blocks([max(column) for column in zip(*ends, strict=True)]),
        predictors_K=torch.tensor(needed, device=device, dtype=torch.long),
        place_M=torch.tensor(
            [rank[node] for nodes in places for node in nodes], device=device, dtype=torch.long
        ),
    )


def _grow(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> _Tree:
    rows = [
        [*prompt, *completion[:-1]] for prompt, completion in zip(prompts, completions, strict=True)
    ]
    tree = _Tree([], [], [], [[] for _ in rows])
    before: list[int] = []  # the row before
    path: list[int] = []  # its nodes
    # In lexicographic order a row has more in common with the row before than with any earlier one, so the nodes come out depth first.
    for i in sorted(range(len(rows)), key=rows.__getitem__):
        row, shared = rows[i], _alike(before, rows[i])
        for node in path[shared:]:
            tree.ends[node] = len(tree.tokens)
        before, new = row, row[shared:]
        path = [*path[:shared], *range(len(tree.tokens), len(tree.tokens) + len(new))]
        tree.tokens.extend(new)
        tree.positions.extend(range(shared, len(row)))
        tree.ends.extend([0] * len(new))
        tree.predictors[i] = path[len(prompts[i]) - 1 :][: len(completions[i])]
    for node in path:
        tree.ends[node] = len(tree.tokens)
    return tree


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as attention adds it to its scores."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        ~mask, torch.finfo(dtype).min
    )


def size(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> int:
    """Nodes of the tree of these distinct prompts and their completions, at most."""
    start = common_length(prompts)
    return start + sum(len(p) - start for p in prompts) + sum(map(len, completions))


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts share at the start, leaving at least one token to each; 0 if too few to pay for a pass of their own."""
    first, last = (
        min(prompts, key=list),
        max(prompts, key=list),
    )  # the lexicographic extremes differ earliest
    common = min(_alike(first, last), min(map(len, prompts)) - 1)
    return common if len(prompts) > 1 and common >= MIN_COMMON else 0


def can_be_masked(model: Any) -> bool:
    """Whether every layer of the model attends to everything before it, through an attention that takes our mask."""
    config = model.config
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = (
        getattr(config, "sliding_window", None)
        if getattr(config, "use_sliding_window", True)
        else None
    )
    return (
        config._attn_implementation in MASKED_ATTENTION
        and layers == {"full_attention"}
        and window is None
    )


def _alike(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common at the start."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
