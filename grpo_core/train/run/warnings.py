"""Said loudly, with advice: signs in the metrics that a run is not learning, or not what it should."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo_core.train.run.metrics import OWN

START = 10
"""Steps at the beginning that later ones are compared with."""

WINDOW = 20
"""Last steps that are looked at as a mean."""

SOLVED = 0.9
"""A policy that passes so often has nothing left to explore."""

Line = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Means:
    """Metrics by name, as means over some steps; NaN, of which nothing is above or below, where none was measured."""

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
    """now: this step; start: the first `START`; last: the last `WINDOW`, this one included; before: those but the last 3; steps: how many
    there were."""

    now: Means
    start: Means
    last: Means
    before: Means
    steps: int

    @property
    def unsolved(self) -> bool:
        """Whether the start is over and there is still something to learn."""
        return self._unsolved("pass_rate")

    def settled(self) -> dict[str, bool]:
        """Of each reward part, whether it came near to 1 while the pass rate stayed where it was."""
        return {
            name: self.steps >= START + WINDOW
            and self._unsolved(passed)
            and self.last[passed] < self.start[passed] + 0.03
            and self.last[name] > 0.9
            and self.last[name] > self.start[name] + 0.2
            for name, passed in self.rewards()
            if not name.endswith(NO_PARTS)
        }

    def constant(self) -> dict[str, bool]:
        """Of each environment that was asked in this step, by the metric, whether there is something left to learn and most of the reward
        is the same for all of a group."""
        shares = {
            name: passed
            for name, passed in self.rewards()
            if name.endswith(CONSTANT) and not math.isnan(self.now[name])
        }
        return {
            name: self._unsolved(passed) and self.now[name] > 0.8 for name, passed in shares.items()
        }

    def _unsolved(self, passed: str) -> bool:
        return self.steps > START and self.last[passed] < SOLVED

    def rewards(self) -> list[tuple[str, str]]:
        """The metrics of rewards, each with that of the pass rate which belongs to it: in a mixture, an environment's own."""
        line = self.now.lines[0]
        found = [
            (name, f"{name.rpartition('reward/')[0]}pass_rate")
            for name in line
            if "reward/" in name
        ]
        return [(name, passed) for name, passed in found if passed in line]


CONSTANT = "reward/constant_share"
NO_PARTS = tuple(f"reward/{name}" for name in OWN)


@dataclass(frozen=True, slots=True)
class Sign:
    """metric, threshold: as the documentation has them; patience: for how many steps in a row it has to be seen; seen: whether it is, or,
    of each metric by itself, where it can be several (one that is not named was not measured, which says neither); advice: what it means
    and what to do, with places for metrics of `History`."""

    name: str
    metric: str
    threshold: str
    patience: int
    seen: Callable[[History], bool | Mapping[str, bool]]
    advice: str


SIGNS: Sequence[Sign] = (
    Sign(
        "constant reward",
        "reward/std",
        "0, for 10 steps",
        10,
        lambda h: h.now["reward/std"] == 0,
        "every attempt at every prompt got the same reward ({now[reward/mean]:.3f}) for 10 steps: either no answer is ever right, or "
        "the verifier cannot tell answers apart; try it with `grpo env score`, and an easier level, a warm start (`grpo sft`) or a "
        "denser reward",
    ),
    Sign(
        "dead groups",
        "groups/mixed",
        "0, for 10 steps",
        10,
        lambda h: h.now["groups/mixed"] == 0 and h.now["reward/std"] != 0,
        "all rewards within every group were equal for 10 steps (mean {now[reward/mean]:.3f}): there is nothing to learn from; try an"
        " easier or harder level, a larger group_size, a higher sampling.temperature, or a denser reward",
    ),
    Sign(
        "clipped completions",
        "completion_length/clipped",
        "above 0.5, for 3 steps",
        3,
        lambda h: h.now["completion_length/clipped"] > 0.5,
        "{now[completion_length/clipped]:.0%} of the completions reach sampling.max_new_tokens before they end: their answers are cut"
        " off; raise --max-new-tokens, or ask for shorter answers in the prompt",
    ),
    Sign(
        "KL explodes",
        "kl",
        "above 1 nat per token, or 10 times the mean of the steps before and above 0.3, for 3 steps",
        3,
        lambda h: h.now["kl"] > 1 or h.now["kl"] > max(0.3, 10 * h.before["kl"]),
        "the KL to the reference is {now[kl]:.2f} nats per token: the policy is leaving the model that it began as; lower "
        "optimizer.lr, raise kl.beta, or set stop.max_kl and go on from a checkpoint before it",
    ),
    Sign(
        "entropy collapse",
        "entropy",
        "below a tenth of the first 10 steps' while fewer than half pass, for 10 steps",
        10,
        lambda h: (
            h.unsolved and h.last["pass_rate"] < 0.5 and h.now["entropy"] < 0.1 * h.start["entropy"]
        ),
        "the policy's entropy fell from {start[entropy]:.3f} to {now[entropy]:.3f} nats per token, and only {last[pass_rate]:.0%} "
        "pass: it has stopped trying other answers; raise sampling.temperature, kl.beta or loss.clip_high, or lower optimizer.lr",
    ),
    Sign(
        "sampler and trainer disagree",
        "sampling/logprob_gap",
        "above 0.1 nats per token, for 3 steps",
        3,
        lambda h: h.now["sampling/logprob_gap"] > 0.1,
        "the log-probs of sampler and trainer are {now[sampling/logprob_gap]:.2f} nats per token apart, so what is trained is not "
        "what was sampled; use --dtype float32 for both, or set loss.tis_cap=2",
    ),
    Sign(
        "format learned, answers not",
        "reward/PART",
        "a part rose by 0.2 to above 0.9 while the pass rate rose by less than 0.03",
        1,
        History.settled,
        "{settled} went up to where nothing is left to gain while the pass rate stayed at {stayed}: the form is learned "
        "and the answers are not; lower the weights of those parts, or try an easier level",
    ),
    Sign(
        "reward without contrast",
        "reward/constant_share",
        "above 0.8 while fewer than 90 % pass, for 20 steps",
        20,
        History.constant,
        "{constant} of the reward comes from parts that all attempts of a group get alike, so they teach "
        "nothing and only make the reward look high; lower their weights",
    ),
    Sign(
        "judge prefers fills to references",
        "env/judge/over_reference",
        "above 0 as a mean over 20 steps, for 10 steps",
        10,
        lambda h: h.last["env/judge/over_reference"] > 0,
        "the judge gives what the policy writes {last[env/judge/over_reference]:.3f} more than what really stood there: that is rather a "
        "weakness of the judge, which the policy has found, than better writing; look at log.txt, and compare with an audit judge",
    ),
    Sign(
        "completions shrink",
        "completion_length/mean",
        "below half of the first 10 steps' while the pass rate rose by less than 0.1, for 10 steps",
        10,
        lambda h: (
            h.unsolved
            and h.now["completion_length/mean"] < 0.5 * h.start["completion_length/mean"]
            and h.last["pass_rate"] < h.start["pass_rate"] + 0.1
        ),
        "completions went from {start[completion_length/mean]:.0f} to {now[completion_length/mean]:.0f} tokens, and the pass rate "
        "from {start[pass_rate]:.0%} to {last[pass_rate]:.0%}: the policy gives up reasoning, or is paid for brevity; look at "
        "log.txt, and take loss.aggregation=token_mean or constant, which do not favour short answers",
    ),
)


class Watch:
    """Looks at the metrics of each step; a sign is said when it has held for its patience, and again only after it went away."""

    def __init__(self) -> None:
        self._start: list[Line] = []
        self._last: deque[Line] = deque(maxlen=WINDOW)
        self._steps = 0
        self._held: Counter[tuple[str, str]] = Counter()

    def look(self, line: Line) -> list[str]:
        """The warnings that this step gives."""
        self._steps += 1
        self._last.append(line)
        if len(self._start) < START:
            self._start.append(line)
        last = list(self._last)
        history = History(
            Means([line]), Means(self._start), Means(last), Means(last[:-3]), self._steps
        )
        return [
            sign.advice.format(**_places(history, due))
            for sign in SIGNS
            if (due := self._due(sign, history))
        ]

    def _due(self, sign: Sign, history: History) -> list[str]:
        """The metrics whose patience is over now."""
        seen, due = sign.seen(history), []
        for metric, holds in (seen if isinstance(seen, Mapping) else {sign.metric: seen}).items():
            self._held[sign.name, metric] = self._held[sign.name, metric] + 1 if holds else 0
            if holds and self._held[sign.name, metric] == sign.patience:
                due.append(metric)
        return due


def _places(history: History, due: Sequence[str]) -> dict[str, Any]:
    """What an advice may name. due: the metrics that it is about."""
    passed = dict(history.rewards())
    shares = {name: history.now[name] for name in due}
    return {
        "now": history.now,
        "start": history.start,
        "last": history.last,
        "settled": " and ".join(due),
        "stayed": " and ".join(
            f"{history.last[passed[name]]:.0%}" for name in due if name in passed
        ),
        "constant": " and ".join(
            f"{share:.0%}" + (f" ({of})" if (of := name.removesuffix(CONSTANT).strip("/")) else "")
            for name, share in shares.items()
        ),
    }
