"""Wrap a causal language model, its adapter and its frozen reference as a policy of log-probs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.engine.compute import attention, prefix
from grpo_core.engine.compute.batch import MicroBatch, Row, passes, tensors
from grpo_core.engine.compute.heap import share_heap
from grpo_core.engine.compute.kv import bytes_per_token
from grpo_core.engine.compute.logprob import Head, ReferenceHead, head_at, shaping
from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.compute.precision import can_be_float32, in_float32
from grpo_core.engine.compute.prepack import (
    can_be_packed_together,
    cast_bytes,
    largest_cast_bytes,
    packed_bytes,
    prepacked,
)
from grpo_core.engine.compute.recompute import recompute
from grpo_core.engine.compute.rows import Rows, forward_padded, pad_left
from grpo_core.engine.compute.same_input import same_inputs
from grpo_core.engine.compute.stacked import Stacks
from grpo_core.engine.compute.thread import ComputeThread
from grpo_core.engine.compute.tree import pack_trees, pair_cost
from grpo_core.engine.compute.tuning import Tuning, tuning_of
from grpo_core.engine.compute.upload import upload
from grpo_core.engine.compute.values import TokenValues, tempered, token_values
from grpo_core.engine.models import quantized
from grpo_core.engine.models.adapter import (
    adapted_layers,
    add_adapter,
    base_weights,
    in_type_of_input,
    merged,
    merged_bytes,
)
from grpo_core.engine.models.adapter_files import load_adapter
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.device import pick_device, pick_dtype
from grpo_core.engine.models.disk import as_os_error
from grpo_core.engine.models.fitting import refuse_what_cannot_fit
from grpo_core.engine.models.load import load_model, resolve
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.offload import offload
from grpo_core.engine.models.reference import Reference
from grpo_core.engine.models.source import ModelSource
from grpo_core.engine.models.templates import end_token_ids
from grpo_core.engine.models.tokenizer import load_tokenizer
from grpo_core.engine.policy import sharding
from grpo_core.engine.policy.selfcheck import choose_ways, random_texts
from grpo_core.engine.policy.texts import Texts
from grpo_core.engine.policy.ways import ContinuedLines, DecodingWay, Text, Training
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Segment


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """Hold what the reference computes for a micro-batch, before its head."""

    hidden_KH: Tensor | None
    """Last hidden states of its K predictions; None where the model computes its logits itself.
    All logits of a batch would not fit, so each comparison then makes a pass of its own."""


class Policy(Texts):
    """Compute log-probs and texts with a causal language model.

    Args:
        model: the model to train.
        tokenizer: its tokenizer.
        reference: a copied model for full fine-tuning; None where disabling the adapter (or
            enabling the frozen one) turns the model into the reference.
        shared_prefix: compute shared tokens of rows once, where the model allows it.
        logits_bytes: most bytes for logits at a time; 0 computes all logits at once, and None
            takes the default of the device.
        compute_dtype: the type of the forward pass; that of the weights if None.
        frame: system prompt and options of the chat template.
        tuning: what depends on the device; that of the model's device if None.
        stacked: compute adapted layers that get the same input as one product (see `stacked`),
            where the weights are in half precision; otherwise it changes nothing.
        thought_tags: the setting `model.thought_tags`.
    """

    fills: ClassVar[bool] = False
    """Whether the policy fills gaps, all at once, instead of continuing a text; then a completion
    cannot be followed by another turn."""
    _task: ClassVar[str | None] = "CAUSAL_LM"
    """Task type that peft's adapters are made for."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        reference: Any = None,
        shared_prefix: bool = True,
        logits_bytes: int | None = None,
        compute_dtype: torch.dtype | None = None,
        frame: ChatFrame | None = None,
        tuning: Tuning | None = None,
        stacked: bool = True,
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
        self.sampling = DecodingWay.PADDED
        """How completions are decoded."""
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
        self.compute_dtype: torch.dtype = compute_dtype or weight.dtype
        """Type of the forward pass; trained weights are kept in float32 and cast in the pass."""
        self._cast = self.compute_dtype != weight.dtype
        self._merges = self.compute_dtype in (torch.float32, torch.float64) and not self._cast
        self._half = self.compute_dtype in (torch.bfloat16, torch.float16)
        self._adapted = adapted_layers(model) if self._half else []
        self._stacks: Stacks | None = None
        model.eval()  # no dropout wherever a log-prob is computed, also in training
        self.pair_cost = pair_cost(model)
        if logits_bytes is None:
            logits_bytes = self.tuning.logits_mb * 2**20
        choose_ways(self, shared_prefix=shared_prefix, logits_bytes=logits_bytes)
        self._together: Sequence[Sequence[Any]] = ()
        compute = partial(self.plain_logits, self.check_texts()[0]) if self._adapted else None
        with torch.no_grad():
            if compute and stacked:
                self._stacks = Stacks(model, compute, joined=self.tuning.joined_products)
                self._together = self._stacks.groups
            elif compute and can_be_packed_together(model):
                self._together = same_inputs(model, compute)
        with self.autocast():
            self.cached_bytes = 0 if self.fills else bytes_per_token(model, self.device)
        """Bytes that a cache keeps for each token of a sequence."""

    @property
    def shared_prefix(self) -> bool:
        """Return True if the update computes shared tokens once."""
        return self.training is Training.TREES

    @property
    def is_exact(self) -> bool:
        """Return True if nothing is computed in half precision or with quantised weights."""
        return not self._half and not quantized.is_quantized(self.model)

    @contextmanager
    def exactly(self) -> Iterator[bool]:
        """Compute in float32 inside the context, if possible; enter with whether it is."""
        own = self.compute_dtype, self._cast, self._adapted
        if self._stacks is not None or not can_be_float32(self.model):
            yield False
            return
        try:
            if self._half:
                self.compute_dtype, self._cast, self._adapted = torch.float32, False, []
            with in_float32(self.model):
                yield True
        finally:
            self.compute_dtype, self._cast, self._adapted = own

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

    @classmethod
    def load(
        cls, config: RunConfig, *, need_reference: bool, source: ModelSource | None = None
    ) -> Self:
        """Load the configured model with a fresh adapter (seeded), or with all weights trainable.

        Args:
            config: the configuration of the run.
            need_reference: whether a frozen reference is kept.
            source: where the model is, if that is known already.
        """
        device = pick_device(config.model.device)
        share_heap(device)
        dtype = pick_dtype(config.model.dtype, device)
        name = (
            f"{config.model.name}@{config.model.revision}"
            if config.model.revision
            else config.model.name
        )
        source = source or resolve(name, trust_remote_code=config.model.trust_remote_code)
        # Full fine-tuning keeps master weights in float32: steps of 1e-6 vanish in bfloat16.
        storage_dtype = dtype if config.lora.enabled or dtype == torch.float64 else torch.float32
        refuse_what_cannot_fit(config, source, storage_dtype, device)
        base = load_model(
            source,
            dtype=storage_dtype,
            device=torch.device("cpu") if config.model.offload else device,
            quantization=config.model.quantization,
            kind=config.model.kind,
        )
        tokenizer = load_tokenizer(source)
        if config.model.chat_template:
            tokenizer.chat_template = config.model.chat_template
        torch.manual_seed(config.seed)
        model, reference = (
            (add_adapter(base, config.lora, source, task=cls._task), None)
            if config.lora.enabled
            else _make_trainable(base, source, need_reference)
        )
        if config.model.offload:
            offload(model, device)
        if config.trainer.gradient_checkpointing:
            recompute(model)
        logits_mb = config.trainer.logits_mb
        with loading_errors(source.name, "used"):
            return cls(
                model,
                tokenizer,
                reference=reference,
                shared_prefix=config.trainer.shared_prefix,
                logits_bytes=None if logits_mb is None else logits_mb * 2**20,
                compute_dtype=dtype,
                frame=ChatFrame(
                    config.model.system_prompt,
                    config.model.chat_template_args,
                    tool_format=(
                        None if config.model.tool_format == "auto" else config.model.tool_format
                    ),
                ),
                stacked=config.trainer.stacked_layers,
                thought_tags=config.model.thought_tags,
            )

    def shard(self) -> None:
        """Shard the weights over all processes (see `sharding`)."""
        if self._stacks is not None:  # each process will hold a part of each weight
            self._stacks.remove()
            self._stacks = None
        for model in self.reference.models():
            sharding.shard(model)
        self.sharded = True

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which processes may make different numbers of forward passes.

        All processes have to enter it.
        """
        return sharding.whole(self.model) if self.sharded else nullcontext()

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Cast to `compute_dtype` where some weights are kept in another type; else do nothing.

        These may be all weights, or only those of an adapter.
        """
        if not self._cast and not self._adapted:
            yield
            return
        if self._stacks is not None:
            self._stacks.refresh()
        with (
            torch.autocast(self.device.type, dtype=self.compute_dtype),
            in_type_of_input(self._adapted),
        ):
            yield

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
            return _predict_rows(model, micro, pad_id=self.pad_id, alone=alone, bare=bare)
        assert self.masking is not None
        segments = [row.segment for row in micro.rows]
        trees = pack_trees(
            [segment.prompt_ids for segment in segments],
            [segment.token_ids for segment in segments],
            device=self.device,
            together=micro.together,
            block_rows=self.tuning.block_rows,
        )
        predictions_K = trees.forward(model, self.compute_dtype, masking=self.masking, bare=bare)
        return predictions_K, trees.places

    def decoding(self, *, copied: bool) -> AbstractContextManager[object]:
        """Return a context without gradients, for sampling.

        Inference mode is faster by 3 % on a CPU, but there autocast casts adapters again for each
        token, which it keeps otherwise. Where `prepacked` copies them, it has nothing to cast. Nor
        should it keep all weights, where these are cast; `prepacked` copies them, too.

        Args:
            copied: whether `prepacked` is used.
        """
        packs = copied and self.device.type == "cpu"
        keeps_casts = self._adapted and not self._cast and not packs
        return torch.no_grad() if keeps_casts else torch.inference_mode()

    def merged(self) -> AbstractContextManager[None]:
        """Return a context in which the adapter is merged into a copy of the weights, for sampling.

        It does so only if the weights are at least float32: in bfloat16 the sum would round away
        what the adapter has learned.
        """
        return merged(self.model) if self._merges else nullcontext()

    def prepacked(self, rows: int | None) -> AbstractContextManager[None]:
        """Return a context in which decoding computes with copies of weights (see `prepack`).

        They are packed in a layout that suits about `rows` rows, unless that is None, and in the
        type of the forward pass. Inside `merged`, they hold the merged weights.
        """
        if self._cast:
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
        if self._cast:
            count = cast_bytes if copied else largest_cast_bytes
            return count(self.model, self.compute_dtype)
        return (merged_bytes(self.model) if self._merges else 0) + (
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
        selected = {"selected_adapters": ["default"]} if hasattr(self.model, "peft_config") else {}
        with as_os_error():
            self.model.save_pretrained(folder, state_dict=state, **selected)
            self.tokenizer.save_pretrained(folder)


def _make_trainable(base: Any, source: ModelSource, need_reference: bool) -> tuple[Any, Any]:
    """Make all weights trainable, with a frozen copy if a reference is needed.

    An adapter that the source contains is merged first.

    Returns:
        The model, and the reference or None.
    """
    if source.adapter_path is not None:
        base = load_adapter(base, source.adapter_path, source.name).merge_and_unload()
    base.requires_grad_(True)
    return base, copy.deepcopy(base).eval().requires_grad_(False) if need_reference else None


def _predict_rows(
    model: Any, micro: MicroBatch, *, pad_id: int, alone: bool, bare: bool
) -> tuple[Tensor, list[int]]:
    """Return the predictions of rows that each contain a copy of their prompt.

    This is the slow path, for models that cannot be given a mask. The rows are padded, prompts on
    the left and completions on the right, or computed one after the other.
    """
    prompts = [row.segment.prompt_ids for row in micro.rows]
    completions = [row.segment.token_ids for row in micro.rows]
    device, width = micro.tokens_BT.device, micro.tokens_BT.shape[1]
    if alone:
        texts = [
            (upload([[*prompt, *completion]], device), len(completion))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        predictions_M = torch.cat(
            [
                _predict_last(
                    model, tokens_1S, torch.ones_like(tokens_1S), count, padded=False, bare=bare
                )[0]
                for tokens_1S, count in texts
            ]
        )
    else:
        prompts_BS, real_BS = pad_left(prompts, pad_id, device)
        predictions_BT = _predict_last(
            model,
            torch.cat([prompts_BS, micro.tokens_BT], dim=1),
            torch.cat([real_BS, micro.real_BT], dim=1),
            width,
            padded=min(map(len, prompts)) < prompts_BS.shape[1]
            or min(map(len, completions)) < width,
            bare=bare,
        )
        place_M = upload(micro.places, device, dtype=torch.long)
        predictions_M = predictions_BT[place_M // width, place_M % width]
    return predictions_M, list(range(len(predictions_M)))


def _predict_last(
    model: Any, tokens_BS: Tensor, real_BS: Tensor, count: int, *, padded: bool, bare: bool
) -> Tensor:
    """Return the predictions (B, count, ...) of the last `count` columns."""
    with head_at(model, None, bare=bare) as hidden_states:
        logits = forward_padded(
            model, tokens_BS, real_BS, padded=padded, keep=count + 1, use_cache=False
        )
    predictions = hidden_states[0] if bare else logits
    return predictions[:, -count - 1 : -1]
