"""Decide when a run should end before its last step.

Knowing when to stop is half of training on rewards.
"""

from __future__ import annotations

import math
import shlex
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.figures.signal import advice_where_solved, advice_without_success
from grpo_core.plugins.rows import name_in_commands
from grpo_core.protocol.events import EvaluationEnded, Event, Response, StepEnded
from grpo_core.protocol.ties import exceeds, reaches
from grpo_core.runs.lines import Kind, kind_of

KL_STEPS, REWARD_STEPS, GAP_STEPS = 5, 10, 5
"""Last steps over which the KL, the reward and the gap of log-probs are averaged."""


@dataclass(frozen=True, slots=True)
class Best:
    """Names the evaluation with the highest held-out reward."""

    step: int
    reward: float


class Stopping:
    """Reads the lines of metrics.jsonl as they are written and decides when to stop, and why.

    A resumed run reads the old lines again. As a listener it asks the run to finish.
    """

    def __init__(self, config: RunConfig) -> None:
        self._stop = config.stop
        names = [name_in_commands(name, each.env) for name, each in config.members().items()]
        self._environment = names[0] if len(names) == 1 else "ENV"
        self._model = shlex.quote(config.model.name)
        self._evaluates = bool(config.eval.every and config.eval.tasks)
        self._kl: deque[float] = deque(maxlen=KL_STEPS)
        self._gap: deque[float] = deque(maxlen=GAP_STEPS)
        self._reward: deque[float] = deque(maxlen=REWARD_STEPS)
        self._evaluations_without_gain = 0
        self._cut_off_steps = self._equal_steps = 0
        """Steps in a row until now in which all completions were cut off, or no group differed."""
        self.best: Best | None = None

    def on(self, event: Event) -> Response | None:
        """Look at the metrics of a step or an evaluation."""
        match event:
            case StepEnded():
                line = {"kind": Kind.STEP, **event.metrics}
            case EvaluationEnded():
                line = {"kind": Kind.EVALUATION, "step": event.step, **event.metrics}
            case _:
                return None
        reason = self.look(line)
        return Response(finish=reason) if reason else None

    def replay(self, line: Mapping[str, Any]) -> str:
        """Look at a line of the log of a run that resumes; return the reason to finish, or ""."""
        return self.look(line) or ""

    def look(self, line: Mapping[str, Any]) -> str | None:
        """Return the reason to stop that this line of metrics gives; None if it gives none."""
        if kind_of(line) is Kind.EVALUATION:
            return self._evaluated(int(line["step"] or 0), _number(line["eval/reward/mean"]))
        self._kl.append(_number(line.get("kl")))
        # Of rollouts by older weights the gap also holds how far the policy has moved since.
        is_stale = _number(line.get("staleness/max")) > 0
        self._gap.append(math.nan if is_stale else _number(line.get("sampling/logprob_gap")))
        self._reward.append(_number(line.get("reward/mean")))
        if (
            self._stop.max_kl is not None
            and len(self._kl) == KL_STEPS
            and fmean(self._kl) > self._stop.max_kl
        ):
            return (
                f"the KL to the reference was {fmean(self._kl):.3g} over {KL_STEPS} steps, above "
                f"stop.max_kl={self._stop.max_kl:g}"
            )
        if len(self._gap) == GAP_STEPS and fmean(self._gap) > self._stop.max_logprob_gap:
            return (
                f"the log-probs of sampler and trainer differed by {fmean(self._gap):.3g} nats per "
                f"token over {GAP_STEPS} steps, above "
                f"stop.max_logprob_gap={self._stop.max_logprob_gap:g}"
            )
        if not self._evaluates and len(self._reward) == REWARD_STEPS:
            reached = self._reached(fmean(self._reward), f"mean over {REWARD_STEPS} steps")
            if reached:
                return reached
        return self._hopeless(line)

    def _hopeless(self, line: Mapping[str, Any]) -> str | None:
        """Return the reason to stop if too many steps in a row could teach nothing."""
        is_cut_off = line.get("completion_length/clipped") == 1
        self._cut_off_steps = self._cut_off_steps + 1 if is_cut_off else 0
        # The trainer may add to rewards what differs, such as a penalty for length.
        is_equal = line.get("groups/mixed") == 0 and not _number(line.get("advantage/std")) > 0
        self._equal_steps = self._equal_steps + 1 if is_equal else 0
        if self._stop.cut_off is not None and self._cut_off_steps >= self._stop.cut_off:
            return (
                f"every completion was cut off in {self._cut_off_steps} steps in a row, and "
                f"stop.cut_off={self._stop.cut_off}; allow longer ones (--max-new-tokens), or ask "
                "for shorter answers"
            )
        if self._stop.no_signal is not None and self._equal_steps >= self._stop.no_signal:
            return (
                f"no group had different rewards in {self._equal_steps} steps in a row, and "
                f"stop.no_signal={self._stop.no_signal}; {self._advice(line)}"
            )
        return None

    def _advice(self, line: Mapping[str, Any]) -> str:
        """Return what to do where rewards did not differ within any group."""
        environment, pass_rate = self._environment, _number(line.get("pass_rate"))
        if pass_rate == 1:
            return advice_where_solved(environment)
        if pass_rate > 0:
            return (
                "attempts at a prompt are all right or all wrong: try more of them (--group-size), "
                "or prompts of medium difficulty"
            )
        clipped = _number(line.get("completion_length/clipped"))
        return advice_without_success(environment, model=self._model, clipped=clipped)

    def _evaluated(self, step: int, reward: float) -> str | None:
        """Return the reason to stop that an evaluation gives.

        The evaluation before the first step is what others are compared with, but it is not a
        policy worth keeping.
        """
        if math.isnan(reward):  # no task could be scored
            return None
        if self.best is None or exceeds(reward, self.best.reward):
            self.best, self._evaluations_without_gain = Best(step, reward), 0
        else:
            self._evaluations_without_gain += 1
        if (
            self._stop.patience is not None
            and self._evaluations_without_gain >= self._stop.patience
        ):
            return (
                f"{self._evaluations_without_gain} evaluations in a row were no better than "
                f"{self.best.reward:.3f} after step {self.best.step}"
            )
        return self._reached(reward, "held-out") if step and self._evaluates else None

    def _reached(self, reward: float, which: str) -> str | None:
        """Return the reason to stop if `reward` has reached stop.reward."""
        if self._stop.reward is None or math.isnan(reward):
            return None
        if not reaches(reward, self._stop.reward):
            return None
        return f"the reward ({which}) is {reward:.3f}, and stop.reward={self._stop.reward:g}"


def _number(value: float | None) -> float:
    return math.nan if value is None else value
