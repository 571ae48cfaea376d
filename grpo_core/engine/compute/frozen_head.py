"""Compute values of tokens through a language model head that is not trained.

The gradient of a hidden state is then known as soon as its logits are, so nothing of the size of
the vocabulary is kept for the backward pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute.upload import upload
from grpo_core.engine.compute.values import divergences, finite


def cut_chunks(
    drawn: Sequence[tuple[int, int]], count: int, rows: int
) -> Iterator[tuple[slice, slice]]:
    """Split `count` distributions into chunks of at most `rows`.

    Args:
        drawn: index of the distribution of each token, in ascending order, and the token.
        count: number of distributions.
        rows: most distributions per chunk.

    Yields:
        The slice of distributions, and the slice of tokens that are drawn from them.
    """
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        yield slice(start, stop), _between(drawn, start, stop)


def _between(drawn: Sequence[tuple[int, int]], start: int, stop: int) -> slice:
    """Return the slice of `drawn` with the distributions from `start` to before `stop`."""
    return slice(bisect_left(drawn, (start, -1)), bisect_left(drawn, (stop, -1)))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Hold E distinct pairs of a distribution and a token, in ascending order."""

    drawn: Sequence[tuple[int, int]]
    """The pairs on the host."""
    place_E: Tensor
    """Index of the distribution."""
    token_E: Tensor
    """The token."""
    edge_M: Tensor
    """The pair of each token of a batch."""


def distinct_pairs(drawn: Sequence[tuple[int, int]], device: torch.device) -> Pairs:
    """Return the distinct pairs of `drawn`: equal tokens of a distribution share a gradient."""
    distinct = sorted(set(drawn))
    number = {pair: e for e, pair in enumerate(distinct)}
    place_E, token_E = upload([*zip(*distinct, strict=True)], device)
    return Pairs(distinct, place_E, token_E, upload([number[pair] for pair in drawn], device))


class _Buffers:
    """Hold the tensors of the size of a chunk's logits.

    They are allocated once: tensors of this size, allocated again for each chunk, would fragment
    the memory so that the next one does not fit.

    Args:
        rows: most distributions of a chunk.
        weight_VH: weights of the head, in the type of the hidden states.
        bias_V: its bias, if it has one.
        temperature: the logits are divided by this.
        compared: whether there is a reference.
    """

    def __init__(
        self,
        rows: int,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        temperature: float,
        *,
        compared: bool,
    ) -> None:
        self._weight_VH, self._bias_V, self._temperature = weight_VH, bias_V, temperature
        number = torch.promote_types(weight_VH.dtype, torch.float32)
        self._raw_RV = weight_VH.new_empty(rows, len(weight_VH))
        self.logits_RV = self._raw_RV.to(number)  # the same tensor if it is the same type
        self.probs_RV = torch.empty_like(self.logits_RV)
        self.reference_RV = torch.empty_like(self.logits_RV[: rows if compared else 0])

    def compute_logits(self, states_CH: Tensor, out_RV: Tensor) -> Tensor:
        """Write logits (C, V) at the temperature, less the greatest of each distribution."""
        out_CV = out_RV[: len(states_CH)]
        raw_CV = out_CV if out_CV.dtype == self._raw_RV.dtype else self._raw_RV[: len(states_CH)]
        torch.mm(states_CH, self._weight_VH.T, out=raw_CV)
        if raw_CV is not out_CV:
            out_CV.copy_(raw_CV)
        if self._bias_V is not None:
            out_CV += self._bias_V
        if self._temperature != 1:
            out_CV /= self._temperature
        out_CV -= out_CV.amax(dim=-1, keepdim=True)
        return out_CV


class FrozenHead(torch.autograd.Function):
    """Compute values of tokens through a head that is not trained.

    Instead of probabilities over the vocabulary it keeps, for each token, the gradient of its
    log-prob with respect to the hidden state, (onehot(token) - probs) W, and for each distribution
    that of its KL, if it is needed. The backward pass only scales them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KH: Tensor,
        place_M: Tensor,
        tokens_M: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        temperature: float,
        chunks: Sequence[tuple[slice, slice]],
        pairs: Pairs | None,
        reference_KH: Tensor | None,
        kl_gradient: bool,
    ) -> tuple[Tensor | None, ...]:
        """Return log-probs (M,), entropies (K,), the reference's log-probs (M,) and KLs (K,)."""
        weight_VH = weight_VH.to(hidden_KH.dtype)
        rows = chunks[0][0].stop
        compared = reference_KH is not None
        buffers = _Buffers(rows, weight_VH, bias_V, temperature, compared=compared)
        logprob_M = torch.empty_like(place_M, dtype=buffers.probs_RV.dtype)
        entropy_K = logprob_M.new_empty(len(hidden_KH))
        reference_M = torch.empty_like(logprob_M) if compared else None
        kl_K = torch.empty_like(entropy_K) if compared else None
        directions: list[Tensor] = []
        kl_directions: list[Tensor] = []
        for chunk, token_slice in chunks:
            at = place_M[token_slice] - chunk.start, tokens_M[token_slice]
            probs_CV = buffers.probs_RV[: chunk.stop - chunk.start]
            reference_CV = None
            if reference_KH is not None and reference_M is not None:
                reference_CV = buffers.compute_logits(reference_KH[chunk], buffers.reference_RV)
                torch.exp(reference_CV, out=probs_CV)
                reference_norm_C1 = probs_CV.sum(dim=-1, keepdim=True).log()
                reference_M[token_slice] = reference_CV[at] - reference_norm_C1[at[0], 0]
            logits_CV = buffers.compute_logits(hidden_KH[chunk], buffers.logits_RV)
            torch.exp(logits_CV, out=probs_CV)
            total_C1 = probs_CV.sum(dim=-1, keepdim=True)
            probs_CV /= total_C1
            norm_C1 = total_C1.log()
            logprob_M[token_slice] = logits_CV[at] - norm_C1[at[0], 0]
            finite(logits_CV)
            if reference_CV is not None and kl_K is not None:
                difference_CV = torch.sub(logits_CV, finite(reference_CV), out=reference_CV)
                difference_CV -= norm_C1 - reference_norm_C1
                kl_K[chunk] = divergences(probs_CV, difference_CV)
                if kl_gradient and pairs is not None:
                    difference_CV.sub_(kl_K[chunk].unsqueeze(-1)).mul_(probs_CV)
                    kl_directions.append(difference_CV.to(weight_VH.dtype) @ weight_VH)
            entropy_K[chunk] = norm_C1.squeeze(-1) - logits_CV.mul_(probs_CV).sum(dim=-1)
            if pairs is not None:
                directions += _directions(probs_CV, pairs, chunk, weight_VH, rows)
        ctx.rows, ctx.temperature = len(hidden_KH), temperature
        ctx.set_materialize_grads(False)
        kl_direction_KH = torch.cat(kl_directions) if kl_directions else None
        if pairs is not None:
            ctx.save_for_backward(
                torch.cat(directions), pairs.place_E, pairs.edge_M, kl_direction_KH
            )
        constant = entropy_K, reference_M, None if kl_directions else kl_K
        ctx.mark_non_differentiable(*(value for value in constant if value is not None))
        return logprob_M, entropy_K, reference_M, kl_K

    @staticmethod
    def backward(
        ctx: Any, grad_M: Tensor | None, _: Any, __: Any, kl_grad_K: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradient of the hidden states; the other arguments have none."""
        direction_EH, place_E, edge_M, kl_direction_KH = ctx.saved_tensors
        gradient_KH = direction_EH.new_zeros(ctx.rows, direction_EH.shape[1])
        if grad_M is not None:
            grad_E = grad_M.new_zeros(len(place_E)).index_add_(0, edge_M, grad_M) / ctx.temperature
            gradient_EH = (grad_E.unsqueeze(-1) * direction_EH).to(direction_EH.dtype)
            gradient_KH.index_add_(0, place_E, gradient_EH)
        if kl_grad_K is not None:
            scale_K1 = (kl_grad_K / ctx.temperature).unsqueeze(-1)
            gradient_KH += (scale_K1 * kl_direction_KH).to(gradient_KH.dtype)
        return gradient_KH, *[None] * 9


def _directions(
    probs_CV: Tensor, pairs: Pairs, chunk: slice, weight_VH: Tensor, rows: int
) -> list[Tensor]:
    """Return (onehot(token) - probs) W for each pair of a place of the chunk and a token.

    Works on `rows` pairs at a time. Overwrites `probs_CV` if each place has exactly one token.
    """
    device, inside = probs_CV.device, _between(pairs.drawn, chunk.start, chunk.stop)
    place_E, token_E = pairs.place_E[inside] - chunk.start, pairs.token_E[inside]
    single = [place for place, _ in pairs.drawn[inside]] == [*range(chunk.start, chunk.stop)]
    directions = []
    for start in range(0, len(place_E), rows):
        direction_RV = (probs_CV if single else probs_CV[place_E[start : start + rows]]).neg_()
        direction_RV[
            torch.arange(len(direction_RV), device=device), token_E[start : start + rows]
        ] += 1
        directions.append(direction_RV.to(weight_VH.dtype) @ weight_VH)
    return directions
