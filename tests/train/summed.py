"""Sums of tensors over processes, checked in each of them."""

from __future__ import annotations

import resource

import torch

from grpo_core.train.ranks import Ranks

BUCKET = 8 * 2**20
"""Numbers in a bucket."""
SHAPES = ((7,), (), (0, 3), (BUCKET - 9,), (5, 11), (3, BUCKET // 2 + 1))


def tensors(rank: int) -> list[torch.Tensor]:
    """Of several types, one of them not contiguous; the largest takes two buckets."""
    generator = torch.Generator().manual_seed(rank)
    made = [torch.randn(shape, generator=generator) for shape in SHAPES]
    made += [tensor.double() * 1.1 for tensor in made[:2]]
    return [*made, made[4].bfloat16(), torch.randn((64, 32), generator=generator).T]


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def check_sums(ranks: Ranks) -> float:
    """Return how many MiB the sum of 40 million numbers took, at the peak."""
    ranks.add([torch.ones(1000)])
    gradients = [torch.ones(10**6) for _ in range(40)]
    before = peak_mb()
    ranks.add(gradients)
    taken = peak_mb() - before
    assert all(bool((gradient == ranks.size).all()) for gradient in gradients)
    found = tensors(ranks.rank)
    ranks.add(found)
    parts = [tensors(rank) for rank in range(ranks.size)]
    for tensor, *each in zip(found, *parts, strict=True):
        total = torch.stack([part.double() for part in each]).sum(dim=0)
        assert torch.equal(tensor, total.to(tensor.dtype)), tensor.shape
    return taken
