"""Compute the log-probs of the tokens of a text, for clients that compare given answers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from grpo_core.engine.compute.values import tempered
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.ways import Text
from grpo_core.protocol.sampler import Alternatives

_PART = 256
"""So many distributions are normalised at a time."""


async def score_tokens(
    policy: Policy, token_ids: Sequence[int], *, temperature: float, alternatives: int
) -> tuple[tuple[float, ...], tuple[Alternatives, ...]]:
    """Return the log-probs (T-1,) of all tokens but the first, and the most likely ones there.

    They are those of the full distribution at the temperature, by one pass of the model, which is
    computed in the policy's thread once the sampler has ended its batch.

    Args:
        policy: the policy.
        token_ids: the tokens (T,).
        temperature: the temperature; 0 stands for 1.
        alternatives: how many of the most likely tokens are returned for each place.
    """
    if len(token_ids) < 2:
        return (), ()
    text = Text(tuple(token_ids[:1]), tuple(token_ids[1:]))

    def compute() -> tuple[tuple[float, ...], tuple[Alternatives, ...]]:
        with policy.decoding(copied=False), policy.autocast(), policy.merged():
            return _read(policy.plain_logits(text), text.completion, temperature, alternatives)

    return await policy.thread.run(compute)


def _read(
    logits_TV: Tensor, tokens: Sequence[int], temperature: float, count: int
) -> tuple[tuple[float, ...], tuple[Alternatives, ...]]:
    """Return the log-probs of tokens (T,), and the `count` most likely ones at each place."""
    logprobs: list[float] = []
    best: list[Alternatives] = []
    for start in range(0, len(tokens), _PART):
        part_TV = tempered(logits_TV[start : start + _PART], temperature).log_softmax(dim=-1)
        chosen = part_TV.new_tensor(tokens[start : start + _PART]).long()
        logprobs += part_TV.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).tolist()
        best_TN, token_TN = part_TV.topk(min(count, part_TV.shape[-1]), dim=-1)
        best += [
            tuple(zip(ids, values, strict=True))
            for ids, values in zip(token_TN.tolist(), best_TN.tolist(), strict=True)
        ]
    return tuple(logprobs), tuple(best)
