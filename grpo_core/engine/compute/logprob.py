"""Compute the log-probs of chosen tokens from a model's last hidden states.

This is the one place that applies a temperature and normalises. The logits of a batch are by far
the largest tensor of an update, with one number for each token of the vocabulary. They are
computed, used and dropped in chunks of bounded size, so that memory depends on neither vocabulary
nor batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_core.engine.compute.frozen_head import FrozenHead, cut_chunks, distinct_pairs
from grpo_core.engine.compute.upload import upload
from grpo_core.engine.compute.values import TokenValues, tempered, token_values

COPIES = 3
"""Most tensors of the size of a chunk's logits that exist at the same time."""
COPIES_WITH_REFERENCE = 5
"""The same where each distribution is compared with that of the reference."""


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
class ReferenceHead:
    """Hold the last hidden states of the reference, and its head.

    They are kept in place of its logits, which would be as large as all of the policy's.
    """

    hidden_KH: Tensor
    """Those of the K predictions that the policy makes, in the same order."""
    module: Callable[[], AbstractContextManager[Any]]
    """Returns a context that yields the reference's head. A head that is not trained is the
    policy's own."""

    def at(self, chunk: slice) -> ReferenceHead:
        """Return the part of it with the predictions of a chunk."""
        return replace(self, hidden_KH=self.hidden_KH[chunk])


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
    kl: bool = False
    """Whether a gradient through the KL is needed."""
    shaping: Shaping = Shaping()
    """What the model does to the output of the head."""

    def values(
        self,
        hidden_KH: Tensor,
        places: Sequence[int],
        tokens: Sequence[int],
        reference: ReferenceHead | None = None,
    ) -> TokenValues:
        """Compute what `token_values` computes, from hidden states.

        Args:
            hidden_KH: last hidden states of K predictions.
            places: index of the prediction that each of M tokens was drawn from. These are lists,
                so that chunks are cut without waiting for the device.
            tokens: the tokens.
            reference: what the distributions are compared with.

        Returns:
            The values (M,) of `tokens`.
        """
        if not places:
            empty = tempered(hidden_KH[:0, 0], 1.0)
            return TokenValues(*[empty] * (2 if reference is None else 4))
        copies = COPIES if reference is None else COPIES_WITH_REFERENCE
        number_bytes = 8 if hidden_KH.dtype == torch.float64 else 4
        rows = max(1, self.max_bytes // (copies * self.vocabulary * number_bytes))
        order = sorted(range(len(places)), key=places.__getitem__)  # makes chunks adjacent
        drawn = [(places[i], tokens[i]) for i in order]
        back = sorted(range(len(order)), key=order.__getitem__)
        chunks = list(cut_chunks(drawn, len(hidden_KH), rows))
        (place_M, tokens_M), back_M = (
            upload([*zip(*drawn, strict=True)], hidden_KH.device),
            upload(back, hidden_KH.device),
        )
        trained = any(parameter.requires_grad for parameter in self.module.parameters())
        # Offloaded weights are on "meta" outside their forward pass.
        present = type(self.module) is torch.nn.Linear and self.module.weight.device.type != "meta"
        if present and not trained and not self.entropy and self.shaping.cap is None:
            temperature = (self.temperature or 1.0) / self.shaping.scale
            compute: Any = FrozenHead.apply
            logprob_M, entropy_K, reference_M, kl_K = compute(
                hidden_KH,
                place_M,
                tokens_M,
                self.module.weight,
                self.module.bias,
                temperature,
                chunks,
                distinct_pairs(drawn, hidden_KH.device) if hidden_KH.requires_grad else None,
                None if reference is None else reference.hidden_KH,
                self.kl,
            )
            kl_M = None if kl_K is None else kl_K[place_M]
            values = TokenValues(logprob_M, entropy_K[place_M], reference_M, kl_M)
        else:
            parts = [
                checkpoint(
                    self._chunk,
                    hidden_KH[chunk],
                    place_M[token_slice] - chunk.start,
                    tokens_M[token_slice],
                    None if reference is None else reference.at(chunk),
                    use_reentrant=False,
                )
                for chunk, token_slice in chunks
            ]
            values = TokenValues(*map(torch.cat, zip(*parts, strict=True)))
        return values.map(lambda value_M: value_M[back_M])

    def _chunk(
        self,
        hidden_KH: Tensor,
        place_M: Tensor,
        tokens_M: Tensor,
        reference: ReferenceHead | None,
    ) -> tuple[Tensor, ...]:
        """Return the values of the tokens of one chunk: two, or four with a reference."""
        logits_KV = tempered(self.shaping.logits(self.module(hidden_KH)), self.temperature)
        compared = None if reference is None else self._reference_logits(reference)
        values = token_values(logits_KV, place_M, tokens_M, compared)
        return tuple(value for value in values if value is not None)

    @torch.no_grad()
    def _reference_logits(self, reference: ReferenceHead) -> Tensor:
        """Return the logits (K, V) of the reference at the temperature."""
        with reference.module() as module:
            logits_KV = self.shaping.logits(module(reference.hidden_KH))
        return tempered(logits_KV, self.temperature)
