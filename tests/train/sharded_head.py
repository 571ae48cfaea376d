"""What two processes compute together: python sharded_head.py some|all.

Sums of tensors, and log-probs and gradients of a model that they share, with logits in chunks, against those of a whole model.
The first line is how many MiB the sum of 40 million numbers took.
"""

import copy
import random
import resource
import sys
from typing import Any

import torch
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor

from grpo_core.config.settings import LoraConfig
from grpo_core.engine.compute.batch import MicroBatch, Row
from grpo_core.engine.compute.logprob import COPIES
from grpo_core.engine.compute.recompute import recompute
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.sharding import gather_full
from grpo_core.engine.policy.ways import Training
from grpo_core.engine.ranks import Ranks
from grpo_core.protocol.types import Segment
from grpo_core.train.update.updater import EMPTY_ROW

ROWS_AT_A_TIME = 3
"""Rows of logits that fit into a chunk."""
BUCKET = 8 * 2**20
"""Numbers in a bucket."""
SHAPES = ((7,), (), (0, 3), (BUCKET - 9,), (5, 11), (3, BUCKET // 2 + 1))


def tensors(rank: int) -> list[Tensor]:
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


def make_policy(
    *, tied=True, adapter=False, copied=False, recomputed=False, training=Training.TREES
) -> Policy:
    model: Any = tiny_model()
    vocabulary = model.config.vocab_size
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(1.2 * model.lm_head.weight.detach())
    if adapter:
        model = add_adapter(model, LoraConfig(), ModelSource("tiny", "tiny")).double()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.3, generator=generator)
    reference = copy.deepcopy(model).requires_grad_(False) if copied else None
    if copied:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * parameter.roll(1, 0)
    if recomputed:
        recompute(model)
    most = ROWS_AT_A_TIME * COPIES * 8 * vocabulary
    policy = Policy(model, tiny_tokenizer(), reference=reference, logits_bytes=most)
    policy.training = training
    return policy


def make_batches(policy: Policy, rank: int) -> list[MicroBatch]:
    """Each process has rows of its own; those of one are fewer than a chunk holds."""
    rng = random.Random(rank)
    rows = []
    for length in (9, 4, 0, 11) if rank == 0 else (1,):
        tokens = tuple(rng.randrange(4, 100) for _ in range(length))
        segment = Segment((5, 6, 7), tokens, (0.0,) * length, (1,) * length)
        rows.append(Row(segment, 0.0, 0.0))
    return list(policy.micro_batches(rows, max_tokens=1000, dtype=torch.float64))


def computed(
    policy: Policy, micro: MicroBatch, *, entropy: bool, compared: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs (and KLs) at the tokens of the micro-batch, and the loss of an update."""
    states = policy.reference_states(micro) if compared else None
    values = policy.token_values(micro, states, temperature=0.7, entropy=entropy, kl=compared)
    real_BT = micro.real_BT.bool()
    loss = (values.logprob**2)[real_BT].sum()
    found = [values.logprob[real_BT]]
    if entropy:
        loss = loss + values.entropy[real_BT].sum()
    if values.kl is not None:
        found.append(values.kl[real_BT])
        loss = loss + found[1].sum()
    return torch.cat(found).detach(), loss


def check(ranks: Ranks, *, entropy: bool, compared: bool = False, **kind: Any) -> None:
    plain, shared = make_policy(**kind), make_policy(**kind)
    shared.shard()
    assert shared.logits_bytes == plain.logits_bytes > 0, kind
    vocabulary, counts = shared.model.config.vocab_size, []

    def count(_: Any, inputs: Any, output: Tensor) -> None:
        if output.shape[-1] == vocabulary:
            counts.append(len(output))

    shared.model.get_output_embeddings().register_forward_hook(count)
    micros = make_batches(shared, ranks.rank)
    most = max(ranks.gather_values(len(micros)))
    assert most == (4 if kind.get("training") is Training.ALONE else 1)
    empty = shared.micro_batches([EMPTY_ROW], max_tokens=1000, dtype=torch.float64)
    micros += list(empty) * (most - len(micros))
    for step in range(3):
        for policy in (plain, shared):
            policy.model.zero_grad()
        with torch.no_grad():
            computed(shared, micros[0], entropy=entropy, compared=compared)
        if step:  # as before each update
            with shared.whole():
                for _ in range(ranks.rank + 1):
                    shared.model(torch.tensor([[5, 6, 7]]))
        counts.clear()
        for micro in micros:
            expected, loss = computed(plain, micro, entropy=entropy, compared=compared)
            loss.backward()
            found, loss = computed(shared, micro, entropy=entropy, compared=compared)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
            loss.backward()
        compare(plain, shared, ranks)
        # A frozen head computes without its module unless there is a gradient through the entropy.
        assert bool(counts) == (entropy or not kind.get("adapter"))
        assert all(count <= ROWS_AT_A_TIME for count in counts)
        with torch.no_grad():
            for policy in (plain, shared):
                for _, parameter in policy.trainable():
                    parameter -= 1e-3 * parameter.grad


def compare(plain: Policy, shared: Policy, ranks: Ranks) -> None:
    """Compare gradients; those of sharded weights are means over the processes."""
    expected = [parameter.grad for _, parameter in plain.trainable()]
    ranks.add(expected)
    for (name, parameter), total in zip(shared.trainable(), expected, strict=True):
        total /= ranks.size
        assert total.any(), name
        torch.testing.assert_close(gather_full(parameter.grad), total, rtol=1e-8, atol=1e-9)


def main() -> None:
    ranks = Ranks(meeting_seconds=60, on_cpu=True)
    print(check_sums(ranks), flush=True)
    check(ranks, entropy=True, tied=False)
    check(ranks, entropy=False, adapter=True)
    check(ranks, entropy=False, adapter=True, compared=True)
    check(ranks, entropy=False, copied=True, tied=False, compared=True)
    check(ranks, entropy=False, training=Training.ALONE)
    if sys.argv[1] == "all":
        check(ranks, entropy=False)
        check(ranks, entropy=True, recomputed=True)
        check(ranks, entropy=True, adapter=True)
        check(ranks, entropy=True, copied=True, recomputed=True, compared=True)
        check(ranks, entropy=False, training=Training.PADDED)


if __name__ == "__main__":
    main()
