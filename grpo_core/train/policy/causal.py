"""Wrap a causal language model, its adapter and its frozen reference as a policy of log-probs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message, Rollout
from grpo_core.train.compute import attention
from grpo_core.train.compute.batch import MicroBatch, Row, passes, tensors
from grpo_core.train.compute.heap import share_heap
from grpo_core.train.compute.logprob import Head, head_at, tempered, token_logprobs
from grpo_core.train.compute.prepack import packed_bytes, prepacked
from grpo_core.train.compute.recompute import recompute
from grpo_core.train.compute.thread import ComputeThread
from grpo_core.train.compute.tree import can_be_masked, pack_trees, pair_cost
from grpo_core.train.models import chat, quantized
from grpo_core.train.models.adapter import (
    adapted_layers,
    add_adapter,
    in_type_of_input,
    merged,
    merged_bytes,
)
from grpo_core.train.models.chat import Frame
from grpo_core.train.models.device import pick_device, pick_dtype
from grpo_core.train.models.disk import as_os_error
from grpo_core.train.models.load import (
    ModelSource,
    end_of_turn_id,
    end_token_ids,
    load_model,
    load_tokenizer,
    refuse_what_cannot_fit,
    resolve,
)
from grpo_core.train.models.offload import offload
from grpo_core.train.models.reference import Reference
from grpo_core.train.policy import sharding


class Policy:
    """Compute log-probs and texts with a causal language model.

    Args:
        model: the model to train.
        tokenizer: its tokenizer.
        reference: a copied model for full fine-tuning; None where disabling the adapter (or
            enabling the frozen one) turns the model into the reference.
        shared_prefix: compute shared tokens of rows once, where the model allows it.
        logits_bytes: most bytes for logits at a time; 0 computes all logits at once.
        compute_dtype: the type of the forward pass; that of the weights if None.
        frame: system prompt and options of the chat template.
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
        logits_bytes: int = 256 * 2**20,
        compute_dtype: torch.dtype | None = None,
        frame: Frame | None = None,
    ) -> None:
        self.model = model
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        """Most tokens that the model can attend to; None if unknown."""
        self.tokenizer = tokenizer
        self.reference = Reference(model, reference)
        """Computes as the reference policy."""
        self.frame = frame or Frame()
        self.shared_prefix = self.sharded = False
        self.logits_bytes = 0
        """Most bytes for logits at a time. 0: the model computes all at once, as it has to where
        its logits are more than the output of its head."""
        self.end_ids = end_token_ids(model, tokenizer)
        """Every token that ends a completion."""
        self.pad_id: int = (
            tokenizer.pad_token_id
            if tokenizer.pad_token_id is not None
            else next(iter(self.end_ids), 0)
        )
        # Offloaded weights are on no device.
        weight = next(p for p in model.parameters() if p.device.type != "meta")
        self.device: torch.device = weight.device
        self.thread = ComputeThread(self.device)
        """Runs everything that samples from the policy or changes its weights."""
        self.compute_dtype: torch.dtype = compute_dtype or weight.dtype
        """Type of the forward pass; trained weights are kept in float32 and cast in the pass."""
        self._cast = self.compute_dtype != weight.dtype
        self._merges = self.compute_dtype in (torch.float32, torch.float64) and not self._cast
        self._half = self.compute_dtype in (torch.bfloat16, torch.float16)
        self._adapted = adapted_layers(model) if self._half else []
        model.eval()  # no dropout wherever a log-prob is computed, also in training
        can_share = self._prepare()
        (micro,) = self.micro_batches(
            [self.measuring_row(4, 3, 5), self.measuring_row(4, 2, 6)],
            max_tokens=10_000,
            dtype=torch.float32,
        )
        with torch.no_grad():
            plain_logprobs, _ = self._logprobs(self.model, micro, 1.0)
            self.logits_bytes = logits_bytes
            if logits_bytes and not self._agrees(micro, plain_logprobs):
                self.logits_bytes = 0
            self.shared_prefix = shared_prefix and can_share
            self.shared_prefix = self.shared_prefix and self._agrees(micro, plain_logprobs)

    def _prepare(self) -> bool:
        """Prepare the models for shared prompts; return True if they can be shared."""
        self.pair_cost = pair_cost(self.model)
        for model in self.reference.models():
            attention.adopt(model)
        return can_be_masked(self.model)

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
        return cls(
            model,
            tokenizer,
            reference=reference,
            shared_prefix=config.trainer.shared_prefix,
            logits_bytes=config.trainer.logits_mb * 2**20,
            compute_dtype=dtype,
            frame=Frame(config.model.system_prompt, config.model.chat_template_args),
        )

    def shard(self) -> None:
        """Shard the weights over all processes (see `sharding`)."""
        for model in self.reference.models():
            sharding.shard(model)
        self.sharded = True
        self.logits_bytes = 0  # the head's weights are only gathered while the whole model computes

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which processes may make different numbers of forward passes.

        All processes have to enter it.
        """
        return sharding.whole(self.model) if self.sharded else nullcontext()

    def encode_checked(
        self,
        prompt: str | tuple[Message, ...],
        *,
        max_new_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt, as `encode`, and check its size.

        Raises:
            ConfigError: the prompt is empty, or leaves no room for `max_new_tokens` in the context.
        """
        ids = self.encode(prompt, tools=tools)
        if not ids:
            raise ConfigError(
                "the prompt has no tokens; the environment must return a prompt that is not empty"
            )
        if self.context is not None and len(ids) + max_new_tokens > self.context:
            raise ConfigError(
                f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones exceed the model's "
                f"context of {self.context}; lower --max-new-tokens"
            )
        return ids

    def _agrees(self, micro: MicroBatch, plain_logprobs: Tensor) -> bool:
        """Return True if the present way of computing gives this model's own log-probs.

        It is tried, since no model config states it reliably.
        """
        try:
            logprobs, _ = self._logprobs(self.model, micro, 1.0)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            IndexError,
            AttributeError,
        ):
            # The attention takes no mask of this shape, or the model has no head.
            return False
        tolerance = 0.5 if self._half or quantized.is_quantized(self.model) else 1e-2
        return bool((logprobs - plain_logprobs).abs().max() < tolerance)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Cast to `compute_dtype` where some weights are kept in another type; else do nothing.

        These may be all weights, or only those of an adapter.
        """
        if not self._cast and not self._adapted:
            yield
            return
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

    def encode(
        self, prompt: str | tuple[Message, ...], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt.

        Args:
            prompt: raw text or chat messages.
            tools: JSON schemas of functions that the policy may call.
        """
        return chat.encode(self.tokenizer, prompt, replace(self.frame, tools=tools))

    def encode_answer(self, prompt: str | tuple[Message, ...], answer: str) -> tuple[int, ...]:
        """Return the tokens of `answer` as the policy would have generated it.

        Its end token is included.
        """
        end = None if isinstance(prompt, str) else end_of_turn_id(self.tokenizer)
        end = end if end is not None else self.tokenizer.eos_token_id
        ends = [end] if end is not None else list(self.end_ids[:1])
        return (*self.tokenizer(answer, add_special_tokens=False)["input_ids"], *ends)

    def encode_reply(
        self,
        rollout: Rollout,
        prompt: str | tuple[Message, ...],
        turn: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the tokens of the environment's turn after `rollout`.

        They end where the policy's next turn begins.

        Args:
            rollout: the dialogue so far.
            prompt: its prompt.
            turn: the messages of the environment.
            tools: JSON schemas of functions that the policy may call.
        """
        last = rollout.token_ids[-1] if rollout.token_ids else None
        return chat.encode_reply(
            self.tokenizer,
            prompt,
            rollout.messages,
            turn,
            replace(self.frame, tools=tools),
            end_id=last if last in self.end_ids else None,
        )

    def completion_text(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """Return the text of the completion `token_ids` of a prompt."""
        return self.decode(list(token_ids))

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
        return Row(
            Rollout((), "length", tuple(prompt_ids), tokens, (0.0,) * budget, (1,) * budget),
            0.0,
            0.0,
        )

    def passes(
        self, rows: Sequence[Row], *, max_tokens: int
    ) -> Iterator[tuple[list[list[Row]], int]]:
        """Group rows into forward passes (see `batch.passes`)."""
        return passes(
            rows, max_tokens=max_tokens, shared_prefix=self.shared_prefix, pair=self.pair_cost
        )

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

    def decode(self, token_ids: tuple[int, ...] | list[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

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
        return self._logprobs(self.model, micro, temperature, entropy=entropy)

    @torch.no_grad()
    def reference_logprobs(self, micro: MicroBatch, *, temperature: float) -> Tensor:
        """Return the log-probs (B, T) under the frozen reference."""
        with self.reference.model() as model:
            return self._logprobs(model, micro, temperature)[0]

    def _logprobs(
        self, model: Any, micro: MicroBatch, temperature: float, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (B, T) under `model` (see `logprobs`)."""
        real_BT = micro.real_BT.bool()
        tokens_M = micro.tokens_BT[real_BT]
        with self.autocast():
            if self.logits_bytes:
                hidden_KH, place_M = self._predictions(model, micro, bare=True)
                head = Head(
                    model.get_output_embeddings(),
                    model.config.get_text_config(decoder=True).vocab_size,
                    temperature,
                    self.logits_bytes,
                    entropy,
                )
                logprob_M, entropy_M = head.logprobs(hidden_KH, place_M, tokens_M)
            else:
                logits_KV, place_M = self._predictions(model, micro, bare=False)
                logprob_M, entropy_M = token_logprobs(
                    tempered(logits_KV, temperature), place_M, tokens_M
                )
        logprob_BT = logprob_M.new_zeros(real_BT.shape).masked_scatter(real_BT, logprob_M)
        return logprob_BT, entropy_M.new_zeros(real_BT.shape).masked_scatter(real_BT, entropy_M)

    def _predictions(self, model: Any, micro: MicroBatch, *, bare: bool) -> tuple[Tensor, Tensor]:
        """Return the predictions of the model, and which of them each token was drawn from.

        Args:
            model: the policy's model or the reference.
            micro: the micro-batch.
            bare: return the last hidden states (K, H) instead of logits.

        Returns:
            The logits (K, V), and the index (M,) into them of each completion token, row by row.
        """
        if not self.shared_prefix:
            with head_at(model, None, bare=True) if bare else nullcontext():
                return _predict_padded(model, micro, pad_id=self.pad_id)
        rollouts = [row.rollout for row in micro.rows]
        prompts, completions = [r.prompt_ids for r in rollouts], [r.token_ids for r in rollouts]
        trees = pack_trees(prompts, completions, device=self.device, together=micro.together)
        return trees.forward(model, self.compute_dtype, bare=bare), trees.place_M

    def merged(self) -> AbstractContextManager[None]:
        """Return a context in which the adapter is merged into a copy of the weights, for sampling.

        It does so only if the weights are at least float32: in bfloat16 the sum would round away
        what the adapter has learned.
        """
        return merged(self.model) if self._merges else nullcontext()

    def prepacked(self, rows: int) -> AbstractContextManager[None]:
        """Return a context in which the weights are packed for decoding (see `prepack`).

        The layout suits about `rows` rows. Inside `merged`, the merged weights are packed.
        """
        return prepacked(self.model, rows) if self._packs else nullcontext()

    @property
    def _packs(self) -> bool:
        """Return True if `prepacked` may pack weights."""
        return not self._cast and not self.sharded

    def decoding_bytes(self, *, packed: bool) -> int:
        """Return the bytes of the merged, packed or cast copies of weights that sampling makes."""
        if self._cast:
            return int(
                sum(p.numel() for p in self.model.parameters()) * self.compute_dtype.itemsize
            )
        return (merged_bytes(self.model) if self._merges else 0) + (
            packed_bytes(self.model) if packed and self._packs else 0
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
        import peft

        base = peft.PeftModel.from_pretrained(base, source.adapter_path).merge_and_unload()
    base.requires_grad_(True)
    return base, copy.deepcopy(base).eval().requires_grad_(False) if need_reference else None


def _predict_padded(model: Any, micro: MicroBatch, *, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return the predictions of rows that each contain a copy of their prompt, padded on the left.

    This is the slow path, for models that cannot be given a mask.
    """
    device = micro.tokens_BT.device
    prompts = [row.rollout.prompt_ids for row in micro.rows]
    width = max(map(len, prompts))
    prompts_BS = torch.tensor(
        [[pad_id] * (width - len(p)) + list(p) for p in prompts], device=device
    )
    real_BS = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    mask_BS = torch.cat([real_BS, micro.real_BT], dim=1)
    out = model(
        input_ids=torch.cat([prompts_BS, micro.tokens_BT], dim=1),
        attention_mask=mask_BS,
        position_ids=(mask_BS.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=micro.tokens_BT.shape[1] + 1,
    )
    predictions_MV = out.logits[:, :-1][micro.real_BT.bool()]
    return predictions_MV, torch.arange(len(predictions_MV), device=device)
