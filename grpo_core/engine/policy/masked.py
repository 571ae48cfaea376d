"""Train a policy that fills gaps: a masked language model.

It fills all gaps of an input at once. Every log-prob of a completion comes from one forward pass of
its prompt, so all completions of a prompt share that pass: sampling, update and reference each need
one per prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from grpo_core.engine.compute.batch import MicroBatch, Row, packed
from grpo_core.engine.compute.logprob import head_at
from grpo_core.engine.models import pieces
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.room import NoRoomError
from grpo_core.engine.policy.ways import Text, Training
from grpo_core.extract import parse_json
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import MASK, Message

_GAP = re.compile(f"(?:{re.escape(MASK)})+")
"""A run of neighbouring gaps in a prompt."""


class MaskedPolicy(Policy):
    """Wrap a model with a head for masked tokens as a `Policy`.

    A prompt is raw text with `MASK` wherever a token is to be filled in. The text of a completion
    is a JSON array with one text for each run of neighbouring gaps.
    """

    fills: ClassVar[bool] = True
    task: ClassVar[str | None] = None

    def __init__(self, model: Any, tokenizer: Any, **more: Any) -> None:
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                "the tokenizer of this masked language model has no mask token, so the gaps of a "
                "prompt cannot be marked; use a model with a mask token"
            )
        self.mask_id: int = tokenizer.mask_token_id
        super().__init__(model, tokenizer, **more)
        self.end_ids = ()  # the number of tokens is that of the gaps; no token ends a completion

    def adopt_attention(self, adopts: bool) -> None:
        """Do nothing: there are no trees."""

    def check_texts(self) -> list[Text]:
        """Return the texts by which `selfcheck` compares ways to compute: their ends are gaps."""
        texts = super().check_texts()
        gaps = (self.mask_id,) * len(texts[0].completion)
        return [Text((*text.prompt, *gaps), text.completion) for text in texts]

    def plain_logits(self, text: Text) -> Tensor:
        """Return the logits (T, V) at the gaps by a forward pass of this text alone."""
        tokens_1N = torch.tensor([text.prompt], device=self.device)
        with self.autocast():
            logits_1NV: Tensor = self.model(input_ids=tokens_1N).logits
        return logits_1NV[0, list(self.slots(text.prompt))]

    def encode(
        self, prompt: str | tuple[Message, ...], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt of raw text.

        Raises:
            ConfigError: the prompt consists of chat messages, or its gaps do not match its mask
                tokens.
        """
        if not isinstance(prompt, str):
            raise ConfigError(
                "a masked language model fills gaps in raw text, but the prompts of this "
                "environment are chat messages; use an environment whose prompts contain "
                f"{MASK}, or a causal language model"
            )
        ids = tuple(self.tokenizer(prompt.replace(MASK, self.tokenizer.mask_token))["input_ids"])
        if (mask_count := ids.count(self.mask_id)) != prompt.count(MASK):
            raise ConfigError(
                f"the prompt has {prompt.count(MASK)} gaps ({MASK}), but its tokens contain "
                f"{mask_count} mask tokens; remove mask tokens from the text of the prompt: "
                f"{prompt[:100]!r}"
            )
        return ids

    def encode_checked(
        self,
        prompt: str | tuple[Message, ...],
        *,
        max_new_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt, as `encode`, and check its size.

        Raises:
            NoRoomError: the prompt has more tokens than the model's context.
            ConfigError: it has no gaps, or more gaps than `max_new_tokens`, or cannot be encoded.
        """
        ids = self.encode(prompt, tools=tools)
        gap_count = len(self.slots(ids))
        if not gap_count:
            raise ConfigError(
                f"a prompt has 0 tokens to fill in; mark the tokens to fill in by {MASK}"
            )
        if gap_count > max_new_tokens:
            raise ConfigError(
                f"a prompt has {gap_count} tokens to fill in, and at most {max_new_tokens} are "
                f"allowed; raise sampling.max_new_tokens to {gap_count} or more"
            )
        if self.context is not None and len(ids) > self.context:
            raise NoRoomError(len(ids), 0, self.context)
        return ids

    def encode_answer(
        self,
        prompt: str | tuple[Message, ...] | tuple[int, ...],
        answer: str,
        *,
        may_think: bool = False,
    ) -> tuple[int, ...]:
        """Return the tokens of `answer`, a JSON array with a text for each gap, without thoughts.

        Raises:
            ConfigError: the answer is not such an array, or a text has not as many tokens as its
                gap.
        """
        text = cast(str, prompt)  # `encode` refuses anything else
        gaps, parsed = list(_runs(self.slots(self.encode(text)))), parse_json(answer)
        fills = None if parsed is None else parsed.value
        if not isinstance(fills, list) or not all(isinstance(fill, str) for fill in fills):
            raise ConfigError(
                "an answer to a text with gaps must be a JSON array with a text for each gap; "
                f"found {answer[:100]!r}"
            )
        tokens = self._fill_tokens(text, fills, gaps)
        if [len(fill_ids) for fill_ids in tokens] != [len(gap) for gap in gaps]:
            raise ConfigError(
                f"the answer fills gaps of {[len(gap) for gap in gaps]} tokens with texts of "
                f"{[len(fill_ids) for fill_ids in tokens]} tokens; the numbers must be equal: "
                f"{answer[:100]}"
            )
        return tuple(token for fill_ids in tokens for token in fill_ids)

    def completion_text(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """Return the text of a completion: a JSON array with a text for each gap."""
        tokens = iter(token_ids)
        fills = [
            pieces.decode(
                self.tokenizer,
                [next(tokens) for _ in gap],
                hidden=self.hidden_ids,
                begins=True,  # the space before a gap stands in the prompt
            )
            for gap in _runs(self.slots(prompt_ids))
        ]
        return json.dumps(fills, ensure_ascii=False)

    def _fill_tokens(
        self, prompt: str, fills: Sequence[str], gaps: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return the tokens of each fill: those in its gap once all fills stand in the text.

        Where the text has other tokens around the gaps then, each fill is encoded behind the text
        before it, or alone.
        """
        alone = [pieces.encode_after(self.tokenizer, "", fill) for fill in fills]
        between = _GAP.split(prompt)
        has_runs = len(fills) == len(gaps) == len(between) - 1
        if pieces.is_context_free(self.tokenizer) or not has_runs:
            return alone
        prompt_ids = self.encode(prompt)
        whole = between[0] + "".join(map("".join, zip(fills, between[1:], strict=True)))
        whole_ids = self.tokenizer(whole)["input_ids"]
        slots = self.slots(prompt_ids)
        if len(whole_ids) == len(prompt_ids) and all(
            drawn == asked
            for place, (drawn, asked) in enumerate(zip(whole_ids, prompt_ids, strict=True))
            if place not in slots
        ):
            return [[whole_ids[slot] for slot in gap] for gap in gaps]
        behind = [self._fill_after(*pair) for pair in zip(between[:-1], fills, strict=True)]
        return [
            ids if len(ids) == len(gap) else other_ids
            for ids, other_ids, gap in zip(behind, alone, gaps, strict=True)
        ]

    def _fill_after(self, before: str, fill: str) -> list[int]:
        """Return the tokens of a fill behind the text before its gap.

        Some mask tokens take the white space before them, and stand for a token that has it.
        """
        mask = self.tokenizer.added_tokens_decoder.get(self.mask_id)
        if mask is not None and mask.lstrip:
            kept = before.rstrip()
            before, fill = kept, before[len(kept) :] + fill
        return pieces.encode_after(self.tokenizer, before, fill)

    def slots(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the positions of the gaps in the prompt."""
        return tuple(place for place, token in enumerate(prompt_ids) if token == self.mask_id)

    def measuring_row(self, prompt_length: int, new_tokens: int, number: int) -> Row:
        """Return a row for measuring, as `Policy.measuring_row`, whose completion fills gaps."""
        return self.longest_row(
            (1,) * prompt_length + (self.mask_id,) * new_tokens, new_tokens, number
        )

    def longest_row(self, prompt_ids: Sequence[int], budget: int, number: int) -> Row:
        """Return a row that fills all gaps of the prompt; `budget` is not used."""
        return super().longest_row(prompt_ids, len(self.slots(prompt_ids)), number)

    def passes(
        self, rows: Sequence[Row], *, max_tokens: int
    ) -> Iterator[tuple[list[list[Row]], int]]:
        """Group rows into forward passes, the longest prompts first.

        All rows of a prompt are in the same pass, where the prompt counts once.
        """
        groups: dict[Any, list[Row]] = {}
        for number, row in enumerate(rows):
            groups.setdefault(row.segment.prompt_ids if self.shared_prefix else number, []).append(
                row
            )

        def padded(chunk: Sequence[list[Row]]) -> int:
            return len(chunk) * max(len(group[0].segment.prompt_ids) for group in chunk)

        return packed(groups.values(), max_tokens=max_tokens, padded=padded)

    def gaps(self, model: Any, prompts: Sequence[Sequence[int]], *, bare: bool = False) -> Tensor:
        """Return the model's logits (K, V) at the gaps of all prompts, one after the other.

        With `bare`, return its last hidden states (K, H) instead.
        """
        if self.training is Training.ALONE and len(prompts) > 1:
            return torch.cat([self.gaps(model, [prompt], bare=bare) for prompt in prompts])
        width = max(map(len, prompts))
        tokens_PN = torch.tensor(
            [[*prompt, *[self.pad_id] * (width - len(prompt))] for prompt in prompts],
            device=self.device,
        )
        real_PN = torch.tensor(
            [[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in prompts],
            device=self.device,
        )
        gaps_K = torch.tensor(
            [
                row * width + slot
                for row, prompt in enumerate(prompts)
                for slot in self.slots(prompt)
            ],
            device=self.device,
        )
        with head_at(model, gaps_K, bare=bare) as hidden_states:
            logits_1KV: Tensor = model(input_ids=tokens_PN, attention_mask=real_PN).logits
        return (hidden_states[0] if bare else logits_1KV)[0]

    def _predictions(
        self, model: Any, micro: MicroBatch, *, bare: bool
    ) -> tuple[Tensor, list[int]]:
        """Return the predictions at all gaps of the micro-batch (see `LogProbs._predictions`)."""
        firsts = accumulate(micro.together[:-1], initial=0)  # the first row of each prompt
        prompts = [micro.rows[first].segment.prompt_ids for first in firsts]
        start = 0
        places: list[int] = []
        for prompt, rows in zip(prompts, micro.together, strict=True):
            count = len(self.slots(prompt))
            places += list(range(start, start + count)) * rows
            start += count
        return self.gaps(model, prompts, bare=bare), places


def _runs(slots: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of neighbouring slots."""
    for _, run in groupby(enumerate(slots), key=lambda pair: pair[1] - pair[0]):
        yield [slot for _, slot in run]
