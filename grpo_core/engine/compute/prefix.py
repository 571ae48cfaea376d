"""Keep a cache that several sequences continue, and compute what they share once.

A line is a sequence of tokens that is being continued; completions that are equal so far share one.
Lines of one prompt form a tree, where each attends to its own nodes by a mask (see `tree`), so
nothing is copied where they diverge. Several trees stand side by side, with as many places for
lines as the largest tree has. When most places or nodes are unused, the lines are rearranged, in
the end with a cache of its own for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute import attention
from grpo_core.engine.compute.kv import (
    accepts,
    cache_argument,
    drop_columns,
    filled_layers,
    growing_cache,
    join_caches,
)
from grpo_core.engine.compute.logprob import head_at
from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.compute.rows import pad_left
from grpo_core.engine.compute.tree import (
    common_length,
    count_weights,
    pack_trees,
    pair_cost,
    size,
)
from grpo_core.engine.compute.tuning import CPU, Tuning
from grpo_core.engine.compute.upload import upload

MOST_NODES = 4
"""Prompts are computed as one tree if it has at most this many times the nodes of the longest
prompt."""

READ = 600
"""Number of tokens whose keys and values take as long to read as a line takes to go through the
weights (SmolLM2-135M on 2 cores)."""

PAYS = 8 / 7
"""Factor by which each step has to become cheaper for a rearrangement, which copies everything."""


class PrefixLines:
    """Hold K lines, their shared cache, and the logits of their next tokens."""

    joinable = True
    """Other lines can be added by `join`."""
    merges_equal = True
    """Completions that are equal so far may share a line."""

    def __init__(
        self,
        model: Any,
        cache: Any,
        logits_KV: Tensor,
        seen_KN: Tensor,
        positions_PN: Tensor,
        tree_K: list[int],
        masking: Masking,
        dtype: torch.dtype,
        tuning: Tuning = CPU,
    ) -> None:
        """Wrap a filled cache.

        Args:
            model: the model that filled the cache.
            cache: keys and values of all nodes.
            logits_KV: logits after the last token of each line.
            seen_KN: True where a node of its tree belongs to a line.
            positions_PN: position of each node of the P trees.
            tree_K: index of the tree that each line is in.
            masking: how the model takes masks.
            dtype: the type that the model computes in.
            tuning: costs of the device.
        """
        self.logits_KV = logits_KV
        """Logits after the last token of each line."""
        self._pair, self._read = pair_cost(model), _read_tokens(model, cache, tuning)
        self.cache, self.masking, self.dtype = cache, masking, dtype
        self._seen_KN, self._positions_PN, self._tree_K = seen_KN, positions_PN, tree_K
        self._lengths_K: list[int] = seen_KN.sum(dim=1).tolist()  # tokens of each line
        self._prompt_K = list(range(len(tree_K)))  # prompt of each line
        self._nodes = dict(enumerate(self._lengths_K))  # nodes that each prompt has had in all
        self._trees = max(tree_K) + 1

    @classmethod
    def prefill(
        cls,
        model: Any,
        prompts: Sequence[Sequence[int]],
        *,
        pad_id: int,
        masking: Masking,
        dtype: torch.dtype,
        device: torch.device,
        tuning: Tuning = CPU,
    ) -> PrefixLines:
        """Compute one line for each of `prompts`, which have to be distinct and not empty.

        Args:
            model: the model that computes.
            prompts: the prompts.
            pad_id: token used as padding.
            masking: how the model takes masks.
            dtype: the type that the model computes in.
            device: where the tensors are made.
            tuning: costs of the device.
        """
        cache, more = growing_cache(model), (masking, dtype, tuning)
        if size(prompts, ()) <= MOST_NODES * max(map(len, prompts)):
            # As a single tree; a completion of one token adds no node.
            tree = pack_trees(prompts, [(0,)] * len(prompts), device=device)
            place_K = upload(tree.places, device)
            logits_KV = tree.forward(model, dtype, masking=masking, cache=cache)[place_K]
            seen_KN = tree.mask_BNN[0, tree.predictors_K[place_K]]
            trees = [0] * len(prompts)
            return cls(model, cache, logits_KV, seen_KN, tree.positions_BN, trees, *more)
        count, start = len(prompts), common_length(prompts)
        if start:
            common = pack_trees([prompts[0][:start]], [(0,)], device=device)
            common.forward(model, dtype, masking=masking, cache=cache)
            cache.batch_select_indices(torch.zeros(count, dtype=torch.long, device=device))
        tokens_KS, real_KS = pad_left([prompt[start:] for prompt in prompts], pad_id, device)
        width = tokens_KS.shape[1]
        rest_KS = start + (real_KS.cumsum(dim=1) - 1).clamp(min=0)
        common_KS = torch.arange(start, device=device).expand(count, -1)
        positions_KN = torch.cat([common_KS, rest_KS], dim=1)
        seen_KN = torch.nn.functional.pad(real_KS, (start, 0), value=1).bool()
        causal_SN = torch.ones(width, start + width, dtype=torch.bool, device=device).tril(start)
        # Padding has to attend to something: it attends to itself.
        itself_SN = causal_SN & ~causal_SN.tril(start - 1)
        out = model(
            input_ids=tokens_KS,
            attention_mask=masking.masks(
                model, causal_SN & seen_KN[:, None] | itself_SN, rest_KS, positions_KN, dtype
            ),
            position_ids=rest_KS,
            **cache_argument(model, cache),
            use_cache=True,
            **({"logits_to_keep": 1} if accepts(model, "logits_to_keep") else {}),
        )
        trees = list(range(count))
        return cls(model, cache, out.logits[:, -1], seen_KN, positions_KN, trees, *more)

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the lines by new ones, by one forward pass.

        Args:
            model: the model that computes.
            parents: the line that each new line continues; lines that are no parent are dropped.
            tokens: the token that each new line adds.
        """
        device = self._seen_KN.device
        self._seen_KN = self._seen_KN[upload(parents, device)]
        self._tree_K, self._prompt_K, self._lengths_K = (
            [values[parent] for parent in parents]
            for values in (self._tree_K, self._prompt_K, self._lengths_K)
        )
        self._rearrange_if_cheaper()
        place_K, width = self._places()
        trees_K, places_K, tokens_K, lengths_K = upload(
            [self._tree_K, place_K, tokens, self._lengths_K], device
        )
        own_KW = places_K[:, None] == torch.arange(width, device=device)
        self._seen_KN = torch.cat([self._seen_KN, own_KW], dim=1)
        nodes = self._seen_KN.shape[1]
        # Places without a line attend to themselves; what is computed there is not used.
        mask_PWN = torch.zeros(self._trees, width, nodes, dtype=torch.bool, device=device)
        mask_PWN[:, :, nodes - width :] = torch.eye(width, dtype=torch.bool, device=device)
        tokens_PW = torch.zeros(self._trees, width, dtype=torch.long, device=device)
        positions_PW = torch.zeros_like(tokens_PW)
        mask_PWN[trees_K, places_K] = self._seen_KN
        tokens_PW[trees_K, places_K] = tokens_K
        positions_PW[trees_K, places_K] = lengths_K
        self._positions_PN = torch.cat([self._positions_PN, positions_PW], dim=1)
        mask = self.masking.masks(model, mask_PWN, positions_PW, self._positions_PN, self.dtype)
        with head_at(model, trees_K * width + places_K, bare=False):
            out = model(
                input_ids=tokens_PW,
                position_ids=positions_PW,
                attention_mask=mask,
                **cache_argument(model, self.cache),
                use_cache=True,
                **attention.arguments(model, attention.WHOLE),
            )
        self.logits_KV = out.logits[0]
        self._lengths_K = [length + 1 for length in self._lengths_K]
        self._nodes = {
            prompt: self._nodes[prompt] + count for prompt, count in Counter(self._prompt_K).items()
        }

    def join(self, more: PrefixLines) -> None:
        """Append other lines behind the present ones."""
        widest = max(lines._seen_KN.shape[1] for lines in (self, more))
        if (self._trees + more._trees) * widest > len(self._lengths_K + more._lengths_K) * max(
            self._lengths_K + more._lengths_K
        ):
            # Padded to the widest tree they would take more memory than one cache per line.
            for lines in (self, more):
                lines._arrange(list(range(len(lines._tree_K))))
        join_caches(self.cache, more.cache)
        prompt_offset, width = (
            max(self._nodes) + 1,
            max(self._seen_KN.shape[1], more._seen_KN.shape[1]),
        )
        for name in ("_seen_KN", "_positions_PN"):
            both = (getattr(lines, name) for lines in (self, more))
            padded = [torch.nn.functional.pad(one, (width - one.shape[1], 0)) for one in both]
            setattr(self, name, torch.cat(padded))
        self.logits_KV = torch.cat([self.logits_KV, more.logits_KV])
        self._tree_K += [self._trees + tree for tree in more._tree_K]
        self._prompt_K += [prompt_offset + prompt for prompt in more._prompt_K]
        self._nodes |= {prompt_offset + prompt: count for prompt, count in more._nodes.items()}
        self._lengths_K += more._lengths_K
        self._trees += more._trees
        # Columns of long lines that have ended.
        if empty := int(self._seen_KN.any(dim=0).int().argmax()):
            drop_columns(self.cache, empty)
            self._seen_KN = self._seen_KN[:, empty:]
            self._positions_PN = self._positions_PN[:, empty:]

    def separate(self, parents: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        """Give each of the lines `parents`, which may repeat, a cache of its own.

        The lines can be extended no more: their cache is now that of these sequences.

        Returns:
            Which columns of the cache belong to each sequence (K, N), the positions of the columns
            (K, N), and the number of tokens of each sequence.
        """
        self._arrange(list(range(len(self._tree_K))))
        parent_K = upload(parents, self._seen_KN.device)
        self.cache.batch_select_indices(parent_K)
        lengths_K = [self._lengths_K[parent] for parent in parents]
        return self._seen_KN[parent_K], self._positions_PN[parent_K], lengths_K

    def _places(self) -> tuple[list[int], int]:
        """Return the place of each line in its tree, and the places of the largest tree."""
        taken: Counter[int] = Counter()
        places = []
        for tree in self._tree_K:
            places.append(taken[tree])
            taken[tree] += 1
        return places, max(taken.values())

    def _rearrange_if_cheaper(self) -> None:
        """Rearrange the lines, each alone or all of a prompt in one tree, if that pays."""
        alone = list(range(len(self._tree_K)))
        lines = Counter(self._prompt_K)
        tree_of = {prompt: number for number, prompt in enumerate(lines)}
        most_nodes = max(self._nodes[prompt] for prompt in lines)
        costs = [
            (self._cost(len(alone), 1, max(self._lengths_K)), alone),
            (
                self._cost(len(lines), max(lines.values()), most_nodes),
                [tree_of[prompt] for prompt in self._prompt_K],
            ),
        ]
        least, chosen = min(costs, key=lambda pair: pair[0])
        if least * PAYS < self._cost(self._trees, self._places()[1], self._seen_KN.shape[1]):
            self._arrange(chosen)

    def _cost(self, trees: int, width: int, nodes: int) -> float:
        """Return the cost of a step, in units of one line that goes through the weights."""
        return trees * (width * (1 + self._pair * nodes) + nodes / self._read)

    def _arrange(self, tree_K: list[int]) -> None:
        """Move line k into tree tree_K[k]; drop the nodes that no line of a tree has."""
        device = self._seen_KN.device
        sources = dict(zip(tree_K, self._tree_K, strict=True))
        source_P = torch.tensor([sources[tree] for tree in range(len(sources))], device=device)
        trees_K = torch.tensor(tree_K, device=device)
        shape = len(sources), self._seen_KN.shape[1]
        seen_PN = torch.zeros(shape, dtype=torch.int32, device=device)
        seen_PN = seen_PN.index_add_(0, trees_K, self._seen_KN.int()).clamp(max=1)
        counts = seen_PN.sum(dim=1).tolist()
        # A node comes after its ancestors, so the nodes of a line in ascending order are its
        # tokens; the places that remain may hold any node.
        order_PS = seen_PN.sort(dim=1, stable=True).indices[:, -max(counts) :]
        for layer in filled_layers(self.cache):
            layer.keys = layer.keys[source_P[:, None], :, order_PS].transpose(1, 2)
            layer.values = layer.values[source_P[:, None], :, order_PS].transpose(1, 2)
        self._seen_KN = self._seen_KN.gather(1, order_PS[trees_K])
        self._positions_PN = self._positions_PN[source_P[:, None], order_PS]
        self._tree_K, self._trees = tree_K, len(sources)
        # A line of its own shares nothing any more.
        self._prompt_K, self._nodes = list(tree_K), dict(enumerate(counts))


def _read_tokens(model: Any, cache: Any, tuning: Tuning) -> float:
    """Return the number of tokens that take as long to read as a line takes (see `READ`).

    A line takes 2 operations for each weight.
    """
    if tuning.operations_per_byte is None:
        return READ
    token_bytes: int = sum(
        states[0, :, 0].nbytes
        for layer in filled_layers(cache)
        for states in (layer.keys, layer.values)
    )
    return float(2 * count_weights(model) / (tuning.operations_per_byte * token_bytes))
