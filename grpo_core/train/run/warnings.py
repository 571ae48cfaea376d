"""Warn, with advice, when the metrics show that a run is not learning, or not what it should."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo_core.figures.signal import advice_where_solved
from grpo_core.protocol.environment import Alarm
from grpo_core.protocol.events import Event, StepEnded
from grpo_core.runs.lines import Kind, kind_of
from grpo_core.train.run.metrics import RESERVED_PARTS

START = 10
"""First steps of a run, with which later ones are compared."""

WINDOW = 20
"""Last steps that are averaged."""

SOLVED = 0.9
"""Pass rate above which the policy has nothing left to explore."""

FAR = 0.5
"""Pass rate below which a policy that is sure of its answers is sure of wrong ones."""

Line = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Means:
    """Averages metrics by name over some steps.

    A metric that was never measured is NaN, which is neither above nor below any threshold.
    """

    lines: Sequence[Line]

    def __getitem__(self, name: str) -> float:
        values = [
            value
            for line in self.lines
            if (value := line.get(name)) is not None and not math.isnan(value)
        ]
        return fmean(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class History:
    """Holds the metrics that a sign can look at."""

    now: Means
    """This step."""
    start: Means
    """The first `START` steps."""
    last: Means
    """The last `WINDOW` steps, including this one."""
    before: Means
    """The last `WINDOW` steps without the newest 3."""
    steps: int
    """Number of steps so far."""

    def is_unsolved(self, passed: str = "pass_rate") -> bool:
        """Return whether the first steps are over and there is still something to learn.

        Args:
            passed: name of the pass rate.
        """
        return self.steps > START and self.last[passed] < SOLVED

    def loses_entropy(self) -> bool:
        """Return whether the policy settles on its answers before it knows the right ones."""
        share = self.now["entropy"] / (self.start["entropy"] or math.nan)
        return self.is_far_from_solved() and (
            share < 0.15 or (share < 0.4 and self.last["pass_rate"] < self.start["pass_rate"] + 0.1)
        )

    def loses_groups(self) -> bool:
        """Return whether the groups that teach something become few.

        It counts neither once they have come back nor where none is left, which is another sign.
        """
        start = self.start["groups/mixed"]
        return (
            self.is_far_from_solved()
            and self.steps >= START + WINDOW
            and self.last["groups/mixed"] < 0.5 * start
            and 0 < self.now["groups/mixed"] < 0.75 * start
        )

    def is_far_from_solved(self) -> bool:
        """Return whether the first steps are over and fewer than half pass."""
        return self.steps > START and self.last["pass_rate"] < FAR

    def saturated_parts(self) -> dict[str, bool]:
        """Return for each reward part whether it rose near 1 while the pass rate stayed."""
        return {
            name: self.steps >= START + WINDOW
            and self.is_unsolved(passed)
            and self.last[passed] < self.start[passed] + 0.03
            and self.last[name] > 0.9
            and self.last[name] > self.start[name] + 0.2
            for name, passed in self.reward_metrics()
            if not name.endswith(NOT_PARTS)
        }

    def constant_rewards(self) -> dict[str, bool]:
        """Return for each environment whether most of its reward is equal within every group.

        The keys are metrics of the environments that were sampled in this step; an environment
        counts only while there is something left to learn.
        """
        return {
            name: self.is_unsolved(passed) and self.now[name] > 0.8
            for name, passed in self.reward_metrics()
            if name.endswith(CONSTANT_SHARE) and not math.isnan(self.now[name])
        }

    def reward_metrics(self) -> list[tuple[str, str]]:
        """Return the names of the reward metrics, each with the name of its pass rate.

        In a mixture, that is the pass rate of the environment itself.
        """
        line = self.now.lines[0]
        return [
            (name, passed)
            for name in line
            if "reward/" in name and (passed := f"{name.rpartition('reward/')[0]}pass_rate") in line
        ]


CONSTANT_SHARE = "reward/constant_share"
"""Metric of the share of the reward that is equal within groups."""
NOT_PARTS = tuple(f"reward/{name}" for name in RESERVED_PARTS)
"""Ends of reward metrics that are not reward parts."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Describes a sign in the metrics that something is wrong."""

    name: str
    """Name as the documentation has it."""
    metric: str
    """Metric as the documentation has it."""
    threshold: str
    """Threshold as the documentation has it."""
    patience: int
    """Number of steps in a row for which the sign has to be seen."""
    seen: Callable[[History], bool | Mapping[str, bool]]
    """Returns whether the sign is seen; for a sign on several metrics, the answer for each.

    A metric that is missing was not measured, which counts neither way.
    """
    advice: str
    """What the sign means and what to do, with placeholders for metrics of `History`."""


SIGNS: Sequence[Sign] = (
    Sign(
        "constant reward",
        "reward/std",
        "0 while not all pass, for 10 steps",
        10,
        lambda h: h.now["reward/std"] == 0 and h.now["pass_rate"] != 1,
        "every attempt at every prompt got the same reward ({now[reward/mean]:.3f}) for 10 "
        "steps: either no answer is ever right, or the verifier cannot tell answers apart; try "
        "it with `grpo env score`, and an easier level, a warm start (`grpo sft`) or a denser "
        "reward",
    ),
    Sign(
        "constant success",
        "reward/std",
        "0 while all pass, for 10 steps",
        10,
        lambda h: h.now["reward/std"] == 0 and h.now["pass_rate"] == 1,
        "every attempt at every prompt passed, with the same reward ({now[reward/mean]:.3f}), for "
        f"10 steps: {advice_where_solved()}",
    ),
    Sign(
        "dead groups",
        "groups/mixed",
        "0, for 10 steps",
        10,
        lambda h: h.now["groups/mixed"] == 0 and h.now["reward/std"] != 0,
        "all rewards within every group were equal for 10 steps (mean {now[reward/mean]:.3f}): "
        "there is nothing to learn from; try an easier or harder level, a larger group_size, a "
        "higher sampling.temperature, or a denser reward",
    ),
    Sign(
        "clipped completions",
        "completion_length/clipped",
        "above 0.5, for 3 steps",
        3,
        lambda h: h.now["completion_length/clipped"] > 0.5,
        "{now[completion_length/clipped]:.0%} of the completions reach sampling.max_new_tokens "
        "before they end: their answers are cut off; raise --max-new-tokens, or ask for shorter "
        "answers in the prompt; if the run warned that the model has no end token, set that first",
    ),
    Sign(
        "KL explodes",
        "kl",
        "above 1 nat per token, or 10 times the mean of the steps before and above 0.3, for 3 "
        "steps",
        3,
        lambda h: h.now["kl"] > 1 or h.now["kl"] > max(0.3, 10 * h.before["kl"]),
        "the KL to the reference is {now[kl]:.2f} nats per token: the policy is leaving the "
        "model that it started from; lower optimizer.lr, raise kl.beta, or set stop.max_kl and "
        "continue from an earlier checkpoint",
    ),
    Sign(
        "entropy collapse",
        "entropy",
        "below 0.15 of the first 10 steps' while fewer than half pass, or below 0.4 of it "
        "while the pass rate rose by less than 0.1, for 5 steps",
        5,
        History.loses_entropy,
        "the policy's entropy fell from {start[entropy]:.3f} to {now[entropy]:.3f} nats per "
        "token, and only {last[pass_rate]:.0%} pass: it stops trying other answers before it "
        "knows the right ones; raise kl.beta, prompts_per_step or sampling.temperature, set "
        "loss.entropy=0.02, or lower optimizer.lr",
    ),
    Sign(
        "groups die out",
        "groups/mixed",
        "below half of the first 10 steps', as a mean over 20 steps, while fewer than half pass, "
        "for 5 steps",
        5,
        History.loses_groups,
        "the rewards of {last[groups/mixed]:.0%} of the groups differ, where it was "
        "{start[groups/mixed]:.0%} in the first steps, and only {last[pass_rate]:.0%} pass: most "
        "completions teach nothing; raise group_size, kl.beta or sampling.temperature, set "
        "sampling.refills=2, or lower optimizer.lr",
    ),
    Sign(
        "sampler and trainer disagree",
        "sampling/logprob_gap",
        "above 0.1 nats per token, for 3 steps, and no rollout is stale",
        3,
        lambda h: h.now["sampling/logprob_gap"] > 0.1 and not h.now["staleness/max"] > 0,
        "the log-probs of sampler and trainer are {now[sampling/logprob_gap]:.2f} nats per "
        "token apart, so what is trained is not what was sampled; use --dtype float32 for both, "
        "or set loss.tis_cap=2",
    ),
    Sign(
        "rollouts too old",
        "sampling/truncated",
        "above 0.1 while rollouts are stale, for 3 steps",
        3,
        lambda h: h.now["sampling/truncated"] > 0.1 and h.now["staleness/max"] > 0,
        "{now[sampling/truncated]:.0%} of the importance weights are truncated: the policy moves "
        "too far while its rollouts wait; lower pipeline.max_staleness or optimizer.lr",
    ),
    Sign(
        "format learned, answers not",
        "reward/PART",
        "a part rose by 0.2 to above 0.9 while the pass rate rose by less than 0.03",
        1,
        History.saturated_parts,
        "{settled} rose to where nothing is left to gain while the pass rate stayed at "
        "{stayed}: the format is learned and the answers are not; lower the weights of those "
        "parts, or try an easier level",
    ),
    Sign(
        "reward without contrast",
        "reward/constant_share",
        "above 0.8 while fewer than 90 % pass, for 20 steps",
        20,
        History.constant_rewards,
        "{constant} of the reward comes from parts with equal values in the whole group, so they "
        "teach nothing and only make the reward look high; lower their weights",
    ),
    Sign(
        "completions shrink",
        "completion_length/mean",
        "below half of the first 10 steps' while the pass rate rose by less than 0.1, for 10 steps",
        10,
        lambda h: (
            h.is_unsolved()
            and h.now["completion_length/mean"] < 0.5 * h.start["completion_length/mean"]
            and h.last["pass_rate"] < h.start["pass_rate"] + 0.1
        ),
        "completions went from {start[completion_length/mean]:.0f} to "
        "{now[completion_length/mean]:.0f} tokens, and the pass rate from "
        "{start[pass_rate]:.0%} to {last[pass_rate]:.0%}: the policy gives up reasoning, or "
        "is paid for brevity; look at log.txt, and take loss.aggregation=token_mean or constant, "
        "which do not favour short answers",
    ),
)
"""All signs, in the order of the documentation."""


def alarm_signs(alarms: Mapping[str, Sequence[Alarm]]) -> list[Sign]:
    """Return a sign for each alarm that the environments of a run declare.

    Args:
        alarms: the alarms of each environment. With several environments, each is watched in its
            own metrics.
    """
    return [
        _alarm_sign(alarm, f"{name}/env/" if len(alarms) > 1 else "env/")
        for name, environment_alarms in alarms.items()
        for alarm in environment_alarms
    ]


def _alarm_sign(alarm: Alarm, prefix: str) -> Sign:
    metric, patience = prefix + alarm.metric, 10
    return Sign(
        metric,
        metric,
        f"above {alarm.above:g} as a mean over {WINDOW} steps, for {patience} steps",
        patience,
        lambda history: history.last[metric] > alarm.above,
        alarm.advice,
    )


class Watch:
    """Looks for signs in the metrics of each step.

    A sign is reported when it has held for its patience, and again only after it was away for
    `WINDOW` steps: a metric that moves about a threshold is one piece of news.

    Args:
        more_signs: signs besides `SIGNS`.
        warn: is called with the warnings of the steps that it hears of as a listener.
    """

    def __init__(
        self, more_signs: Sequence[Sign] = (), warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._signs, self._warn = (*SIGNS, *more_signs), warn
        self._start: list[Line] = []
        self._last: deque[Line] = deque(maxlen=WINDOW)
        self._steps = 0
        self._held: Counter[tuple[str, str]] = Counter()
        self._last_held: dict[tuple[str, str], int] = {}  # step, for signs that were reported

    def on(self, event: Event) -> None:
        """Warn of what the metrics of a step show."""
        if isinstance(event, StepEnded):
            for warning in self.look(event.metrics):
                self._warn(warning)

    def replay(self, line: Mapping[str, Any]) -> str:
        """Look at a line of the log of a run that resumes, whose warnings were given already."""
        if kind_of(line) is Kind.STEP:
            self.look(line)
        return ""

    def look(self, line: Line) -> list[str]:
        """Return the warnings that this step gives."""
        self._steps += 1
        self._last.append(line)
        if len(self._start) < START:
            self._start.append(line)
        last = list(self._last)
        history = History(
            Means([line]), Means(self._start), Means(last), Means(last[:-3]), self._steps
        )
        return [
            sign.advice.format(**_advice_values(history, due))
            for sign in self._signs
            if (due := self._due(sign, history))
        ]

    def _due(self, sign: Sign, history: History) -> list[str]:
        """Return the metrics on which the sign has now held for its patience."""
        seen, due = sign.seen(history), []
        for metric, holds in (seen if isinstance(seen, Mapping) else {sign.metric: seen}).items():
            key = sign.name, metric
            self._held[key] = self._held[key] + 1 if holds else 0
            if self._held[key] < sign.patience:
                continue
            if self._steps - self._last_held.get(key, -WINDOW) >= WINDOW:
                due.append(metric)
            self._last_held[key] = self._steps
        return due


def _advice_values(history: History, due: Sequence[str]) -> dict[str, Any]:
    """Return the values for the placeholders of an advice.

    Args:
        due: the metrics that the advice is about.
    """
    passed = dict(history.reward_metrics())
    return {
        "now": history.now,
        "start": history.start,
        "last": history.last,
        "value": history.last[due[0]],
        "settled": " and ".join(due),
        "stayed": " and ".join(
            f"{history.last[passed[name]]:.0%}" for name in due if name in passed
        ),
        "constant": " and ".join(
            f"{history.now[name]:.0%}"
            + (
                f" ({environment})"
                if (environment := name.removesuffix(CONSTANT_SHARE).strip("/"))
                else ""
            )
            for name in due
        ),
    }
