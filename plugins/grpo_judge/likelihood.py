"""A judge that scores the fill of a gap by its likelihood under a frozen language model.

It measures how much likelier the fill and the text after it are than with an empty fill, or with
the same words in random order. The score is calibrated on each gap: 0 is an empty fill, 1 the
reference. There is no prompt that a text could manipulate. Guards give 0 to fills that likelihood
alone would reward: fills of the wrong length, repetition, and copies of the context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import transformers

from grpo_core import Harmless, Judgement, JudgeRequest
from grpo_core.engine.models.pieces import encode_after
from grpo_core.guards import Guards
from grpo_judge.contrast import Place, calibrated_all
from grpo_judge.models import Frozen, FrozenJudge, judge_rest

LEAST_CONTRAST = 1e-3
"""Nats per token by which a reference has to be likelier than an empty fill; with less, the gap
cannot be judged."""


@dataclass(frozen=True, slots=True)
class LikelihoodConfig:
    """Settings of the judge `likelihood`."""

    model: str = ""
    """A causal language model: a folder or a hub id."""
    revision: str | None = None
    """The model's commit."""
    device: Annotated[str, Harmless] = "auto"
    """auto, cpu, cuda ..."""
    batch_size: int = 32
    """Number of texts in a forward pass."""
    shortest: float = 0.5
    """See `grpo_core.guards`."""
    longest: float = 2.0
    """See `grpo_core.guards`."""
    distinct: float = 0.5
    """See `grpo_core.guards`."""
    copied: float = 0.8
    """See `grpo_core.guards`."""


class Likelihood(FrozenJudge):
    """Score each fill (candidate) between its context and its suffix; requests need a reference.

    Raises:
        ConfigError: The model is not a causal language model, or a setting cannot be used.
    """

    Config = LikelihoodConfig
    name = "likelihood"
    config: LikelihoodConfig

    def __init__(self, config: LikelihoodConfig) -> None:
        self.config = config
        self._refuse_settings("batch_size")
        fault = "is not a causal language model"
        model = self._load(transformers.AutoModelForCausalLM, fault)
        self._tokenizer = self._load(transformers.AutoTokenizer, fault)
        self._frozen = Frozen(model, config)

    def _judge_all(self, requests: list[JudgeRequest]) -> list[Judgement]:
        return judge_rest(requests, self._decide_by_guards, self._judge_by_model)

    def _judge_by_model(self, requests: list[JudgeRequest]) -> list[Judgement]:
        return calibrated_all(
            requests,
            self._likelihoods,
            least=LEAST_CONTRAST,
            unit="nats per token",
            judge=repr(self.name),
        )

    def _decide_by_guards(self, request: JudgeRequest) -> Judgement | None:
        """Return the judgement of a request that the guards refuse, or None."""
        config, fill, reference = self.config, request.candidate, request.reference
        if not reference:
            return None
        guards = Guards(config.shortest, config.longest, config.distinct, config.copied)
        fault = guards.fault(
            fill, reference=reference, context=f"{request.context}\x00{request.suffix}"
        )
        return None if fault is None else Judgement(0.0, fault)

    def _likelihoods(self, texts: list[Place]) -> list[float]:
        """Return the mean log-probability of the tokens of fill and suffix.

        It is NaN for a text with more tokens than the model takes, or tokens that it does not
        know. Each part has the tokens that it has in the whole text, except where a token would
        reach across a boundary: the suffix's tokens must not depend on the fill.
        """
        parts = [self._tokens(text) for text in texts]
        fits = [self._fits(text) for text in parts]
        fitting = [text for text, fit in zip(parts, fits, strict=True) if fit]
        means: list[float] = []
        for start in range(0, len(fitting), self.config.batch_size):
            means += self._batch_means(fitting[start : start + self.config.batch_size])
        mean_of_fitting = iter(means)
        return [next(mean_of_fitting) if fit else math.nan for fit in fits]

    def _fits(self, parts: list[list[int]]) -> bool:
        is_short = 1 + sum(map(len, parts)) <= self._frozen.most_tokens
        return is_short and all(map(self._frozen.knows, parts))

    def _tokens(self, place: Place) -> list[list[int]]:
        """Return the tokens of context, fill and suffix."""
        before, tokens = "", []
        for part in place:
            tokens.append(encode_after(self._tokenizer, before, part) if part else [])
            before += part
        return tokens

    @torch.inference_mode()
    def _batch_means(self, parts: list[list[list[int]]]) -> list[float]:
        """Return the mean log-probability of each text, given as the tokens of its three parts."""
        first = (
            self._tokenizer.bos_token_id
            if self._tokenizer.bos_token_id is not None
            else self._tokenizer.eos_token_id
        )
        rows = [[first or 0, *context, *fill, *suffix] for context, fill, suffix in parts]
        width = max(map(len, rows))
        ids_BN = torch.tensor(
            [row + [0] * (width - len(row)) for row in rows], device=self._frozen.device
        )
        mask_BN = torch.tensor(
            [[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self._frozen.device
        )
        logits_BNV = (
            self._frozen.model(input_ids=ids_BN, attention_mask=mask_BN).logits[:, :-1].float()
        )
        logprob_BN = logits_BNV.log_softmax(-1).gather(-1, ids_BN[:, 1:, None]).squeeze(-1).double()
        means = []
        for b, (context, fill, suffix) in enumerate(parts):
            counted = logprob_BN[b, len(context) : len(context) + len(fill) + len(suffix)]
            means.append(float(counted.mean()) if len(counted) else 0.0)
        return means
