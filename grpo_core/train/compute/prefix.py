"""For the sampler: a cache that several sequences continue, line by line, and in which what they share is computed and kept once.

A line is what has been said so far; completions that have said the same share one. Lines of one prompt stand in a tree, where each looks
at its own nodes through a mask (see `tree`), so nothing is copied when they part. Several trees stand side by side, with as many places
for lines as the fullest has; when most places or nodes belong to nobody, the lines are set anew, at last each with a cache of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.train.compute import attention
from grpo_core.train.compute.kv import cache_argument, growing_cache, joined, keeps_everything, trim
from grpo_core.train.compute.logprob import head_at
from grpo_core.train.compute.tree import additive, common_length, pair_cost, plant, size

MOST_NODES = 4
"""Prompts are computed as one tree if that has at most so many times the nodes of the longest."""

READ = 600
"""Reading the keys and values of so many tokens takes as long as a line's way through the weights (SmolLM2-135M on 2 cores)."""

PAYS = 8 / 7
"""Setting the lines anew copies everything, so each step has to gain that much by it."""


class Lines:
    """logits_KV: of the last token of each of K lines."""

    logits_KV: Tensor

    def __init__(
        self,
        model: Any,
        cache: Any,
        seen_KN: Tensor,
        tree_K: list[int],
        lengths_K: list[int],
        dtype: torch.dtype | None,
    ) -> None:
        """seen_KN: which nodes of its tree a line has said; tree_K: in which it stands; dtype: what the model computes in, None where
        it can be given no mask for each line."""
        self._pair = pair_cost(model)
        self._cache, self._dtype = cache, dtype
        self._seen_KN, self._tree_K, self._lengths_K = seen_KN, tree_K, lengths_K
        self._prompt_K = list(range(len(tree_K)))  # of each line
        self._nodes = dict(enumerate(lengths_K))  # of all lines that a prompt ever had
        self._trees = max(tree_K) + 1

    @classmethod
    def prefill(
        cls,
        model: Any,
        prompts: Sequence[Sequence[int]],
        *,
        pad_id: int,
        dtype: torch.dtype | None,
        device: torch.device,
    ) -> Lines:
        """One line for each of `prompts` (distinct, none empty)."""
        if dtype is not None and size(prompts, ()) <= MOST_NODES * max(map(len, prompts)):
            return cls._prefill_tree(model, prompts, dtype, device)
        start = common_length(prompts)
        cache, shared_mask = (
            growing_cache(model),
            torch.ones(len(prompts), start, dtype=torch.long, device=device),
        )
        if start:
            shared = torch.tensor([list(prompts[0][:start])], device=device)
            model(
                input_ids=shared, **cache_argument(model, cache), use_cache=True, logits_to_keep=1
            )
            cache.batch_select_indices(torch.zeros(len(prompts), dtype=torch.long, device=device))
        rest = [list(prompt[start:]) for prompt in prompts]
        width = max(map(len, rest))
        tokens_KS = torch.tensor([[pad_id] * (width - len(r)) + r for r in rest], device=device)
        mask_KS = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rest], device=device)
        positions_KS = start + (mask_KS.cumsum(dim=1) - 1).clamp(min=0)
        mask_KS = torch.cat([shared_mask, mask_KS], dim=1)
        out = model(
            input_ids=tokens_KS,
            attention_mask=mask_KS,
            position_ids=positions_KS,
            **cache_argument(model, cache),
            use_cache=True,
            logits_to_keep=1,
        )
        lines = cls(
            model,
            cache,
            mask_KS.bool(),
            list(range(len(prompts))),
            [len(prompt) for prompt in prompts],
            dtype,
        )
        lines.logits_KV = out.logits[:, -1]
        return lines

    @classmethod
    def _prefill_tree(
        cls, model: Any, prompts: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> Lines:
        cache = growing_cache(model)
        tree = plant(
            prompts, [(0,)] * len(prompts), device=device
        )  # the token that will follow is no node
        logits_KV = tree.through(model, dtype, cache=cache)
        seen_KN = tree.mask_B1NN[0, 0, tree.predictors_K[tree.place_M]]
        lines = cls(
            model, cache, seen_KN, [0] * len(prompts), [len(prompt) for prompt in prompts], dtype
        )
        lines.logits_KV = logits_KV[tree.place_M]
        return lines

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """New lines: each continues the line `parents[k]` with the token `tokens[k]`. Others have ended."""
        device = self._seen_KN.device
        self._seen_KN = self._seen_KN[torch.tensor(parents, device=device)]
        self._tree_K, self._prompt_K, self._lengths_K = (
            [values[parent] for parent in parents]
            for values in (self._tree_K, self._prompt_K, self._lengths_K)
        )
        self._settle()
        place_K, width = self._places()
        trees_K, places_K = (
            torch.tensor(self._tree_K, device=device),
            torch.tensor(place_K, device=device),
        )
        own_KW = torch.nn.functional.one_hot(places_K, width).bool()
        self._seen_KN = torch.cat([self._seen_KN, own_KW], dim=1)
        nodes = self._seen_KN.shape[1]
        # Places without a line see themselves, and what is computed there is nobody's.
        mask_PWN = torch.zeros(self._trees, width, nodes, dtype=torch.bool, device=device)
        mask_PWN[:, :, nodes - width :] = torch.eye(width, dtype=torch.bool, device=device)
        tokens_PW = torch.zeros(self._trees, width, dtype=torch.long, device=device)
        positions_PW = torch.zeros_like(tokens_PW)
        mask_PWN[trees_K, places_K] = self._seen_KN
        tokens_PW[trees_K, places_K] = torch.tensor(list(tokens), device=device)
        positions_PW[trees_K, places_K] = torch.tensor(self._lengths_K, device=device)
        masked = (
            mask_PWN[:, 0].long()
            if self._dtype is None
            else additive(mask_PWN.unsqueeze(1), self._dtype)
        )
        with head_at(model, trees_K * width + places_K, bare=False):
            out = model(
                input_ids=tokens_PW,
                position_ids=positions_PW,
                attention_mask=masked,
                **cache_argument(model, self._cache),
                use_cache=True,
                **attention.arguments(model, attention.WHOLE),
            )
        self.logits_KV = out.logits[0]
        self._lengths_K = [length + 1 for length in self._lengths_K]
        self._nodes = {
            prompt: self._nodes[prompt] + count for prompt, count in Counter(self._prompt_K).items()
        }

    @property
    def joinable(self) -> bool:
        return keeps_everything(self._cache)

    def join(self, more: Lines) -> None:
        """Take in other lines, behind those that are there."""
        widest = max(lines._seen_KN.shape[1] for lines in (self, more))
        if (self._trees + more._trees) * widest > len(self._lengths_K + more._lengths_K) * max(
            self._lengths_K + more._lengths_K
        ):
            for lines in (
                self,
                more,
            ):  # padded to the widest tree they would take more memory than a cache for each line
                lines._set(list(range(len(lines._tree_K))))
        joined(self._cache, more._cache)
        known, width = max(self._nodes) + 1, max(self._seen_KN.shape[1], more._seen_KN.shape[1])
        seen = [
            torch.nn.functional.pad(lines._seen_KN, (width - lines._seen_KN.shape[1], 0))
            for lines in (self, more)
        ]
        self._seen_KN, self.logits_KV = torch.cat(seen), torch.cat([self.logits_KV, more.logits_KV])
        self._tree_K += [self._trees + tree for tree in more._tree_K]
        self._prompt_K += [known + prompt for prompt in more._prompt_K]
        self._nodes |= {known + prompt: count for prompt, count in more._nodes.items()}
        self._lengths_K += more._lengths_K
        self._trees += more._trees
        if empty := int(
            self._seen_KN.any(dim=0).int().argmax()
        ):  # columns of long lines that have ended
            trim(self._cache, empty)
            self._seen_KN = self._seen_KN[:, empty:]

    def _places(self) -> tuple[list[int], int]:
        """The place of each line in its tree, and how many there are in the fullest."""
        taken: Counter[int] = Counter()
        places = []
        for tree in self._tree_K:
            places.append(taken[tree])
            taken[tree] += 1
        return places, max(taken.values())

    def _settle(self) -> None:
        """Set the lines anew, each alone or all of a prompt in a tree, if that pays."""
        alone, by_prompt = list(range(len(self._tree_K))), _numbered(self._prompt_K)
        if self._dtype is None:
            width = self._places()[1]
            if width > 1 or self._cost(len(alone), 1, 0) * PAYS < self._cost(self._trees, 1, 0):
                self._set(alone)
            return
        lines = Counter(by_prompt)
        costs = [
            (self._cost(len(alone), 1, max(self._lengths_K)), alone),
            (
                self._cost(
                    len(lines),
                    max(lines.values()),
                    max(self._nodes[prompt] for prompt in self._prompt_K),
                ),
                by_prompt,
            ),
        ]
        least, chosen = min(costs, key=lambda pair: pair[0])
        if least * PAYS < self._cost(self._trees, self._places()[1], self._seen_KN.shape[1]):
            self._set(chosen)

    def _cost(self, trees: int, width: int, nodes: int) -> float:
        """Of a step, in lines that go through the weights."""
        return trees * (width * (1 + self._pair * nodes) + nodes / READ)

    def _set(self, tree_K: list[int]) -> None:
        """Let each line stand in the tree `tree_K` from now on; of each tree, what none of its lines has said is dropped."""
        device = self._seen_KN.device
        sources = dict(zip(tree_K, self._tree_K, strict=True))
        source_P = torch.tensor([sources[tree] for tree in range(len(sources))], device=device)
        counts = [self._seen_KN.shape[1]] * len(sources)
        if not keeps_everything(self._cache):
            self._cache.batch_select_indices(source_P)
        else:
            trees_K = torch.tensor(tree_K, device=device)
            seen_PN = torch.zeros(len(sources), counts[0], dtype=torch.int32, device=device)
            seen_PN = seen_PN.index_add_(0, trees_K, self._seen_KN.int()).clamp(max=1)
            counts = seen_PN.sum(dim=1).tolist()
            # A node comes after its ancestors, so those of a line in rising order are its tokens; what is left over may be any node.
            order_PS = seen_PN.sort(dim=1, stable=True).indices[:, -max(counts) :]
            for layer in self._cache.layers:
                layer.keys = layer.keys[source_P[:, None], :, order_PS].transpose(1, 2)
                layer.values = layer.values[source_P[:, None], :, order_PS].transpose(1, 2)
            self._seen_KN = self._seen_KN.gather(1, order_PS[trees_K])
        self._tree_K, self._trees = tree_K, len(sources)
        self._prompt_K, self._nodes = (
            list(tree_K),
            dict(enumerate(counts)),
        )  # what stands alone has nothing to share any more


def _numbered(values: Sequence[int]) -> list[int]:
    """The same, by the order in which they come first: 0, 1, 2, ..."""
    number = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return [number[value] for value in values]
