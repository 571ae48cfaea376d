"""A judge that is a frozen sequence classifier: the score is the probability of the good class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import transformers

from grpo_core import ConfigError, Harmless, Judgement, JudgeRequest
from grpo_core.train.models.loading import loading_errors
from grpo_judge.contrast import NO_SCORE, Place, calibrated, places
from grpo_judge.models import Frozen

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


class Scorer:
    """A `grpo_core.Judge` that scores texts by a sequence classifier.

    Raises:
        ConfigError: The model is not a sequence scorer or has no trained head, or a setting cannot
            be used.
    """

    Config = ScorerConfig

    def __init__(self, config: ScorerConfig) -> None:
        self.config = config
        if not config.model:
            raise ConfigError(
                "the judge 'scorer' needs a model; set judges.NAME.settings.model to a folder or a "
                "hub id"
            )
        if config.batch_size < 1 or config.max_tokens < 1:
            raise ConfigError("the judge 'scorer' needs batch_size and max_tokens of at least 1")
        try:
            config.template.format(context="", candidate="", suffix="")
        except (LookupError, ValueError, AttributeError, TypeError):
            raise ConfigError(
                f"the judge 'scorer' cannot fill its template {config.template!r}; put "
                "{context}, {candidate} and {suffix} into it, and double all other braces"
            ) from None
        source = {"revision": config.revision, "trust_remote_code": False}
        with loading_errors(config.model, "loaded as a judge"):
            try:
                shape = transformers.AutoConfig.from_pretrained(config.model, **source)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"the judge's model {config.model!r} cannot be read: "
                    f"{str(error).splitlines()[0]}"
                ) from error
        architectures = list(shape.architectures or ["no architecture"])
        if not any(name.endswith(HEAD) for name in architectures):
            raise ConfigError(
                f"the judge's model must be a sequence scorer (a model ...{HEAD}); "
                f"{config.model!r} is {', '.join(architectures)}"
            )
        with loading_errors(config.model, "loaded as a judge"):
            model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
                config.model, output_loading_info=True, **source
            )
        if info["missing_keys"]:
            raise ConfigError(
                f"the judge's model {config.model!r} has no trained head: its files lack "
                f"{sorted(info['missing_keys'])[0]}"
            )
        with loading_errors(config.model, "loaded as a judge"):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(config.model, **source)
        self._frozen = Frozen(model, config)
        self._tokenizer.truncation_side = "left"
        self._max_tokens = min(config.max_tokens, self._frozen.most_tokens)
        self._label = _label_index(config, model.config)

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """Return for each request the probability of the good class.

        With `contrast`, the probability is put on a scale from an empty fill (0) to the reference
        (1).
        """
        return await self._frozen.ask(self._judge_all, requests)

    def fingerprint(self) -> str:
        return self._frozen.fingerprint()

    async def close(self) -> None:
        self._frozen.close()

    def _judge_all(self, requests: list[JudgeRequest]) -> list[Judgement]:
        if self.config.contrast:
            return self._judge_by_contrast(requests)
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

    def _judge_by_contrast(self, requests: list[JudgeRequest]) -> list[Judgement]:
        texts = dict.fromkeys(
            place for request in requests if request.reference for place in places(request)
        )
        scores = dict(zip(texts, self._all_scores(list(texts)), strict=True))
        return [
            calibrated(request, scores, least=LEAST_CONTRAST, unit="of probability")
            if request.reference
            else Judgement(
                0.0,
                error=(
                    "the judge 'scorer' with contrast needs a reference to calibrate on; "
                    "the request has none"
                ),
            )
            for request in requests
        ]

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
