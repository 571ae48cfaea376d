"""Rows as one packed tree: a token that several rows share, with everything before it, is computed once, and nothing is padded.

The nodes are tokens. A node attends to its ancestors alone, by a mask, and has the position that it would have in its own row. So one
forward pass of N nodes gives exactly the log-probs of all rows, and the gradient of a shared node is the sum over everything that
follows it. Prompts share their common start; the short completions of one prompt share most of what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MIN_COMMON = 8
"""A shorter common start is not worth a forward pass of its own."""

FIXED_ON_CPU, FIXED_ON_ACCELERATOR = 64, 4096
"""What a forward pass costs before the first node: on a CPU little beside one node, on an accelerator as much as thousands."""

MASKED_ATTENTION = ("sdpa", "eager")
"""Implementations that take a mask of their own shape."""


@dataclass(frozen=True, slots=True)
class Tree:
    """tokens_1N, positions_1N: the nodes, depth first; mask_11NN: True where a node (row) attends to another (column).

    predictors_K: the nodes whose logits are needed; place_M: for each completion token, row by row, which of the K predicts it.
    """

    tokens_1N: Tensor
    positions_1N: Tensor
    mask_11NN: Tensor
    predictors_K: Tensor
    place_M: Tensor

    def through(self, model: Any, dtype: torch.dtype, *, cache: Any = None) -> Any:
        """The model's output for all nodes, by one forward pass; its logits are (1, K, V), of the predictors."""
        return model(
            input_ids=self.tokens_1N,
            position_ids=self.positions_1N,
            attention_mask=additive(self.mask_11NN, dtype),
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=self.predictors_K,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a forward pass costs, counted in nodes: the pass itself, each of its nodes, and each pair of them, because attention computes
    also what the mask hides."""

    fixed: float = 0.0
    pair: float = 0.0

    def of(self, nodes: int) -> float:
        return self.fixed + nodes + self.pair * nodes**2

    @classmethod
    def for_model(cls, model: Any) -> Cost:
        """By its shape: 2 operations for each weight and node, 4 for each pair, layer and number that attention compares."""
        config = model.config.get_text_config(decoder=True)
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        weights = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in embeddings)
        pair = 2 * config.num_hidden_layers * config.hidden_size / weights
        return cls(FIXED_ON_CPU if next(model.parameters()).device.type == "cpu" else FIXED_ON_ACCELERATOR, pair)


def plant(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], *, device: torch.device) -> Tree:
    """The tree of rows, a prompt (not empty) and a completion each. The last token of a row predicts nothing, so it needs no node."""
    rows = [[*prompt, *completion[:-1]] for prompt, completion in zip(prompts, completions, strict=True)]
    tokens: list[int] = []
    positions: list[int] = []
    ends: list[int] = []  # one past a node's last descendant
    before: list[int] = []  # the row before
    path: list[int] = []  # its nodes
    predictors: list[list[int]] = [[] for _ in rows]
    # In lexicographic order a row has more in common with the row before than with any earlier one, so the nodes come out depth first.
    for i in sorted(range(len(rows)), key=rows.__getitem__):
        row, shared = rows[i], _alike(before, rows[i])
        for node in path[shared:]:
            ends[node] = len(tokens)
        before, new = row, row[shared:]
        path = [*path[:shared], *range(len(tokens), len(tokens) + len(new))]
        tokens += new
        positions += range(shared, len(row))
        ends += [0] * len(new)
        predictors[i] = path[len(prompts[i]) - 1 :][: len(completions[i])]
    for node in path:
        ends[node] = len(tokens)
    node_N, end_N = torch.arange(len(tokens), device=device), torch.tensor(ends, device=device)
    needed = sorted({node for nodes in predictors for node in nodes})
    rank = {node: k for k, node in enumerate(needed)}
    return Tree(
        tokens_1N=torch.tensor([tokens], device=device),
        positions_1N=torch.tensor([positions], device=device),
        mask_11NN=((node_N <= node_N.unsqueeze(1)) & (node_N.unsqueeze(1) < end_N))[None, None],
        predictors_K=torch.tensor(needed, device=device, dtype=torch.long),
        place_M=torch.tensor([rank[node] for nodes in predictors for node in nodes], device=device, dtype=torch.long),
    )


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as attention adds it to its scores."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def size(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> int:
    """Nodes of the tree of these distinct prompts and their completions, at most."""
    start = common_length(prompts)
    return start + sum(len(p) - start for p in prompts) + sum(map(len, completions))


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts share at the start, leaving at least one token to each; 0 if too few to pay for a pass of their own."""
    first, last = min(prompts, key=list), max(prompts, key=list)  # the lexicographic extremes differ earliest
    common = min(_alike(first, last), min(map(len, prompts)) - 1)
    return common if len(prompts) > 1 and common >= MIN_COMMON else 0


def can_be_masked(model: Any) -> bool:
    """Whether every layer of the model attends to everything before it, through an attention that takes our mask."""
    config = model.config
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return config._attn_implementation in MASKED_ATTENTION and layers == {"full_attention"} and window is None


def _alike(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common at the start."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
