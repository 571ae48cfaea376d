"""Compute the log-probs of chosen tokens from a model's last hidden states.

This is the one place that applies a temperature and normalises. The logits of a batch are by far
the largest tensor of an update, with one number for each token of the vocabulary. They are
computed, used and dropped in chunks of bounded size, so that memory depends on neither vocabulary
nor batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_core.train.compute.upload import upload

COPIES = 3
"""Most tensors of the size of a chunk's logits that exist at the same time."""


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Return logits at the sampling temperature, in at least float32.

    Temperature 0 (greedy) leaves them unchanged: the log-prob of a greedy token is that of the
    plain distribution.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature in (0.0, 1.0) else logits / temperature


def token_logprobs(logits_KV: Tensor, place_M: Tensor, tokens_M: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-probs and entropies in few passes over the vocabulary.

    Args:
        logits_KV: logits of K distributions.
        place_M: index of the distribution that each token was drawn from; several tokens may share
            one.
        tokens_M: the tokens.

    Returns:
        The log-probs (M,) of `tokens_M` and the entropies (M,) of their distributions.
    """
    logprob_M, entropy_K = _TokenLogprobs.apply(logits_KV, place_M, tokens_M)  # type: ignore[no-untyped-call]
    return logprob_M, entropy_K[place_M]


@contextmanager
def head_at(model: Any, places_K: Tensor | None, *, bare: bool) -> Iterator[list[Tensor]]:
    """Restrict the model's head to the hidden states at `places_K`.

    Args:
        model: the model whose head is replaced inside the context.
        places_K: indices into its (B * N) hidden states; the output has the shape (1, K, V). With
            None the head computes all hidden states as they come.
        bare: compute no logits.

    Yields:
        The hidden states (1, K, H) that the head gets, one for each forward pass.
    """
    head = model.get_output_embeddings()
    compute, own = head.forward, {"forward": head.forward} if "forward" in vars(head) else {}

    hidden_states: list[Tensor] = []

    def forward(hidden_BNH: Tensor) -> Any:
        hidden = hidden_BNH if places_K is None else hidden_BNH.flatten(0, 1)[places_K].unsqueeze(0)
        if not bare:
            return compute(hidden)
        hidden_states.append(hidden)
        # Models may scale or cap what the head returns; it is not used, also not by a gradient.
        return hidden.detach()[..., :1]

    head.forward = forward
    try:
        yield hidden_states
    finally:
        del head.forward
        vars(head).update(own)


@dataclass(frozen=True, slots=True)
class Shaping:
    """Say how a model turns the output of its head into logits."""

    scale: float = 1.0
    """Factor of the output."""
    cap: float | None = None
    """The scaled output x becomes cap * tanh(x / cap)."""

    def logits(self, output: Tensor) -> Tensor:
        """Return the logits that the model makes of its head's output."""
        logits = output if self.scale == 1 else output * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def shaping(config: Any) -> Shaping:
    """Return the shaping that the settings of a text model declare."""
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):  # Cohere, MPT; Falcon-H1
        value = getattr(config, name, None)
        scale *= value if isinstance(value, int | float) and value else 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    return Shaping(scale, getattr(config, "final_logit_softcapping", None))


@dataclass(frozen=True, slots=True)
class Head:
    """Compute log-probs of hidden states through a language model head, chunk by chunk."""

    module: Any
    """The head: a module that turns hidden states into logits."""
    vocabulary: int
    """Number of logits per hidden state."""
    temperature: float
    """Sampling temperature of the distributions."""
    max_bytes: int
    """Most bytes for the logits of a chunk, with their copies."""
    entropy: bool = False
    """Whether a gradient through the entropy is needed."""
    shaping: Shaping = Shaping()
    """What the model does to the output of the head."""

    def logprobs(
        self, hidden_KH: Tensor, places: Sequence[int], tokens: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Compute what `token_logprobs` computes, from hidden states.

        Args:
            hidden_KH: last hidden states of K predictions.
            places: index of the prediction that each of M tokens was drawn from. These are lists,
                so that chunks are cut without waiting for the device.
            tokens: the tokens.

        Returns:
            The log-probs (M,) and the entropies (M,) of their distributions.
        """
        if not places:
            empty = tempered(hidden_KH[:0, 0], 1.0)
            return empty, empty
        rows = max(
            1,
            self.max_bytes
            // (COPIES * self.vocabulary * (8 if hidden_KH.dtype == torch.float64 else 4)),
        )
        order = sorted(range(len(places)), key=places.__getitem__)  # makes chunks adjacent
        drawn = [(places[i], tokens[i]) for i in order]
        back = sorted(range(len(order)), key=order.__getitem__)
        chunks = list(_chunks(drawn, len(hidden_KH), rows))
        (place_M, tokens_M), back_M = (
            upload([*zip(*drawn, strict=True)], hidden_KH.device),
            upload(back, hidden_KH.device),
        )
        trained = any(parameter.requires_grad for parameter in self.module.parameters())
        # Offloaded weights are on "meta" outside their forward pass.
        present = type(self.module) is torch.nn.Linear and self.module.weight.device.type != "meta"
        if present and not trained and not self.entropy and self.shaping.cap is None:
            temperature = (self.temperature or 1.0) / self.shaping.scale
            frozen = self.module.weight, self.module.bias, temperature
            pairs = _pairs(drawn, hidden_KH.device) if hidden_KH.requires_grad else None
            logprob_M, entropy_M = _FrozenHead.apply(  # type: ignore[no-untyped-call]
                hidden_KH, place_M, tokens_M, *frozen, chunks, pairs
            )
        else:
            parts = [
                checkpoint(
                    self._chunk,
                    hidden_KH[chunk],
                    place_M[token_slice] - chunk.start,
                    tokens_M[token_slice],
                    use_reentrant=False,
                )
                for chunk, token_slice in chunks
            ]
            logprob_M, entropy_M = (torch.cat(values) for values in zip(*parts, strict=True))
        return logprob_M[back_M], entropy_M[back_M]

    def _chunk(self, hidden_KH: Tensor, place_M: Tensor, tokens_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of the tokens of one chunk."""
        logits_KV = self.shaping.logits(self.module(hidden_KH))
        return token_logprobs(tempered(logits_KV, self.temperature), place_M, tokens_M)


def _chunks(
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
class _Pairs:
    """Hold E distinct pairs of a distribution and a token, in ascending order."""

    drawn: Sequence[tuple[int, int]]
    """The pairs on the host."""
    place_E: Tensor
    """Index of the distribution."""
    token_E: Tensor
    """The token."""
    edge_M: Tensor
    """The pair of each token of a batch."""


def _pairs(drawn: Sequence[tuple[int, int]], device: torch.device) -> _Pairs:
    """Return the distinct pairs of `drawn`: equal tokens of a distribution share a gradient."""
    distinct = sorted(set(drawn))
    number = {pair: e for e, pair in enumerate(distinct)}
    place_E, token_E = upload([*zip(*distinct, strict=True)], device)
    return _Pairs(distinct, place_E, token_E, upload([number[pair] for pair in drawn], device))


class _FrozenHead(torch.autograd.Function):
    """Compute log-probs through a head that is not trained.

    Instead of probabilities over the vocabulary it keeps, for each token, the gradient of its
    log-prob with respect to the hidden state, (onehot(token) - probs) W. The backward pass only
    scales it.
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
        pairs: _Pairs | None,
    ) -> tuple[Tensor, Tensor]:
        device, number = hidden_KH.device, torch.promote_types(hidden_KH.dtype, torch.float32)
        weight_VH = weight_VH.to(hidden_KH.dtype)
        rows = chunks[0][0].stop
        shape = rows, len(weight_VH)
        # Allocated once: tensors of this size, allocated again for each chunk, would fragment the
        # memory so that the next one does not fit.
        raw_RV = torch.empty(shape, dtype=hidden_KH.dtype, device=device)
        logits_RV = (
            raw_RV if raw_RV.dtype == number else torch.empty(shape, dtype=number, device=device)
        )
        probs_RV = torch.empty(shape, dtype=number, device=device)
        logprob_M, entropy_M = (
            torch.empty_like(place_M, dtype=number),
            torch.empty_like(place_M, dtype=number),
        )
        directions: list[Tensor] = []
        for chunk, token_slice in chunks:
            place_m, token_m = place_M[token_slice] - chunk.start, tokens_M[token_slice]
            raw_CV, logits_CV, probs_CV = (
                buffer[: chunk.stop - chunk.start] for buffer in (raw_RV, logits_RV, probs_RV)
            )
            torch.mm(hidden_KH[chunk], weight_VH.T, out=raw_CV)
            if logits_CV.dtype != raw_CV.dtype:
                logits_CV.copy_(raw_CV)
            if bias_V is not None:
                logits_CV += bias_V
            if temperature != 1:
                logits_CV /= temperature
            logits_CV -= logits_CV.amax(dim=-1, keepdim=True)
            torch.exp(logits_CV, out=probs_CV)
            total_C1 = probs_CV.sum(dim=-1, keepdim=True)
            probs_CV /= total_C1
            norm_C = total_C1.log().squeeze(-1)
            logprob_M[token_slice] = logits_CV[place_m, token_m] - norm_C[place_m]
            logits_CV.clamp_(min=torch.finfo(number).min).mul_(probs_CV)  # 0 * -inf is 0 here
            entropy_M[token_slice] = (norm_C - logits_CV.sum(dim=-1))[place_m]
            if pairs is not None:
                directions += _directions(probs_CV, pairs, chunk, weight_VH, rows)
        ctx.rows, ctx.temperature = len(hidden_KH), temperature
        if pairs is not None:
            ctx.save_for_backward(torch.cat(directions), pairs.place_E, pairs.edge_M)
        ctx.mark_non_differentiable(entropy_M)
        return logprob_M, entropy_M

    @staticmethod
    def backward(ctx: Any, grad_M: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        direction_EH, place_E, edge_M = ctx.saved_tensors
        grad_E = grad_M.new_zeros(len(place_E)).index_add_(0, edge_M, grad_M) / ctx.temperature
        gradient_EH = (grad_E.unsqueeze(-1) * direction_EH).to(direction_EH.dtype)
        gradient_KH = gradient_EH.new_zeros(ctx.rows, gradient_EH.shape[1]).index_add_(
            0, place_E, gradient_EH
        )
        return gradient_KH, None, None, None, None, None, None, None


def _directions(
    probs_CV: Tensor, pairs: _Pairs, chunk: slice, weight_VH: Tensor, rows: int
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


class _TokenLogprobs(torch.autograd.Function):
    """Compute log-probs and entropies, keeping one tensor of probabilities.

    The backward pass makes the gradient from it; autograd over logsumexp and gather would keep and
    fill four.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_KV: Tensor, place_M: Tensor, tokens_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        highest_K1 = logits_KV.amax(dim=-1, keepdim=True)
        probs_KV = (logits_KV - highest_K1).exp_()
        total_K1 = probs_KV.sum(dim=-1, keepdim=True)
        norm_K = (total_K1.log() + highest_K1).squeeze(-1)
        probs_KV.div_(total_K1)
        # 0 * -inf is 0 here.
        entropy_K = norm_K - torch.linalg.vecdot(
            probs_KV, logits_KV.clamp(min=torch.finfo(logits_KV.dtype).min)
        )
        ctx.save_for_backward(probs_KV, entropy_K, place_M, tokens_M)
        ctx.set_materialize_grads(False)  # an entropy that is only logged costs no backward pass
        return logits_KV[place_M, tokens_M] - norm_K[place_M], entropy_K

    @staticmethod
    def backward(
        ctx: Any, grad_M: Tensor | None, entropy_grad_K: Tensor | None
    ) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits.

        d logprob / d logits = onehot(token) - probs, summed over the tokens of a distribution;
        d entropy / d logits = -probs (log probs + entropy).
        """
        probs_KV, entropy_K, place_M, tokens_M = ctx.saved_tensors
        gradient_KV = torch.zeros_like(probs_KV)
        if grad_M is not None:
            grad_K = torch.zeros(
                probs_KV.shape[0], dtype=grad_M.dtype, device=grad_M.device
            ).index_add_(0, place_M, grad_M)
            gradient_KV = probs_KV * -grad_K.unsqueeze(-1)
            gradient_KV.index_put_((place_M, tokens_M), grad_M, accumulate=True)
        if entropy_grad_K is not None:
            weighted_KV = torch.special.xlogy(probs_KV, probs_KV) + probs_KV * entropy_K.unsqueeze(
                -1
            )
            gradient_KV -= weighted_KV * entropy_grad_K.unsqueeze(-1)
        return gradient_KV, None, None
