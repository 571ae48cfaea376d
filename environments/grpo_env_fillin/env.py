"""Texts with gaps: the policy fills them, and a judge model scores how well the fills fit.

Parts: judge (the judge's score, or 0 if a guard finds a fault) and exact (the share of gaps filled
with the original text; weight 0, so it is only logged). Every further judge of the run scores the
same texts; its score is only logged, as judge/NAME: an audit that training never sees.
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
    Alarm,
    ConfigError,
    Environment,
    Group,
    JudgeRequest,
    Reward,
    Services,
    Task,
    TaskKey,
    Verdict,
    reaches,
)
from grpo_core.extract import Block, NoAnswer, find_json, parse_json
from grpo_core.guards import Guards
from grpo_env_fillin.corpus import built_in, from_file
from grpo_env_fillin.gaps import Gaps, Unit, cut

MAX_CHARS = 20_000
EXAMPLE = (
    "In each text, pieces are missing (___). "
    "Behind it stand the missing pieces, in order, as a JSON array.\n\n"
    'Text: The cook ___ a soup ___ the kitchen.\nMissing: ["makes", "in"]\n\n'
)


@dataclass(frozen=True, slots=True)
class FillInConfig:
    """Settings of the environment."""

    path: str = ""
    """Text file with one text on each line; "" for the built-in sentences."""
    form: Literal["masked", "causal"] = "masked"
    """masked: a text with masks, for masked language models. causal: a text to be continued with
    the gaps' texts as a JSON array."""
    unit: Unit = "word"
    """Unit in which a gap's length is counted; one mask stands for one unit."""
    rate: float = 0.0
    """Share of the units that is missing; 0 sets it by the level, from 0.1 to 0.4."""
    span: int = 0
    """Largest number of units in a gap; 0 sets it by the level: 1 to 3 words or 3 to 12
    characters."""
    threshold: float = 0.5
    """Judge score from which a rollout passes."""
    shortest: float = 0.5
    """See `grpo_core.guards`."""
    longest: float = 2.0
    """See `grpo_core.guards`."""
    distinct: float = 0.5
    """See `grpo_core.guards`."""
    copied: float = 0.8
    """See `grpo_core.guards`."""


class FillIn(Environment[Gaps]):
    """The policy answers with a JSON array that holds a text for each gap."""

    Config = FillInConfig
    parts: ClassVar[Mapping[str, float]] = {"judge": 1.0, "exact": 0.0}
    needs = frozenset({"judge"})
    timeout_seconds = 120.0
    max_new_tokens = 128
    trusted = True
    alarms = (
        Alarm(
            "judge/over_reference",
            above=0.0,
            advice="the judge scores the policy's text {value:.3f} higher than the original text: "
            "the policy has more likely found a weakness of the judge than learned to write "
            "better; look at log.txt, and compare with an audit judge",
        ),
    )

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        given: FillInConfig = FillInConfig() if config is None else config
        if not 0 <= given.rate <= 1 or given.span < 0:
            raise ConfigError(
                f"env.rate={given.rate} has to be a share (0 to 1), and env.span={given.span} a "
                "number of units (0 or more)"
            )
        given = replace(
            given, path=str(Path(given.path).expanduser().resolve()) if given.path else ""
        )
        super().__init__(given, services)
        self._texts = from_file(Path(given.path)) if given.path else built_in()
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
        """Verify all groups with one call of each judge, which also scores the original texts."""
        answers_by_group = [
            (
                group.task.data,
                [self._parse_fills(group.task.data, rollout.text) for rollout in group.rollouts],
            )
            for group in groups
        ]
        requests = list(
            dict.fromkeys(
                request
                for gaps, answers in answers_by_group
                for request in self._requests(gaps, answers)
            )
        )
        scores: dict[str, Mapping[JudgeRequest, float | str]] = {}
        for name in dict.fromkeys(["default", *self.services.judges]):
            judgements = await self.services.judge(name).judge(requests)
            scores[name] = {
                request: judgement.error or judgement.score
                for request, judgement in zip(requests, judgements, strict=True)
            }
        return [
            [self._verdict(gaps, answer, scores) for answer in answers]
            for gaps, answers in answers_by_group
        ]

    def reference(self, task: Task[Gaps]) -> str:
        return json.dumps(task.data.golds, ensure_ascii=False)

    def cheats(self, task: Task[Gaps]) -> Sequence[str]:
        """Return an empty answer, empty fills, too few fills, and endlessly repeated right ones."""
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

    def _parse_fills(self, gaps: Gaps, answer: str) -> tuple[str, ...] | str:
        """Return the text for each gap, or as a single string what is wrong with the answer."""
        array = self._find_array(answer)
        if isinstance(array, NoAnswer):
            return array.reason
        value = parse_json(array, max_chars=MAX_CHARS, max_depth=2)
        if (
            value is None
            or not isinstance(value.value, list)
            or not all(isinstance(fill, str) for fill in value.value)
        ):
            return f"the answer is not a JSON array of texts: {array!r:.60}"
        if len(value.value) != len(gaps.golds):
            return f"{len(value.value)} texts for {len(gaps.golds)} gaps"
        fills = tuple(fill.strip() if gaps.unit == "word" else fill for fill in value.value)
        for fill, gold in zip(fills, gaps.golds, strict=True):
            if fault := self._guards.fault(fill, reference=gold, context="\x00".join(gaps.pieces)):
                return fault
        return fills

    def _find_array(self, answer: str) -> str | NoAnswer:
        """Return the text of the array.

        A model that continues the prompt begins with it, and may go on with further examples of its
        own, so the first line counts then, unless the array goes on in the next one. An answer that
        begins in another way is read by its marks.
        """
        text = answer.strip()
        if self.config.form == "masked":
            return text
        line = text.partition("\n")[0].rstrip()
        if line.startswith("[") and line != "[" and not line.endswith(","):
            return line
        block = find_json(text)
        return block.content.strip() if isinstance(block, Block) else block

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
            float(fill == gold_fill) for fill, gold_fill in zip(answer, gaps.golds, strict=True)
        )
        audits = {
            f"judge/{name}": judge_score
            for name, judge_scores in scores.items()
            if name != "default" and not isinstance(judge_score := judge_scores[request], str)
        }
        reference = scores["default"][gold]
        over = {} if isinstance(reference, str) else {"judge/over_reference": score - reference}
        return Verdict(
            {"judge": Reward(score), "exact": Reward(exact, weight=0.0)},
            passed=reaches(score, self.config.threshold),
            answer=gaps.filled(answer)[:500],
            metrics={**audits, **over},
        )
