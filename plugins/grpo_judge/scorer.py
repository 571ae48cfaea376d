"""A frozen sequence classifier as judge: how likely a text is of the good class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from grpo_core import ConfigError, Judgement, JudgeRequest
from grpo_judge.contrast import NO_SCORE, Place, calibrated, places
from grpo_judge.models import Frozen

NEUTRAL = "The sun rises in the east."
HEAD = "ForSequenceClassification"
LEAST_CONTRAST = 0.05
"""By which the probability of a reference has to be above that of no fill."""


@dataclass(frozen=True, slots=True)
class ScorerConfig:
    """model: a folder or a hub id, revision: its commit. device: auto, cpu, cuda, cuda:1 ... label: name or number of the good class,
    of a head with several; one with a single output is read through a sigmoid. template: what is scored, out of {context}, {candidate}
    and {suffix}. batch_size: texts of a forward pass, which may have max_tokens tokens each; longer ones are cut on the left.

    contrast: calibrate requests that have a reference on it, see `grpo_judge.contrast`; the others are errors then."""

    model: str = ""
    revision: str | None = None
    device: str = "auto"
    label: str = "1"
    template: str = "{context}{candidate}{suffix}"
    batch_size: int = 32
    max_tokens: int = 512
    contrast: bool = False


class Scorer:
    """A `grpo_core.Judge`. Raises ConfigError for a model that is no sequence scorer, or has no trained head."""

    Config = ScorerConfig

    def __init__(self, config: ScorerConfig) -> None:
        self.config = config
        if not config.model:
            raise ConfigError(
                "the judge 'scorer' needs a model; set judges.NAME.settings.model to a folder or a hub id"
            )
        if config.batch_size < 1 or config.max_tokens < 1:
            raise ConfigError("the judge 'scorer' needs batch_size and max_tokens of at least 1")
        try:
            config.template.format(context="", candidate="", suffix="")
        except (LookupError, ValueError, AttributeError, TypeError):
            raise ConfigError(
                f"the judge 'scorer' cannot fill its template {config.template!r}; put {{context}}, {{candidate}} and {{suffix}} into it, "
                "and double all other braces"
            ) from None
        try:
            shape = transformers.AutoConfig.from_pretrained(config.model, revision=config.revision)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the judge's model {config.model!r} cannot be read: {str(error).splitlines()[0]}"
            ) from None
        found = list(shape.architectures or ["no architecture"])
        if not any(name.endswith(HEAD) for name in found):
            raise ConfigError(
                f"the judge's model must be a sequence scorer (a model ...{HEAD}); {config.model!r} is {', '.join(found)}"
            )
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            config.model, revision=config.revision, output_loading_info=True
        )
        if info["missing_keys"]:
            raise ConfigError(
                f"the judge's model {config.model!r} has no trained head: its files lack {sorted(info['missing_keys'])[0]}"
            )
        self._frozen = Frozen(model, config)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            config.model, revision=config.revision
        )
        self._tokenizer.truncation_side = "left"
        self._max_tokens = min(config.max_tokens, self._frozen.most_tokens)
        self._label = _label(config, model.config)

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """The probability of the good class for each, or how far it is from that of an empty fill to that of the reference."""
        return await self._frozen.ask(self._judged, requests)

    def fingerprint(self) -> str:
        return self._frozen.fingerprint()

    async def close(self) -> None:
        self._frozen.close()

    def _judged(self, requests: list[JudgeRequest]) -> list[Judgement]:
        if self.config.contrast:
            return self._contrasted(requests)
        found = self._all_scores(
            [(request.context, request.candidate, request.suffix) for request in requests]
        )
        if all(map(math.isfinite, found)):
            return [Judgement(score) for score in found]
        # A model that scores a neutral text is in order: then the text is what it cannot score.
        (neutral,) = self._all_scores([("", NEUTRAL, "")])
        failed = Judgement(0.0, NO_SCORE)
        if not math.isfinite(neutral):
            failed = Judgement(
                0.0, error="the model gives scores that are not finite, also to a neutral text"
            )
        return [Judgement(score) if math.isfinite(score) else failed for score in found]

    def _contrasted(self, requests: list[JudgeRequest]) -> list[Judgement]:
        wanted = dict.fromkeys(
            place for request in requests if request.reference for place in places(request)
        )
        scores = dict(zip(wanted, self._all_scores(list(wanted)), strict=True))
        return [
            calibrated(request, scores, least=LEAST_CONTRAST, unit="of probability")
            if request.reference
            else Judgement(
                0.0,
                error="the judge 'scorer' with contrast needs a reference to calibrate on; the request has none",
            )
            for request in requests
        ]

    def _all_scores(self, wanted: Sequence[Place]) -> list[float]:
        texts = [
            self.config.template.format(context=context, candidate=fill, suffix=suffix)
            for context, fill, suffix in wanted
        ]
        unlike = sorted(set(texts), key=len)  # as long as one another, and each once
        scores: dict[str, float] = {}
        for start in range(0, len(unlike), self.config.batch_size):
            batch = unlike[start : start + self.config.batch_size]
            scores |= dict(zip(batch, self._scores(batch), strict=True))
        return [scores[text] for text in texts]

    def _scores(self, texts: list[str]) -> list[float]:
        """Return the score of each text; NaN for one that the model cannot take.

        It has no tokens, or some that the model has no embedding for.
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


def _label(config: ScorerConfig, shape: Any) -> int:
    names = {str(name): int(number) for number, name in shape.id2label.items()}
    if shape.num_labels == 1:
        return 0
    if config.label in names:
        return names[config.label]
    if config.label.isdecimal() and int(config.label) < shape.num_labels:
        return int(config.label)
    raise ConfigError(
        f"the judge's model has no class {config.label!r}; set judges.NAME.settings.label to one of {', '.join(names)}"
    )
