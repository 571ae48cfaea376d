"""Texts with gaps; a judge model says how well what stands in them fits.

Parts: judge (what the judge gives, 0 where a guard finds a fault) and exact (the share of gaps with the very text that stood there;
weight 0, so that it is only logged). Every further judge of the run is asked, too, and only logged, as judge/NAME: an audit that
training never sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from grpo_core import (
    ConfigError,
    Environment,
    Group,
    JudgeRequest,
    Reward,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import parse_json
from grpo_core.guards import Guards
from grpo_env_fillin.corpus import from_file, own
from grpo_env_fillin.gaps import Gaps, Unit, cut

MAX_CHARS = 20_000
EXAMPLE = (
    "In each text, pieces are missing (___). Behind it stand the missing pieces, in order, as a JSON array.\n\n"
    'Text: The cook ___ a soup ___ the kitchen.\nMissing: ["makes", "in"]\n\n'
)


@dataclass(frozen=True, slots=True)
class Config:
    """path: a text file with one text on each line; "": sentences of our own. form: masked (for masked language models) or causal (a text
    to be continued, with the gaps' texts as a JSON array). unit: what a gap is counted in, and what one mask stands for.

    rate, span: share of the units that is missing, and most units of a gap; 0: by the level, 0.1 to 0.4 and 1 to 3 words or 3 to 12
    characters. threshold: judge score from which an attempt passes. shortest, longest, distinct, copied: see `grpo_core.guards`."""

    path: str = ""
    form: Literal["masked", "causal"] = "masked"
    unit: Unit = "word"
    rate: float = 0.0
    span: int = 0
    threshold: float = 0.5
    shortest: float = 0.5
    longest: float = 2.0
    distinct: float = 0.5
    copied: float = 0.8


class FillIn(Environment[Gaps]):
    """The answer is a JSON array with a text for each gap."""

    Config = Config
    parts: ClassVar[Mapping[str, float]] = {"judge": 1.0, "exact": 0.0}
    needs = frozenset({"judge"})
    timeout_seconds = 120.0
    max_new_tokens = 128
    trusted = True

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        given: Config = Config() if config is None else config
        if not 0 <= given.rate <= 1 or given.span < 0:
            raise ConfigError(
                f"env.rate={given.rate} has to be a share, and env.span={given.span} a number of units"
            )
        given = replace(
            given, path=str(Path(given.path).expanduser().resolve()) if given.path else ""
        )
        super().__init__(given, services)
        self._texts = from_file(Path(given.path)) if given.path else own()
        self._guards = Guards(
            **{field.name: getattr(given, field.name) for field in fields(Guards)}
        )

    def size(self, split: Literal["train", "eval"]) -> int | None:
        return len(self._texts[split])

    def task(self, key: TaskKey) -> Task[Gaps]:
        config, characters = self.config, self.config.unit == "character"
        span = config.span or (3 + round(9 * key.level) if characters else 1 + round(2 * key.level))
        gaps = cut(
            self._texts[key.split][key.index],
            key.rng("gaps"),
            unit=config.unit,
            rate=config.rate or 0.1 + 0.3 * key.level,
            span=span,
        )
        prompt = (
            gaps.masked if config.form == "masked" else f"{EXAMPLE}Text: {gaps.marked}\nMissing:"
        )
        return Task(key, prompt, gaps)

    async def verify_batch(self, groups: Sequence[Group[Gaps]]) -> list[list[Verdict]]:
        """Each judge is asked once for all attempts, and for the texts as they were."""
        found = [
            (
                group.task.data,
                [self._fills(group.task.data, rollout.text) for rollout in group.rollouts],
            )
            for group in groups
        ]
        asked = {
            request: 0.0 for gaps, answers in found for request in self._requests(gaps, answers)
        }
        scores: dict[str, Mapping[JudgeRequest, float | str]] = {}
        for name in dict.fromkeys(["default", *self.services.judges]):
            judgements = await self.services.judge(name).judge(list(asked))
            scores[name] = {
                request: judgement.error or judgement.score
                for request, judgement in zip(asked, judgements, strict=True)
            }
        return [
            [self._verdict(gaps, answer, scores) for answer in answers] for gaps, answers in found
        ]

    def reference(self, task: Task[Gaps]) -> str:
        return json.dumps(task.data.golds, ensure_ascii=False)

    def cheats(self, task: Task[Gaps]) -> Sequence[str]:
        """Nothing in the gaps, no array, and the right words with too many others."""
        golds = task.data.golds
        return (
            "",
            json.dumps([""] * len(golds)),
            json.dumps(golds[:-1]),
            json.dumps([gold * 50 for gold in golds]),
        )

    def fingerprint(self) -> str:
        sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return hashlib.sha256(
            f"{super().fingerprint()} {self._texts}".encode() + sources
        ).hexdigest()[:16]

    def _fills(self, gaps: Gaps, answer: str) -> tuple[str, ...] | str:
        """What fills each gap, or what is wrong with the answer."""
        line = answer.strip().partition("\n")[0] if self.config.form == "causal" else answer
        value = parse_json(line, max_chars=MAX_CHARS, max_depth=2)
        if (
            value is None
            or not isinstance(value.value, list)
            or not all(isinstance(fill, str) for fill in value.value)
        ):
            return "no JSON array of texts"
        if len(value.value) != len(gaps.golds):
            return f"{len(value.value)} texts for {len(gaps.golds)} gaps"
        fills = tuple(fill.strip() if gaps.unit == "word" else fill for fill in value.value)
        for fill, gold in zip(fills, gaps.golds, strict=True):
            if fault := self._guards.fault(fill, reference=gold, context="\x00".join(gaps.pieces)):
                return fault
        return fills

    def _requests(self, gaps: Gaps, answers: Sequence[tuple[str, ...] | str]) -> list[JudgeRequest]:
        return [
            self._request(gaps, fills)
            for fills in dict.fromkeys([gaps.golds, *answers])
            if not isinstance(fills, str)
        ]

    def _request(self, gaps: Gaps, fills: Sequence[str]) -> JudgeRequest:
        return JudgeRequest(
            gaps.core(fills),
            context=gaps.pieces[0],
            suffix=gaps.pieces[-1],
            reference=gaps.core(gaps.golds),
        )

    def _verdict(
        self,
        gaps: Gaps,
        answer: tuple[str, ...] | str,
        scores: Mapping[str, Mapping[JudgeRequest, float | str]],
    ) -> Verdict:
        if isinstance(answer, str):
            rewards = {"judge": Reward(0.0, note=answer), "exact": Reward(0.0, weight=0.0)}
            return Verdict(
                rewards, metrics={f"judge/{name}": 0.0 for name in scores if name != "default"}
            )
        request, gold = self._request(gaps, answer), self._request(gaps, gaps.golds)
        score = scores["default"][request]
        if isinstance(score, str):
            return Verdict.failed(f"the judge: {score}")
        exact = fmean(
            float(fill == wanted) for fill, wanted in zip(answer, gaps.golds, strict=True)
        )
        others = {
            f"judge/{name}": found
            for name, each in scores.items()
            if name != "default" and not isinstance(found := each[request], str)
        }
        best = scores["default"][gold]
        over = {} if isinstance(best, str) else {"judge/over_reference": score - best}
        return Verdict(
            {"judge": Reward(score), "exact": Reward(exact, weight=0.0)},
            passed=score >= self.config.threshold,
            answer=gaps.filled(answer)[:500],
            metrics={**others, **over},
        )
