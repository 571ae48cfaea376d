"""A judge that is a frozen sequence classifier: the score is the probability of the good class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import transformers

from grpo_core import ConfigError, Harmless, Judgement, JudgeRequest
from grpo_judge.contrast import NO_SCORE, Place, calibrated_all
from grpo_judge.models import Frozen, FrozenJudge

NEUTRAL = "The sun rises in the east."
HEAD = "ForSequenceClassification"
LEAST_CONTRAST = 0.05
"""By how much the probability of a reference has to be above that of an empty fill."""


@dataclass(frozen=True, slots=True)
class ScorerConfig:
    """Settings of the judge `scorer`."""

    model: str = ""
    """A sequence classifier: a folder or a hub id."""
    revision: str | None = None
    """The model's commit."""
    device: Annotated[str, Harmless] = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    label: Annotated[str, Harmless] = "1"
    """Name or number of the good class, for a head with several outputs; a single output is read
    through a sigmoid."""
    template: str = "{context}{candidate}{suffix}"
    """The text that is scored, made of {context}, {candidate} and {suffix}."""
    batch_size: int = 32
    """Number of texts in a forward pass."""
    max_tokens: int = 512
    """Largest number of tokens of a text; longer texts are cut on the left."""
    contrast: bool = False
    """Whether to calibrate each request on its reference, see `grpo_judge.contrast`; requests
    without a reference are errors then."""


class Scorer(FrozenJudge):
    """Score each request by a sequence classifier: the probability of the good class.

    With `contrast`, the probability is put on a scale from an empty fill (0) to the reference (1).

    Raises:
        ConfigError: The model is not a sequence scorer or has no trained head, or a setting cannot
            be used.
    """

    Config = ScorerConfig
    name = "scorer"
    config: ScorerConfig

    def __init__(self, config: ScorerConfig) -> None:
        self.config = config
        self._refuse_settings("batch_size", "max_tokens")
        _refuse_template(config.template)
        model = self._load_classifier()
        self._tokenizer = self._load(transformers.AutoTokenizer)
        self._frozen = Frozen(model, config)
        self._tokenizer.truncation_side = "left"
        self._max_tokens = min(config.max_tokens, self._frozen.most_tokens)
        self._label = _label_index(config, model.config)

    def _load_classifier(self) -> Any:
        """Return the model.

        Raises:
            ConfigError: It is not a sequence scorer, or has no trained head.
        """
        shape = self._load(transformers.AutoConfig, "cannot be read")
        architectures = list(shape.architectures or ["no architecture"])
        if not any(name.endswith(HEAD) for name in architectures):
            raise ConfigError(
                f"the judge's model must be a sequence scorer (a model ...{HEAD}); "
                f"{self.config.model!r} is {', '.join(architectures)}"
            )
        auto = transformers.AutoModelForSequenceClassification
        model, info = self._load(auto, output_loading_info=True)
        if info["missing_keys"]:
            raise ConfigError(
                f"the judge's model {self.config.model!r} has no trained head: its files lack "
                f"{sorted(info['missing_keys'])[0]}"
            )
        return model

    def _judge_all(self, requests: list[JudgeRequest]) -> list[Judgement]:
        if self.config.contrast:
            return calibrated_all(
                requests,
                self._all_scores,
                least=LEAST_CONTRAST,
                unit="of probability",
                judge=f"{self.name!r} with contrast",
            )
        request_scores = self._all_scores(
            [(request.context, request.candidate, request.suffix) for request in requests]
        )
        if all(map(math.isfinite, request_scores)):
            return [Judgement(score) for score in request_scores]
        # If the model can score a neutral text, the cause is the text and not the model.
        (neutral,) = self._all_scores([("", NEUTRAL, "")])
        failed = Judgement(0.0, NO_SCORE)
        if not math.isfinite(neutral):
            failed = Judgement(
                0.0, error="the model gives scores that are not finite, also to a neutral text"
            )
        return [Judgement(score) if math.isfinite(score) else failed for score in request_scores]

    def _all_scores(self, requested: Sequence[Place]) -> list[float]:
        texts = [
            self.config.template.format(context=context, candidate=fill, suffix=suffix)
            for context, fill, suffix in requested
        ]
        distinct_texts = sorted(set(texts), key=len)  # texts of similar length share a batch
        scores: dict[str, float] = {}
        for start in range(0, len(distinct_texts), self.config.batch_size):
            batch = distinct_texts[start : start + self.config.batch_size]
            scores |= dict(zip(batch, self._scores(batch), strict=True))
        return [scores[text] for text in texts]

    def _scores(self, texts: list[str]) -> list[float]:
        """Return the score of each text, or NaN for a text that the model cannot take.

        Such a text has no tokens, or tokens for which the model has no embedding.
        """
        ids = self._tokenizer(texts, truncation=True, max_length=self._max_tokens)["input_ids"]
        fits = [bool(row) and self._frozen.knows(row) for row in ids]
        scored = [text for text, fit in zip(texts, fits, strict=True) if fit]
        scores = iter(self._forward(scored) if scored else [])
        return [next(scores) if fit else math.nan for fit in fits]

    @torch.inference_mode()
    def _forward(self, texts: list[str]) -> list[float]:
        batch = self._tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self._max_tokens,
        )
        logits_BC = self._frozen.model(**batch.to(self._frozen.device)).logits.double()
        single = logits_BC.shape[1] == 1
        score_B = logits_BC[:, 0].sigmoid() if single else logits_BC.softmax(dim=1)[:, self._label]
        scores: list[float] = score_B.tolist()
        return scores


def _refuse_template(template: str) -> None:
    """Refuse a template that cannot be filled.

    Raises:
        ConfigError: It has other placeholders, or single braces.
    """
    try:
        template.format(context="", candidate="", suffix="")
    except (LookupError, ValueError, AttributeError, TypeError):
        raise ConfigError(
            f"the judge 'scorer' cannot fill its template {template!r}; put "
            "{context}, {candidate} and {suffix} into it, and double all other braces"
        ) from None


def _label_index(config: ScorerConfig, shape: Any) -> int:
    """Return the index of the good class in the model's output."""
    names = {str(name): int(number) for number, name in shape.id2label.items()}
    if shape.num_labels == 1:
        return 0
    if config.label in names:
        return names[config.label]
    if config.label.isdecimal() and int(config.label) < shape.num_labels:
        return int(config.label)
    raise ConfigError(
        f"the judge's model has no class {config.label!r}; set judges.NAME.settings.label to one "
        f"of {', '.join(names)}"
    )
