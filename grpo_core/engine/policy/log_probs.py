"""Compute log-probs with a model and its frozen reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_core.engine.compute.batch import MicroBatch, Row, passes, tensors
from grpo_core.engine.compute.logprob import Head, ReferenceHead, shaping
from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.compute.thread import ComputeThread
from grpo_core.engine.compute.tree import pair_cost
from grpo_core.engine.compute.tuning import Tuning, tuning_of
from grpo_core.engine.compute.upload import upload
from grpo_core.engine.compute.values import TokenValues, tempered, token_values
from grpo_core.engine.models.adapter import base_weights
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.reference import Reference, ReferenceStates
from grpo_core.engine.models.templates import end_token_ids
from grpo_core.engine.policy import sharding
from grpo_core.engine.policy.casting import Casting
from grpo_core.engine.policy.predictions import predict_rows, predict_trees
from grpo_core.engine.policy.texts import Texts
from grpo_core.engine.policy.ways import Training


class LogProbs(Texts):
    """Compute log-probs of completions under a model and under its frozen reference.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        reference: a copied model for full fine-tuning; None where disabling the adapter (or
            enabling the frozen one) turns the model into the reference.
        compute_dtype: the type of the forward pass; that of the weights if None.
        frame: system prompt and options of the chat template.
        tuning: what depends on the device; that of the model's device if None.
        thought_tags: the setting `model.thought_tags`.
    """

    fills: ClassVar[bool] = False
    """Whether the policy fills gaps, all at once, instead of continuing a text; then a completion
    cannot be followed by another turn."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        reference: Any = None,
        compute_dtype: torch.dtype | None = None,
        frame: ChatFrame | None = None,
        tuning: Tuning | None = None,
        thought_tags: Sequence[str] | None = None,
    ) -> None:
        length = getattr(model.config, "max_position_embeddings", None) or 0
        super().__init__(
            tokenizer,
            frame=frame or ChatFrame(),
            end_ids=end_token_ids(model, tokenizer),
            context=length if length > 0 else None,  # XLNet's is -1
            thought_tags=() if self.fills else thought_tags,
        )
        self.model = model
        self.reference = Reference(model, reference)
        """Computes as the reference policy."""
        self.sharded = False
        self.training = Training.PADDED
        """How log-probs are computed for the update."""
        self.masking: Masking | None = None
        """How the model takes masks; None if it cannot be given any."""
        self.logits_bytes = 0
        """Most bytes for logits at a time. 0: the model computes all at once, as it has to where
        its logits are more than the output of its head."""
        self.pad_id: int = (
            tokenizer.pad_token_id
            if tokenizer.pad_token_id is not None
            else next(iter(self.end_ids), 0)
        )
        # Offloaded weights are on no device.
        weight = next(p for p in model.parameters() if p.device.type != "meta")
        self.device: torch.device = weight.device
        self.tuning = tuning or tuning_of(self.device, weights=base_weights(model))
        """Sizes and costs that depend on the device."""
        self.thread = ComputeThread(self.device)
        """Runs everything that samples from the policy or changes its weights."""
        self.casting = Casting(model, compute_dtype or weight.dtype, weight.dtype)
        """Casts weights to the type of the forward pass."""
        self.pair_cost = pair_cost(model)
        model.eval()  # no dropout wherever a log-prob is computed, also in training

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the type of the forward pass."""
        return self.casting.dtype

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context in which weights that are kept in another type are cast."""
        return self.casting.autocast(self.device.type)

    @property
    def shared_prefix(self) -> bool:
        """Return True if the update computes shared tokens once."""
        return self.training is Training.TREES

    def passes(
        self, rows: Sequence[Row], *, max_tokens: int
    ) -> Iterator[tuple[list[list[Row]], int]]:
        """Group rows into forward passes (see `batch.passes`)."""
        group = partial(
            passes,
            max_tokens=max_tokens,
            shared_prefix=self.shared_prefix,
            pair=self.pair_cost,
        )
        if self.sharded and self.training is Training.ALONE:
            # Processes can only be given as many groups as the others have, each of one pass.
            return chain.from_iterable(group([row]) for row in rows)
        return group(rows)

    def micro_batches(
        self, rows: Sequence[Row], *, max_tokens: int, dtype: torch.dtype
    ) -> Iterator[MicroBatch]:
        """Yield the forward passes of `rows` as tensors on the policy's device.

        Args:
            rows: the rows to compute.
            max_tokens: most tokens of a pass.
            dtype: type of the log-probs and weights.
        """
        return (
            tensors(chunk, device=self.device, dtype=dtype)
            for chunk, _ in self.passes(rows, max_tokens=max_tokens)
        )

    def logprobs(
        self, micro: MicroBatch, *, temperature: float, entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of the completion tokens.

        What they hold at padding is arbitrary and must be masked.

        Args:
            micro: the micro-batch.
            temperature: sampling temperature of the distributions.
            entropy: whether the entropy needs a gradient, too.

        Returns:
            The log-prob (B, T) of each completion token under the full distribution at the
            temperature, and the entropy (B, T) of that distribution.
        """
        values = self.token_values(micro, None, temperature=temperature, entropy=entropy)
        return values.logprob, values.entropy

    def token_values(
        self,
        micro: MicroBatch,
        reference: ReferenceStates | None,
        *,
        temperature: float,
        entropy: bool = False,
        kl: bool = False,
    ) -> TokenValues:
        """Return values (B, T) of the completion tokens, as `logprobs`, and those of the reference.

        Args:
            micro: the micro-batch.
            reference: what `reference_states` returned for it; None leaves the reference out.
            temperature: sampling temperature of the distributions.
            entropy: whether the entropy needs a gradient, too.
            kl: whether the KL needs a gradient, too.
        """
        compute = partial(
            self._values,
            self.model,
            micro,
            reference,
            temperature=temperature,
            entropy=entropy,
            kl=kl,
        )
        if reference is not None and self.sharded:
            # The reference's own weights are gathered, too.
            for model in self.reference.models()[1:]:
                compute = partial(sharding.gathered, model, compute)
        return sharding.gathered(self.model, compute) if self.sharded else compute()

    @torch.no_grad()
    def reference_logprobs(self, micro: MicroBatch, *, temperature: float) -> Tensor:
        """Return the log-probs (B, T) under the frozen reference."""
        with self.reference.model() as model:
            compute = partial(self._values, model, micro, temperature=temperature)
            values = sharding.gathered(model, compute) if self.sharded else compute()
        return values.logprob

    @torch.no_grad()
    def reference_states(self, micro: MicroBatch) -> ReferenceStates:
        """Compute what `token_values` needs of the frozen reference, at its present weights."""
        if not self.logits_bytes:
            return ReferenceStates(None)
        with self.reference.model() as model, self.autocast():
            compute = partial(self._predictions, model, micro, bare=True)
            hidden_KH, _ = sharding.gathered(model, compute) if self.sharded else compute()
        return ReferenceStates(hidden_KH)

    @contextmanager
    def _reference_head(self) -> Iterator[Any]:
        """Yield the module that is the reference's head."""
        with self.reference.model() as model:
            yield model.get_output_embeddings()

    def _values(
        self,
        model: Any,
        micro: MicroBatch,
        reference: ReferenceStates | None = None,
        *,
        temperature: float,
        entropy: bool = False,
        kl: bool = False,
    ) -> TokenValues:
        """Return values (B, T) of tokens under `model`, whose head's weights are here."""
        tokens = [token for row in micro.rows for token in row.segment.token_ids]
        with self.autocast():
            if self.logits_bytes:
                hidden_KH, places = self._predictions(model, micro, bare=True)
                compared = None
                if reference is not None:
                    assert reference.hidden_KH is not None
                    compared = ReferenceHead(reference.hidden_KH, self._reference_head)
                config = model.config.get_text_config(decoder=True)
                head = Head(
                    model.get_output_embeddings(),
                    config.vocab_size,
                    temperature,
                    self.logits_bytes,
                    entropy=entropy,
                    kl=kl,
                    shaping=shaping(config),
                )
                values = head.values(hidden_KH, places, tokens, compared)
            else:
                logits_KV, places = self._predictions(model, micro, bare=False)
                place_M, tokens_M = upload([places, tokens], self.device, dtype=torch.long)
                values = token_values(
                    tempered(logits_KV, temperature),
                    place_M,
                    tokens_M,
                    None if reference is None else self._reference_logits(micro, temperature),
                )
        # The places come from the host: `masked_scatter` would have to count them on the device.
        # FSDP's hook warns of results that are views, so these are none.
        place_M = upload(micro.places, self.device, dtype=torch.long)
        shape = micro.tokens_BT.shape
        index_M = place_M // shape[1], place_M % shape[1]
        return values.map(lambda values_M: values_M.new_zeros(shape).index_put(index_M, values_M))

    @torch.no_grad()
    def _reference_logits(self, micro: MicroBatch, temperature: float) -> Tensor:
        """Return the logits (K, V) of the reference, by a pass of their own."""
        with self.reference.model() as model:
            logits_KV, _ = self._predictions(model, micro, bare=False)
        return tempered(logits_KV, temperature)

    def _predictions(
        self, model: Any, micro: MicroBatch, *, bare: bool
    ) -> tuple[Tensor, list[int]]:
        """Return the predictions of the model, and which of them each token was drawn from.

        Args:
            model: the policy's model or the reference.
            micro: the micro-batch.
            bare: return the last hidden states (K, H) instead of logits.

        Returns:
            The logits (K, V), and the index into them of each completion token, row by row.
        """
        if self.training is not Training.TREES:
            alone = self.training is Training.ALONE
            return predict_rows(model, micro, pad_id=self.pad_id, alone=alone, bare=bare)
        assert self.masking is not None
        return predict_trees(
            model,
            micro,
            masking=self.masking,
            dtype=self.compute_dtype,
            block_rows=self.tuning.block_rows,
            bare=bare,
        )
