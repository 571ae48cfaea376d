"""The policy: a causal language model, its adapter and its frozen reference, seen through log-probs."""

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
from grpo_core.train.compute.tree import can_be_masked, pair_cost, plant
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


def unwritten(prompt: Sequence[int], tokens: int, number: int) -> Row:
    """A row of so many tokens, none of which is that of a row with another number: for measuring."""
    return Row(
        Rollout((), "length", tuple(prompt), (number,) * tokens, (0.0,) * tokens, (1,) * tokens),
        0.0,
        0.0,
    )


class Policy:
    """A causal language model. model: what is trained; tokenizer; end_ids: every token that ends a completion; pad_id; device.

    reference: a copied model for full fine-tuning; None where switching the adapter off (or to the frozen one) gives it. The attribute of
    that name is whatever computes as the reference.
    logits_bytes: most memory for logits at a time; 0: the model makes all at once (it has to where they are more than its head's output).
    compute_dtype: what the forward pass computes in; weights that are trained are kept in float32 and cast as it goes.
    fills: whether it fills gaps, all at once, instead of continuing a text; then it cannot be answered.
    """

    fills: ClassVar[bool] = False
    _task: ClassVar[str | None] = "CAUSAL_LM"

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
        self.tokenizer = tokenizer
        self.reference = Reference(model, reference)
        self.frame = frame or Frame()
        self.shared_prefix = self.sharded = False
        self.logits_bytes = 0
        self.end_ids = end_token_ids(model, tokenizer)
        self.pad_id: int = (
            tokenizer.pad_token_id
            if tokenizer.pad_token_id is not None
            else next(iter(self.end_ids), 0)
        )
        weight = next(
            p for p in model.parameters() if p.device.type != "meta"
        )  # weights that are offloaded are nowhere
        self.device: torch.device = weight.device
        self.compute_dtype: torch.dtype = compute_dtype or weight.dtype
        self._cast = self.compute_dtype != weight.dtype
        half = self.compute_dtype in (torch.bfloat16, torch.float16)
        self._adapted = adapted_layers(model) if half else []
        model.eval()  # dropout off wherever a log-prob is computed, also while training
        can_share = self._prepare()
        rows = [self.blank(4, 3, 5), self.blank(4, 2, 6)]
        (micro,) = self.micro_batches(rows, max_tokens=10_000, dtype=torch.float32)
        with torch.no_grad():
            plain, _ = self._logprobs(self.model, micro, 1.0)
            self.logits_bytes = logits_bytes
            if logits_bytes and not self._agrees(micro, plain):
                self.logits_bytes = 0
            self.shared_prefix = shared_prefix and can_share
            self.shared_prefix = self.shared_prefix and self._agrees(micro, plain)

    def _prepare(self) -> bool:
        """Get the models ready for shared prompts; whether they can be computed so."""
        self.pair_cost = pair_cost(self.model)
        for each in self.reference.models():
            attention.adopt(each)
        return can_be_masked(self.model)

    @classmethod
    def load(
        cls, config: RunConfig, *, need_reference: bool, source: ModelSource | None = None
    ) -> Self:
        """The configured model with a fresh adapter (seeded), or all weights trainable. source: where it is, if that is known."""
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
        stored = dtype if config.lora.enabled or dtype == torch.float64 else torch.float32
        refuse_what_cannot_fit(config, source, stored, device)
        resting = torch.device("cpu") if config.model.offload else device
        base = load_model(
            source,
            dtype=stored,
            device=resting,
            quantization=config.model.quantization,
            kind=config.model.kind,
        )
        tokenizer = load_tokenizer(source)
        if config.model.chat_template:
            tokenizer.chat_template = config.model.chat_template
        torch.manual_seed(config.seed)
        adapted = config.lora.enabled
        model, reference = (
            (add_adapter(base, config.lora, source, task=cls._task), None)
            if adapted
            else _full(base, source, need_reference)
        )
        if config.model.offload:
            offload(model, device)
        if config.trainer.gradient_checkpointing:
            recompute(model)
        frame = Frame(config.model.system_prompt, config.model.chat_template_args)
        return cls(
            model,
            tokenizer,
            reference=reference,
            shared_prefix=config.trainer.shared_prefix,
            logits_bytes=config.trainer.logits_mb * 2**20,
            compute_dtype=dtype,
            frame=frame,
        )

    def shard(self) -> None:
        """Share the weights out over all processes (see `sharding`)."""
        for model in self.reference.models():
            sharding.shard(model)
        self.sharded = True
        self.logits_bytes = 0  # the head's weights are only there while the whole model computes

    def whole(self) -> AbstractContextManager[None]:
        """Where processes may make different numbers of forward passes; to be entered by all."""
        return sharding.whole(self.model) if self.sharded else nullcontext()

    def encode_checked(
        self,
        prompt: str | tuple[Message, ...],
        *,
        max_new_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """`encode`, refusing a prompt that leaves no room for the completion in the model's context."""
        ids = self.encode(prompt, tools=tools)
        most = self.context
        if not ids:
            raise ConfigError("the prompt has no tokens; the environment must ask something")
        if most is not None and len(ids) + max_new_tokens > most:
            raise ConfigError(
                f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones exceed the model's context of {most}; lower --max-new-tokens"
            )
        return ids

    @property
    def context(self) -> int | None:
        """Most tokens the model can look back on; None if it does not say."""
        most: int | None = getattr(self.model.config, "max_position_embeddings", None)
        return most

    def _agrees(self, micro: MicroBatch, plain: Tensor) -> bool:
        """Whether the present way of computing gives this model's own log-probs: tried, since no config tells it for certain."""
        try:
            found, _ = self._logprobs(self.model, micro, 1.0)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            IndexError,
            AttributeError,
        ):  # an attention that takes no mask of this shape, no head
            return False
        rough = self.compute_dtype in (torch.bfloat16, torch.float16) or quantized.is_quantized(
            self.model
        )
        tolerance = 0.5 if rough else 1e-2
        return bool((found - plain).abs().max() < tolerance)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Casts to `compute_dtype` where weights are kept in another type, be it all or an adapter's; else does nothing."""
        if not self._cast and not self._adapted:
            yield
            return
        with (
            torch.autocast(self.device.type, dtype=self.compute_dtype),
            in_type_of_input(self._adapted),
        ):
            yield

    def trainable(self) -> list[tuple[str, Tensor]]:
        """Names and tensors that are trained; refuses a model in which nothing is."""
        found = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        if not found:
            raise ConfigError(
                "nothing in the model is trainable; set lora.enabled=true with lora.targets that exist, or lora.enabled=false"
            )
        return found

    def encode(
        self, prompt: str | tuple[Message, ...], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Tokens of a prompt. tools: JSON schemas of functions that the policy may call."""
        return chat.encode(self.tokenizer, prompt, replace(self.frame, tools=tools))

    def encode_answer(self, prompt: str | tuple[Message, ...], answer: str) -> tuple[int, ...]:
        """Tokens of `answer` to `prompt` as the policy would have written it, its end token included."""
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
        """Tokens of the environment's turn after `rollout` so far, ready for the policy's next turn."""
        last = rollout.token_ids[-1] if rollout.token_ids else None
        frame = replace(self.frame, tools=tools)
        return chat.encode_reply(
            self.tokenizer,
            prompt,
            rollout.messages,
            turn,
            frame,
            end_id=last if last in self.end_ids else None,
        )

    def said(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """What the completion `token_ids` of a prompt says."""
        return self.decode(list(token_ids))

    def slots(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """Where the tokens of a completion stand in the prompt; None: they stand behind it."""
        return None

    def blank(self, asked: int, said: int, number: int) -> Row:
        """A row for measuring: a prompt of `asked` tokens, and `said` more, none of which is that of a row with another number."""
        return unwritten((1,) * asked, said, number)

    def unwritten(self, prompt_ids: Sequence[int], budget: int, number: int) -> Row:
        """The longest row that a prompt may become, within a budget of new tokens."""
        return unwritten(prompt_ids, budget, number)

    def passes(
        self, rows: Sequence[Row], *, max_tokens: int
    ) -> Iterator[tuple[list[list[Row]], int]]:
        """Rows by forward passes (see `batch.passes`)."""
        return passes(
            rows, max_tokens=max_tokens, shared_prefix=self.shared_prefix, pair=self.pair_cost
        )

    def micro_batches(
        self, rows: Sequence[Row], *, max_tokens: int, dtype: torch.dtype
    ) -> Iterator[MicroBatch]:
        """The same as tensors on the policy's device. dtype: of log-probs and weights."""
        return (
            tensors(chunk, device=self.device, dtype=dtype)
            for chunk, _ in self.passes(rows, max_tokens=max_tokens)
        )

    def decode(self, token_ids: tuple[int, ...] | list[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def logprobs(
        self, micro: MicroBatch, *, temperature: float, entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-prob of each completion token under the full distribution at `temperature`, and that distribution's entropy.

        Both (B, T); what they hold at padding means nothing and must be masked. entropy: whether it needs a gradient, too.
        """
        return self._logprobs(self.model, micro, temperature, entropy=entropy)

    @torch.no_grad()
    def reference_logprobs(self, micro: MicroBatch, *, temperature: float) -> Tensor:
        """The same log-probs (B, T) under the frozen reference."""
        with self.reference.model() as model:
            return self._logprobs(model, micro, temperature)[0]

    def _logprobs(
        self, model: Any, micro: MicroBatch, temperature: float, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        real_BT = micro.real_BT.bool()
        tokens_M = micro.tokens_BT[real_BT]
        with self.autocast():
            if self.logits_bytes:
                hidden_KH, place_M = self._predictions(model, micro, bare=True)
                vocabulary = model.config.get_text_config(decoder=True).vocab_size
                head = Head(
                    model.get_output_embeddings(),
                    vocabulary,
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
        """The model's logits (K, V) where it predicts, and for each completion token, row by row, which of them it was drawn from (M,).

        bare: its last hidden states instead.
        """
        if not self.shared_prefix:
            with head_at(model, None, bare=True) if bare else nullcontext():
                return _unshared(model, micro, pad_id=self.pad_id)
        rollouts = [row.rollout for row in micro.rows]
        prompts, completions = [r.prompt_ids for r in rollouts], [r.token_ids for r in rollouts]
        trees = plant(prompts, completions, device=self.device, together=micro.together)
        return trees.through(model, self.compute_dtype, bare=bare), trees.place_M

    def merged(self) -> AbstractContextManager[None]:
        """The adapter folded into a copy of the weights, for sampling. Only where they are at least float32: in bfloat16 the sum would
        round away what the adapter learned."""
        return merged(self.model) if self._merges else nullcontext()

    @property
    def _merges(self) -> bool:
        return self.compute_dtype in (torch.float32, torch.float64) and not self._cast

    def prepacked(self, rows: int) -> AbstractContextManager[None]:
        """The weights as decoding `rows` rows multiplies them fastest (see `prepack`); inside `merged`, those that it made."""
        return prepacked(self.model, rows) if self._packs else nullcontext()

    @property
    def _packs(self) -> bool:
        return not self._cast and not self.sharded

    def decoding_bytes(self, *, packed: bool) -> int:
        """Of the copies of the weights that sampling makes: folded, packed, or cast."""
        if self._cast:
            return int(
                sum(p.numel() for p in self.model.parameters()) * self.compute_dtype.itemsize
            )
        return (merged_bytes(self.model) if self._merges else 0) + (
            packed_bytes(self.model) if packed and self._packs else 0
        )

    def state(self) -> dict[str, Tensor] | None:
        """What `save` needs where the weights are shared out; to be called by all processes."""
        if not self.sharded:
            return None
        adapter = hasattr(self.model, "peft_config")
        found: dict[str, Tensor] = sharding.put_together(
            {
                n: p.detach()
                for n, p in (self.trainable() if adapter else self.model.named_parameters())
            }
        )
        return found

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Adapter (or whole model) and tokenizer, as transformers and peft load them. state: as `state` gave it."""
        selected = {"selected_adapters": ["default"]} if hasattr(self.model, "peft_config") else {}
        with as_os_error():
            self.model.save_pretrained(folder, state_dict=state, **selected)
            self.tokenizer.save_pretrained(folder)


def _full(base: Any, source: ModelSource, need_reference: bool) -> tuple[Any, Any]:
    """All weights trainable (an adapter that the source brings is merged first), with a frozen copy if a reference is needed."""
    if source.adapter_path is not None:
        import peft

        base = peft.PeftModel.from_pretrained(base, source.adapter_path).merge_and_unload()
    for parameter in base.parameters():
        parameter.requires_grad_(True)
    if not need_reference:
        return base, None
    reference = copy.deepcopy(base).eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    return base, reference


def _unshared(model: Any, micro: MicroBatch, *, pad_id: int) -> tuple[Tensor, Tensor]:
    """The slow path, for models that cannot be given a mask: every row with its own copy of the prompt, padded on the left."""
    device = micro.tokens_BT.device
    prompts = [row.rollout.prompt_ids for row in micro.rows]
    width = max(map(len, prompts))
    prompts_BS = torch.tensor(
        [[pad_id] * (width - len(p)) + list(p) for p in prompts], device=device
    )
    real_BS = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    tokens_BS = torch.cat([prompts_BS, micro.tokens_BT], dim=1)
    mask_BS = torch.cat([real_BS, micro.real_BT], dim=1)
    positions_BS = (mask_BS.cumsum(dim=1) - 1).clamp(min=0)
    T = micro.tokens_BT.shape[1]
    out = model(
        input_ids=tokens_BS,
        attention_mask=mask_BS,
        position_ids=positions_BS,
        use_cache=False,
        logits_to_keep=T + 1,
    )
    predictions_MV = out.logits[:, :-1][micro.real_BT.bool()]
    return predictions_MV, torch.arange(len(predictions_MV), device=device)
