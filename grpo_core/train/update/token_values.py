"""Keep the importance ratio and the entropy of each token of an update, for the log."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from grpo_core.engine.compute.batch import MicroBatch
from grpo_core.engine.ranks import Ranks

Values = tuple[list[float], list[float]]
"""Ratios and entropies of the tokens that the policy wrote in one segment."""


class TokenValuesKept:
    """Holds what the last pass over each segment saw, on the CPU."""

    def __init__(self) -> None:
        self._by_source: dict[tuple[int, int, int], Values] = {}

    @torch.no_grad()
    def add(self, micro: MicroBatch, log_ratio_BT: Tensor, entropy_BT: Tensor) -> None:
        """Take the values of a micro-batch; those of an earlier pass are replaced."""
        values_2BT = torch.stack((log_ratio_BT.exp(), entropy_BT)).cpu()
        trainable_BT = micro.trainable_BT.cpu() != 0
        for b, row in enumerate(micro.rows):
            if row.source is not None:
                ratios, entropies = values_2BT[:, b, trainable_BT[b]].tolist()
                self._by_source[row.source] = (ratios, entropies)

    def gather(self, ranks: Ranks) -> None:
        """Take the values that the other processes kept, too."""
        for values in ranks.gather_values(self._by_source):
            self._by_source |= values

    def by_prompt(self) -> Iterator[tuple[int, dict[tuple[int, int], Values]]]:
        """Yield the number of each prompt with the values of its attempts' segments."""
        prompts: dict[int, dict[tuple[int, int], Values]] = {}
        for (prompt, attempt, segment), values in sorted(self._by_source.items()):
            prompts.setdefault(prompt, {})[attempt, segment] = values
        yield from prompts.items()
