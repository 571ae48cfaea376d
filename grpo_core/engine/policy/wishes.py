"""Do what the clients of a server ask for besides: penalties, alternatives, tokens as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from grpo_core.engine.compute.values import tempered
from grpo_core.engine.policy.batch import RequestBatch
from grpo_core.protocol.sampler import Alternatives, Extras


class DrawnSoFar(Protocol):
    """Describe the tokens that were drawn for a request so far."""

    token_ids: list[int]
    logprobs: list[float]
    alternatives: list[Alternatives]


class Wishes:
    """Hold the extras of the requests of a batch.

    Args:
        batch: the requests.
    """

    def __init__(self, batch: RequestBatch) -> None:
        self._batch = batch
        self._extras = {i: asked.extras for i, asked in enumerate(batch.requests) if asked.extras}
        self._penalties = {
            i: Penalties(extras, batch.requests[i].prefix)
            for i, extras in self._extras.items()
            if extras.changes_logits
        }
        self.shaped = self._penalties.keys()
        """The requests with a bias or a penalty."""

    def shape(self, rows: Sequence[int], logits_CV: Tensor) -> Tensor:
        """Return the logits (C, V) from which requests draw, from those that the model gives."""
        if not self._penalties.keys() & {*rows}:
            return logits_CV
        return torch.stack(
            [
                self._penalties[i].shaped(logits_V) if i in self._penalties else logits_V.float()
                for i, logits_V in zip(rows, logits_CV, strict=True)
            ]
        )

    def alternatives(
        self, active: Sequence[int], line: Sequence[int], logits_KV: Tensor
    ) -> dict[int, Alternatives]:
        """Return the most likely next tokens for each request that asks for them.

        Args:
            active: the requests that are being decoded.
            line: index of the distribution of each.
            logits_KV: logits of K distributions.
        """
        if not self._extras:
            return {}
        wanted = {
            i: (k, self._extras[i].alternatives)
            for i, k in zip(active, line, strict=True)
            if i in self._extras and self._extras[i].alternatives
        }
        if not wanted:
            return {}
        lines, counts = zip(*wanted.values(), strict=True)
        logits_CV = logits_KV[torch.tensor(lines, device=logits_KV.device)]
        logprob_CV = tempered(logits_CV, self._batch.params.temperature).log_softmax(dim=-1)
        best_CN, token_CN = logprob_CV.topk(min(max(counts), logprob_CV.shape[-1]), dim=-1)
        return {
            i: tuple(zip(tokens[:count], logprobs[:count], strict=True))
            for i, count, tokens, logprobs in zip(
                wanted, counts, token_CN.tolist(), best_CN.tolist(), strict=True
            )
        }

    def add(self, active: Sequence[int], drawn: Sequence[DrawnSoFar]) -> None:
        """Note and report the token that was drawn last for each request that is decoded.

        Args:
            active: these requests.
            drawn: the tokens of all requests.
        """
        if not self._extras:
            return
        calls = []
        for i in self._extras.keys() & {*active}:
            tokens, tell = drawn[i], self._extras[i].on_token
            if i in self._penalties:
                self._penalties[i].add(tokens.token_ids[-1])
            if tell is not None and i not in self._batch.dropped:
                best = tokens.alternatives[-1] if tokens.alternatives else ()
                calls.append((tell, (tokens.token_ids[-1], tokens.logprobs[-1], best)))
        if calls:
            self._batch.tell(calls)


class Penalties:
    """Change the logits of one request: first the bias, then the penalties, then the temperature.

    The penalty of repetition concerns prefix and completion, the other two the completion alone.

    Args:
        extras: bias and penalties.
        prefix: the tokens (P,) that are continued.
    """

    def __init__(self, extras: Extras, prefix: Sequence[int]) -> None:
        self._extras = extras
        self._prefix = set(prefix)
        self._counts: Counter[int] = Counter()

    def add(self, token: int) -> None:
        """Note a token that was drawn."""
        self._counts[token] += 1

    def shaped(self, logits_V: Tensor) -> Tensor:
        """Return the logits (V,) from which the next token is drawn."""
        extras, shaped_V = self._extras, logits_V.float().clone()
        if extras.logit_bias:
            place_N, bias_N = _tensors(extras.logit_bias, shaped_V)
            shaped_V[place_N] += bias_N
        if extras.repetition_penalty != 1:
            seen = dict.fromkeys(self._prefix | self._counts.keys(), extras.repetition_penalty)
            place_N, penalty_N = _tensors(seen, shaped_V)
            seen_N = shaped_V[place_N]
            shaped_V[place_N] = torch.where(seen_N > 0, seen_N / penalty_N, seen_N * penalty_N)
        if self._counts:
            place_N, count_N = _tensors(self._counts, shaped_V)
            shaped_V[place_N] -= extras.presence_penalty + extras.frequency_penalty * count_N
        return shaped_V


def _tensors(values: Mapping[int, float], like_V: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens (N,) and their values (N,) on the device of other values."""
    device = like_V.device
    return (
        torch.tensor([*values], dtype=torch.long, device=device),
        torch.tensor([*values.values()], dtype=like_V.dtype, device=device),
    )
