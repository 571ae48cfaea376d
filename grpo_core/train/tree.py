"""Rows as one packed tree: what several rows share is computed once, and nothing is padded.

The nodes are tokens: the common start of all prompts, then what is left of each prompt, then the completions. A node attends to its
ancestors alone, by a mask, and has the position that it would have in its own row. So one forward pass of N nodes gives exactly the
log-probs of all rows, and the gradient of a shared node is the sum over everything that follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.train.prefix import common_length

MASKED_ATTENTION = ("sdpa", "eager")
"""Implementations that take a mask of their own shape."""


@dataclass(frozen=True, slots=True)
class Tree:
    """tokens_1N, positions_1N: the nodes; mask_11NN: True where a node (row) attends to another (column).

    predictors_K: the nodes whose logits are needed; place_M: for each completion token, row by row, which of the K predicts it.
    """

    tokens_1N: Tensor
    positions_1N: Tensor
    mask_11NN: Tensor
    predictors_K: Tensor
    place_M: Tensor

    def logits(self, model: Any, dtype: torch.dtype) -> Tensor:
        """Logits (K, V) of the predictors, by one forward pass."""
        lowest = torch.finfo(dtype).min
        mask_11NN = torch.zeros(self.mask_11NN.shape, dtype=dtype, device=self.mask_11NN.device).masked_fill_(~self.mask_11NN, lowest)
        out = model(
            input_ids=self.tokens_1N,
            position_ids=self.positions_1N,
            attention_mask=mask_11NN,
            use_cache=False,
            logits_to_keep=self.predictors_K,
        )
        logits_KV: Tensor = out.logits[0]
        return logits_KV


def plant(prompts: Sequence[Sequence[int]], owners: Sequence[int], completions: Sequence[Sequence[int]], *, device: torch.device) -> Tree:
    """The tree of rows: completion i follows prompt `owners[i]`. The last token of a row predicts nothing and is no node."""
    start = common_length(prompts)
    tokens: list[int] = list(prompts[0][:start])
    positions = list(range(start))
    segments = [0] * start
    parents = [0]
    last: list[int] = []  # the last node of each prompt
    for prompt in prompts:
        _grow(tokens, positions, segments, prompt[start:], at=start, segment=len(parents))
        parents.append(0)
        last.append(len(tokens) - 1)
    place: list[int] = []  # of each completion token, the node that predicts it
    for owner, completion in zip(owners, completions, strict=True):
        if not completion:
            continue
        first = len(tokens)
        _grow(tokens, positions, segments, completion[:-1], at=len(prompts[owner]), segment=len(parents))
        parents.append(1 + owner)
        place += [last[owner], *range(first, first + len(completion) - 1)]
    segment_N, position_N = torch.tensor(segments, device=device), torch.tensor(positions, device=device)
    above_SS = _ancestors(parents).to(device)
    mask_NN = above_SS[segment_N][:, segment_N] & (position_N <= position_N.unsqueeze(1))
    predictors = sorted({*last, *place})
    rank = {node: i for i, node in enumerate(predictors)}
    return Tree(
        tokens_1N=torch.tensor([tokens], device=device),
        positions_1N=position_N.unsqueeze(0),
        mask_11NN=mask_NN[None, None],
        predictors_K=torch.tensor(predictors, device=device),
        place_M=torch.tensor([rank[node] for node in place], dtype=torch.long, device=device),
    )


def size(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> int:
    """Nodes of the tree, at most."""
    start = common_length(prompts)
    return start + sum(len(p) - start for p in prompts) + sum(map(len, completions))


def can_be_masked(model: Any) -> bool:
    """Whether every layer of the model attends to everything before it, through an attention that takes our mask."""
    config = model.config
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return config._attn_implementation in MASKED_ATTENTION and layers == {"full_attention"} and window is None


def _grow(tokens: list[int], positions: list[int], segments: list[int], new: Sequence[int], *, at: int, segment: int) -> None:
    tokens += new
    positions += range(at, at + len(new))
    segments += [segment] * len(new)


def _ancestors(parents: Sequence[int]) -> Tensor:
    """(S, S): True where the column's segment is the row's own or above it. A parent comes before its children."""
    above_SS = torch.eye(len(parents), dtype=torch.bool)
    for segment, parent in enumerate(parents):
        above_SS[segment] |= above_SS[parent]
    return above_SS
