"""Train and sample with a causal language model, its adapter and its frozen reference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_core.engine.compute import attention, prefix
from grpo_core.engine.compute.batch import Row, tensors
from grpo_core.engine.compute.kv import bytes_per_token
from grpo_core.engine.compute.openmp import considerate_threads
from grpo_core.engine.compute.prepack import (
    can_be_packed_together,
    cast_bytes,
    largest_cast_bytes,
    packed_bytes,
    prepacked,
)
from grpo_core.engine.compute.rows import Rows, forward_padded
from grpo_core.engine.compute.same_input import same_inputs
from grpo_core.engine.compute.stacked import Stacks
from grpo_core.engine.models import quantized
from grpo_core.engine.models.adapter import merged, merged_bytes
from grpo_core.engine.models.base import Base, write_note
from grpo_core.engine.models.disk import as_os_error
from grpo_core.engine.policy import sharding
from grpo_core.engine.policy.log_probs import LogProbs
from grpo_core.engine.policy.passed import PassedBefore
from grpo_core.engine.policy.selfcheck import choose_ways, random_texts
from grpo_core.engine.policy.ways import ContinuedLines, DecodingWay, Text
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Segment


class Policy(LogProbs):
    """Train a causal language model, and continue texts with it.

    Args:
        model: the model to train.
        tokenizer: its tokenizer.
        shared_prefix: compute shared tokens of rows once, where the model allows it.
        logits_bytes: most bytes for logits at a time; 0 computes all logits at once, and None
            takes the default of the device.
        stacked: compute adapted layers that get the same input as one product (see `stacked`),
            where the weights are in half precision; otherwise it changes nothing.
        passed: results of earlier checks of the ways to compute; if left out, it is checked here.
        more: further arguments of `LogProbs`.
    """

    task: ClassVar[str | None] = "CAUSAL_LM"
    """Task type that peft's adapters are made for."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        shared_prefix: bool = True,
        logits_bytes: int | None = None,
        stacked: bool = True,
        passed: PassedBefore | None = None,
        **more: Any,
    ) -> None:
        super().__init__(model, tokenizer, **more)
        self.base: Base | None = None
        """The name of the model that was loaded, for those who load what is saved."""
        self.sampling = DecodingWay.PADDED
        """How completions are decoded."""
        if logits_bytes is None:
            logits_bytes = self.tuning.logits_mb * 2**20
        limits = {"shared_prefix": shared_prefix, "logits_bytes": logits_bytes}
        known = {} if passed is None else passed.find(self, **limits)
        results = choose_ways(
            self, shared_prefix=shared_prefix, logits_bytes=logits_bytes, known=known
        )
        if passed is not None and results:
            passed.keep(results)
        self._together: Sequence[Sequence[Any]] = ()
        compute = (
            partial(self.plain_logits, self.check_texts()[0]) if self.casting.adapted else None
        )
        with torch.no_grad():
            if compute and stacked:
                self.casting.stacks = Stacks(model, compute, joined=self.tuning.joined_products)
                self._together = self.casting.stacks.groups
            elif compute and can_be_packed_together(model):
                self._together = same_inputs(model, compute)
        with self.autocast(), considerate_threads(self.device):
            self.cached_bytes = 0 if self.fills else bytes_per_token(model, self.device)
        """Bytes that a cache keeps for each token of a sequence."""

    @property
    def is_exact(self) -> bool:
        """Return True if nothing is computed in half precision or with quantised weights."""
        return not self.casting.is_half and not quantized.is_quantized(self.model)

    def exactly(self) -> AbstractContextManager[bool]:
        """Return a context that computes in float32, if possible; it is entered with whether."""
        return self.casting.exactly()

    def adopt_attention(self, adopts: bool) -> None:
        """Switch the models to the project's attention, or back to that of transformers."""
        for model in self.reference.models():
            attention.adopt(model, adopts)

    def check_texts(self) -> list[Text]:
        """Return the texts by which `selfcheck` compares ways to compute."""
        vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
        special = [self.pad_id, *self.end_ids, *self.tokenizer.all_special_ids]
        return random_texts(vocabulary, self.context, special, self.pad_id)

    def plain_logits(self, text: Text) -> Tensor:
        """Return the logits (T, V) of a completion by a forward pass of this text alone."""
        tokens_1S = torch.tensor([[*text.prompt, *text.completion]], device=self.device)
        count = len(text.completion) + 1
        with self.autocast():
            logits_1TV = forward_padded(
                self.model, tokens_1S, torch.ones_like(tokens_1S), padded=False, use_cache=False
            )
        return logits_1TV[0, -count:-1]

    def text_logprobs(self, texts: Sequence[Text], together: int = 1) -> list[Tensor]:
        """Return the log-probs (T,) of each completion, computed in the present way.

        All texts are computed in one pass, with `together` of them in each tree.
        """
        rows = [
            Row(
                Segment(
                    text.prompt,
                    text.completion,
                    (0.0,) * len(text.completion),
                    (1,) * len(text.completion),
                ),
                0.0,
                0.0,
            )
            for text in texts
        ]
        trees = [rows[i : i + together] for i in range(0, len(rows), together)]
        micro = tensors(trees, device=self.device, dtype=torch.float32)
        logprob_BT, _ = self.logprobs(micro, temperature=1.0)
        counts = [len(row.segment.token_ids) for row in rows]
        return [logprob_T[:count] for logprob_T, count in zip(logprob_BT, counts, strict=True)]

    def open_lines(self, prompts: Sequence[tuple[int, ...]]) -> ContinuedLines:
        """Return a line for each of several distinct prompts, to be continued token by token."""
        if self.sampling is DecodingWay.TREES:
            assert self.masking is not None
            return prefix.PrefixLines.prefill(
                self.model,
                prompts,
                pad_id=self.pad_id,
                masking=self.masking,
                dtype=self.compute_dtype,
                device=self.device,
                tuning=self.tuning,
            )
        return Rows(
            self.model,
            prompts,
            pad_id=self.pad_id,
            device=self.device,
            cached=self.sampling is not DecodingWay.UNCACHED,
            padded=self.sampling is DecodingWay.PADDED,
        )

    def shard(self) -> None:
        """Shard the weights over all processes (see `sharding`)."""
        if self.casting.stacks is not None:  # each process will hold a part of each weight
            self.casting.stacks.remove()
            self.casting.stacks = None
        for model in self.reference.models():
            sharding.shard(model)
        self.sharded = True

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which processes may make different numbers of forward passes.

        All processes have to enter it.
        """
        return sharding.whole(self.model) if self.sharded else nullcontext()

    def trainable(self) -> list[tuple[str, Tensor]]:
        """Return the names and tensors that are trained.

        Raises:
            ConfigError: nothing is trainable.
        """
        parameters = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        if not parameters:
            raise ConfigError(
                "nothing in the model is trainable; set lora.enabled=true with lora.targets that "
                "exist, or lora.enabled=false"
            )
        return parameters

    def slots(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """Return the prompt positions that a completion fills; None if it follows the prompt."""
        return None

    def measuring_row(self, prompt_length: int, new_tokens: int, number: int) -> Row:
        """Return a row for measuring, with prompt and completion of the given lengths.

        Rows with different numbers share no completion token.
        """
        return self.longest_row((1,) * prompt_length, new_tokens, number)

    def longest_row(self, prompt_ids: Sequence[int], budget: int, number: int) -> Row:
        """Return the longest row that a prompt may become with `budget` new tokens.

        These are all `number`, so rows with different numbers share no completion token.
        """
        tokens = (number,) * budget
        return Row(Segment(tuple(prompt_ids), tokens, (0.0,) * budget, (1,) * budget), 0.0, 0.0)

    def decoding(self, *, copied: bool) -> AbstractContextManager[object]:
        """Return a context without gradients, for sampling.

        Inference mode is faster by 3 % on a CPU, but there autocast casts adapters again for each
        token, which it keeps otherwise. Where `prepacked` copies them, it has nothing to cast. Nor
        should it keep all weights, where these are cast; `prepacked` copies them, too.

        Args:
            copied: whether `prepacked` is used.
        """
        packs = copied and self.device.type == "cpu"
        keeps_casts = self.casting.adapted and not self.casting.casts and not packs
        return torch.no_grad() if keeps_casts else torch.inference_mode()

    def merged(self) -> AbstractContextManager[None]:
        """Return a context in which the adapter is merged into a copy of the weights, for sampling.

        It does so only if nothing is lost by it (see `Casting.merges`).
        """
        return merged(self.model) if self.casting.merges else nullcontext()

    def prepacked(self, rows: int | None) -> AbstractContextManager[None]:
        """Return a context in which decoding computes with copies of weights (see `prepack`).

        They are packed in a layout that suits about `rows` rows, unless that is None, and in the
        type of the forward pass. Inside `merged`, they hold the merged weights.
        """
        if self.casting.casts:
            return prepacked(self.model, rows, compute_dtype=self.compute_dtype)
        if self.sharded:
            return nullcontext()
        return prepacked(self.model, rows, together=self._together)

    def decoding_bytes(self, *, copied: bool, packed: bool) -> int:
        """Return the bytes of the merged, cast or packed copies of weights that sampling makes.

        Args:
            copied: whether `prepacked` is entered; otherwise weights are cast for each product.
            packed: whether it is given a number of rows.
        """
        if self.casting.casts:
            count = cast_bytes if copied else largest_cast_bytes
            return count(self.model, self.compute_dtype)
        return (merged_bytes(self.model) if self.casting.merges else 0) + (
            packed_bytes(self.model) if packed and not self.sharded else 0
        )

    def state(self) -> dict[str, Tensor] | None:
        """Return the full weights that `save` needs if they are sharded, else None.

        All processes have to call it.
        """
        if not self.sharded:
            return None
        has_adapter = hasattr(self.model, "peft_config")
        named = self.trainable() if has_adapter else self.model.named_parameters()
        return dict(sharding.gather_full({name: p.detach() for name, p in named}))

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Save adapter (or whole model) and tokenizer in the format of transformers and peft.

        Args:
            folder: where the files go.
            state: the result of `state`.
        """
        # peft would ask the hub whether the vocabulary was changed, which never happens here.
        selected: dict[str, Any] = (
            {"selected_adapters": ["default"], "save_embedding_layers": False}
            if hasattr(self.model, "peft_config")
            else {}
        )
        with as_os_error():
            self.model.save_pretrained(folder, state_dict=state, **selected)
            self.tokenizer.save_pretrained(folder)
            if selected and self.base is not None:
                write_note(self.base, folder)
