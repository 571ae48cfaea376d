"""A policy that fills gaps: a masked language model, which fills all gaps of an input at once, each by itself.

Every log-prob of an attempt comes from one forward pass of its prompt, so the attempts at a prompt share that pass whole: sampling,
update and reference need one for each prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_core.extract import parse_json
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import MASK, Message
from grpo_core.train.compute.batch import MicroBatch, Row, packed
from grpo_core.train.compute.logprob import head_at
from grpo_core.train.policy.causal import Policy, unwritten


class MaskedPolicy(Policy):
    """As `Policy`, of a model with a head for masked tokens. A prompt is raw text with `MASK` wherever a token is to be filled in; what
    the policy says is a JSON array of texts, one for each run of neighbouring gaps."""

    fills: ClassVar[bool] = True
    _task: ClassVar[str | None] = None

    def __init__(self, model: Any, tokenizer: Any, **more: Any) -> None:
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                "the tokenizer of this masked language model has no mask token, so nothing says where its gaps are"
            )
        self.mask_id: int = tokenizer.mask_token_id
        super().__init__(model, tokenizer, **more)
        self.end_ids = ()  # a gap has as many tokens as it has; none of them ends it

    def _prepare(self) -> bool:
        return True

    def encode(
        self, prompt: str | tuple[Message, ...], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            raise ConfigError(
                "a masked language model fills gaps in raw text, and this environment asks in chat messages; take one that asks with "
                f"{MASK}, or a causal language model"
            )
        ids = tuple(self.tokenizer(prompt.replace(MASK, self.tokenizer.mask_token))["input_ids"])
        if (found := ids.count(self.mask_id)) != prompt.count(MASK):
            raise ConfigError(
                f"the prompt has {prompt.count(MASK)} gaps ({MASK}), and its tokens have {found}: {prompt[:100]!r}"
            )
        return ids

    def encode_checked(
        self,
        prompt: str | tuple[Message, ...],
        *,
        max_new_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """`encode`, refusing a prompt without gaps, with more than the budget, and one that the model cannot read."""
        ids = self.encode(prompt, tools=tools)
        gaps, most = len(self.slots(ids)), self.context
        if not 0 < gaps <= max_new_tokens:
            raise ConfigError(
                f"a prompt has {gaps} tokens to fill in, and between 1 and {max_new_tokens} may be; set --max-new-tokens"
            )
        if most is not None and len(ids) > most:
            raise ConfigError(
                f"a prompt of {len(ids)} tokens exceeds the model's context of {most}; take shorter texts"
            )
        return ids

    def encode_answer(self, prompt: str | tuple[Message, ...], answer: str) -> tuple[int, ...]:
        """Tokens of `answer`, a JSON array with a text for each gap; each has to have as many tokens as its gap."""
        gaps, found = list(_runs(self.slots(self.encode(prompt)))), parse_json(answer)
        fills = None if found is None else found.value
        if not isinstance(fills, list) or not all(isinstance(fill, str) for fill in fills):
            raise ConfigError(
                f"an answer to a text with gaps is a JSON array with a text for each; found {answer[:100]!r}"
            )
        tokens = [self.tokenizer(fill, add_special_tokens=False)["input_ids"] for fill in fills]
        if [len(each) for each in tokens] != [len(gap) for gap in gaps]:
            raise ConfigError(
                f"it fills gaps of {[len(gap) for gap in gaps]} tokens with texts of {[len(each) for each in tokens]}: {answer[:100]}"
            )
        return tuple(token for each in tokens for token in each)

    def said(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        tokens = iter(token_ids)
        fills = [self.decode([next(tokens) for _ in gap]) for gap in _runs(self.slots(prompt_ids))]
        return json.dumps(fills, ensure_ascii=False)

    def slots(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(place for place, token in enumerate(prompt_ids) if token == self.mask_id)

    def blank(self, asked: int, said: int, number: int) -> Row:
        return unwritten((1,) * asked + (self.mask_id,) * said, said, number)

    def unwritten(self, prompt_ids: Sequence[int], budget: int, number: int) -> Row:
        return unwritten(prompt_ids, len(self.slots(prompt_ids)), number)

    def passes(
        self, rows: Sequence[Row], *, max_tokens: int
    ) -> Iterator[tuple[list[list[Row]], int]]:
        """Longest prompts first; all rows of a prompt in the same pass, where it counts once."""
        groups: dict[Any, list[Row]] = {}
        for number, row in enumerate(rows):
            groups.setdefault(row.rollout.prompt_ids if self.shared_prefix else number, []).append(
                row
            )

        def padded(chunk: Sequence[list[Row]]) -> int:
            return len(chunk) * max(len(group[0].rollout.prompt_ids) for group in chunk)

        return packed(groups.values(), max_tokens=max_tokens, padded=padded)

    def gaps(self, model: Any, prompts: Sequence[Sequence[int]], *, bare: bool = False) -> Tensor:
        """The model's logits (K, V) at the gaps of all prompts, one after the other; bare: its last hidden states instead."""
        width = max(map(len, prompts))
        tokens_PN = torch.tensor(
            [[*p, *[self.pad_id] * (width - len(p))] for p in prompts], device=self.device
        )
        real_PN = torch.tensor(
            [[1] * len(p) + [0] * (width - len(p)) for p in prompts], device=self.device
        )
        gaps_K = torch.tensor(
            [n * width + slot for n, p in enumerate(prompts) for slot in self.slots(p)],
            device=self.device,
        )
        with head_at(model, gaps_K, bare=True) if bare else nullcontext():
            found: Tensor = model(input_ids=tokens_PN, attention_mask=real_PN).logits
        return found[0] if bare else found.flatten(0, 1)[gaps_K]

    def _predictions(self, model: Any, micro: MicroBatch, *, bare: bool) -> tuple[Tensor, Tensor]:
        prompts = [micro.rows[first].rollout.prompt_ids for first in _starts(micro.together)]
        start, places = 0, []
        for prompt, rows in zip(prompts, micro.together, strict=True):
            count = len(self.slots(prompt))
            places += list(range(start, start + count)) * rows
            start += count
        return self.gaps(model, prompts, bare=bare), torch.tensor(places, device=self.device)


def _starts(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths))]


def _runs(slots: Sequence[int]) -> Iterator[list[int]]:
    """Slots that stand side by side."""
    for _, run in groupby(enumerate(slots), key=lambda pair: pair[1] - pair[0]):
        yield [slot for _, slot in run]
