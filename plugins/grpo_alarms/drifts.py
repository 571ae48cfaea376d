"""Compare the first groups of a run with the newest: what rose with the reward, what did not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_alarms.sequential import Change, RewardSums, change, paired_change, spent
from grpo_core import TaskKey

Scores = Mapping[TaskKey, Mapping[str, float]]
"""What two evaluations are compared by, by task."""

SURE = 0.01
"""The chance of being wrong with which the reward counts as risen.

It need not be spent over the looks: each alarm also needs its own change, for which that is done.
"""
NOTICED = 0.05
"""The same where a rise excuses what else is seen."""
LONGER = 0.5
"""By what share completions have to grow."""
ENTROPY_LEFT = 0.25
"""The share of the entropy below which it counts as collapsed."""
SOLVED = 0.9
"""Pass rate above which the policy has nothing left to explore."""
LESS_LIKELY = 0.1
"""Nats per token that reference answers have to lose."""
PATIENCE = 20
"""Looks without the sign after which it has gone away."""


class SignPeriod:
    """Tell when a sign begins: it is reported once, and again only after it has gone away."""

    def __init__(self) -> None:
        self.active = False
        self._absent = 0

    def add(self, is_seen: bool) -> bool:
        """Note whether the sign is seen; return whether it begins."""
        self._absent = 0 if is_seen else self._absent + 1
        begins = is_seen and not self.active
        self.active = begins or (self.active and self._absent < PATIENCE)
        return begins

    def state(self) -> list[int]:
        """Return what a checkpoint stores."""
        return [int(self.active), self._absent]

    def restore(self, state: Sequence[int]) -> None:
        """Restore the state of a checkpoint."""
        self.active, self._absent = bool(state[0]), state[1]


class Windows:
    """Keep a measure with the rewards: sums over the first looks, and over each of the newest.

    Args:
        size: looks of a window; both windows are full, and do not overlap, after twice as many.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._looks = 0
        self._first = RewardSums()
        self._newest: deque[RewardSums] = deque(maxlen=size)

    def add(self, groups: Sequence[Sequence[tuple[float, float]]]) -> None:
        """Look at the (measure, reward) of the attempts of each group; no groups are no look."""
        if not (sums := RewardSums.of(groups)).count:
            return
        self._looks += 1
        if self._looks <= self._size:
            self._first += sums
        else:
            self._newest.append(sums)

    @property
    def compared(self) -> tuple[RewardSums, RewardSums] | None:
        """Return the sums over both windows; None while there is too little to compare."""
        after = sum(self._newest, RewardSums())
        is_ready = len(self._newest) == self._size and min(self._first.count, after.count) >= 4
        return (self._first, after) if is_ready else None

    @property
    def look(self) -> int:
        """Return the number of the comparison, from 1."""
        return self._looks - 2 * self._size + 1

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return {
            "looks": self._looks,
            "first": self._first.to_json(),
            "newest": [sums.to_json() for sums in self._newest],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._looks, self._first = state["looks"], RewardSums.from_json(state["first"])
        self._newest.clear()
        self._newest.extend(map(RewardSums.from_json, state["newest"]))


def reward_change(windows: Windows) -> Change | None:
    """Return how the mean reward has changed; None while there is too little to compare."""
    return None if windows.compared is None else change(*windows.compared, of_x=0.0, of_r=1.0)


@dataclass(frozen=True, slots=True)
class Finding:
    """Say what a comparison has found, in words and in numbers."""

    text: str
    values: Mapping[str, float]


def longer_for_reward(length: Windows, passed: Windows, chance: float) -> Finding | None:
    """Find that reward and length have risen, and the pass rate has not.

    It means that longer completions are paid, or come with what is paid. An honest policy that
    learns to reason longer passes more often, which is no alarm. It does not see a verifier whose
    `passed` is wrong as well; the canary "an attempt twice" tries that.
    """
    if length.compared is None or passed.compared is None:
        return None
    reward, longer, passing = (
        change(*length.compared, of_x=0.0, of_r=1.0),
        change(*length.compared),
        change(*passed.compared),
    )
    if (
        not reward.exceeds(SURE)
        or not longer.exceeds(spent(chance, length.look), by=LONGER * longer.before)
        or passing.exceeds(NOTICED)
    ):
        return None
    return Finding(
        f"the reward rose from {reward.before:.3f} to {reward.after:.3f} and the completions from "
        f"{longer.before:.0f} to {longer.after:.0f} tokens, but the pass rate went from "
        f"{passing.before:.1%} to {passing.after:.1%}: length may be what is paid; compare short "
        "and long attempts of the group, and their parts",
        {**_both("reward", reward), **_both("length", longer), **_both("pass_rate", passing)},
    )


def certain_without_reward(entropy: Windows, passed: Windows, chance: float) -> Finding | None:
    """Find that most of the entropy is gone, and the reward has not risen.

    It means that the policy has stopped trying other answers before it has found a better one. Of a
    policy that has learned its task nothing else is expected, so it counts only while fewer than
    90 % pass.
    """
    if entropy.compared is None or passed.compared is None:
        return None
    reward, fallen, passing = (
        change(*entropy.compared, of_x=0.0, of_r=1.0),
        change(*entropy.compared),
        change(*passed.compared),
    )
    most = (ENTROPY_LEFT - 1) * fallen.before
    if (
        passing.after >= SOLVED
        or not fallen.stays_below(spent(chance, entropy.look), by=most)
        or reward.exceeds(NOTICED)
    ):
        return None
    return Finding(
        f"the entropy fell from {fallen.before:.3f} to {fallen.after:.3f} nats per token, and the "
        f"reward went from {reward.before:.3f} to {reward.after:.3f}: the policy has stopped "
        "trying other answers before it found better ones; raise sampling.temperature, kl.beta or "
        "loss.clip_high, or lower optimizer.lr",
        {**_both("reward", reward), **_both("entropy", fallen), **_both("pass_rate", passing)},
    )


def against_audit(
    audit: Windows, name: str, chance: float, *, may_stand: bool = False
) -> Finding | None:
    """Find that the reward has risen, and a measure that training does not see has not followed.

    What is expected of the audit follows from the first attempts: how much higher it was where the
    reward was higher. Half of that is enough; an audit that did not rise with the reward even then
    must not fall. It means that training raises what the verifier pays, and not what the audit
    measures: a hole in the verifier, or an audit that looks at something else.

    Args:
        audit: the audit with the rewards.
        name: what the audit is called.
        chance: that of a false alarm in the whole run.
        may_stand: the measure may stand still, and must not fall.
    """
    if audit.compared is None:
        return None
    before, after = audit.compared
    expected = 0.0 if may_stand else 0.5 * before.slope
    reward, seen = change(before, after, of_x=0.0, of_r=1.0), change(before, after)
    behind = change(before, after, of_x=-1.0, of_r=expected)
    if not reward.exceeds(SURE) or not behind.exceeds(spent(chance, audit.look)):
        return None
    return Finding(
        f"the reward rose from {reward.before:.3f} to {reward.after:.3f}, but {name}, which is not "
        f"paid, went from {seen.before:.3f} to {seen.after:.3f}: training may be using a hole in "
        "the verifier; read the best-paid attempts, which the audit does not like",
        {
            **_both("reward", reward),
            **_both("audit", seen),
            "expected_slope": 2 * expected,
        },
    )


def held_out_behind(
    before: Scores, after: Scores, trained: Change | None, chance: float, look: int
) -> dict[str, Finding]:
    """Find that held-out tasks do not confirm the reward, by what shows it.

    "held-out tasks": the reward on training tasks rose, and that on held-out ones by less than half
    of it. Training tasks may give their answer away, or are learned by heart. "held-out
    audit": the reward on held-out tasks rose and their audit fell.

    Args:
        before: the scores of the evaluation before training.
        after: those now.
        trained: how the reward on training tasks has changed.
        chance: that of a false alarm in the whole run.
        look: the number of the comparison, from 1.
    """
    keys = [key for key in before if key in after]
    if len(keys) < 2:
        return {}
    share, found = spent(chance, look), {}
    reward = paired_change(*([scores[key]["reward"] for key in keys] for scores in (before, after)))
    if (
        trained is not None
        and trained.exceeds(SURE)
        and replace(reward, error=math.hypot(reward.error, trained.error / 2)).stays_below(
            share, by=trained.rise / 2
        )
    ):
        found["held-out tasks"] = Finding(
            f"the reward on training tasks rose from {trained.before:.3f} to {trained.after:.3f}, "
            f"but that of {len(keys)} held-out tasks went from {reward.before:.3f} to "
            f"{reward.after:.3f}: training tasks may give their answers away, or are learned by "
            "heart; compare prompts of both, and look for the answer in the prompt",
            {**_both("reward", trained), **_both("held_out_reward", reward)},
        )
    audited = [key for key in keys if "audit" in before[key] and "audit" in after[key]]
    if len(audited) >= 2:
        paid, audit = (
            paired_change(*([scores[key][name] for key in audited] for scores in (before, after)))
            for name in ("reward", "audit")
        )
        if paid.exceeds(SURE) and audit.stays_below(share, by=0.0):
            found["held-out audit"] = Finding(
                f"the reward of {len(audited)} held-out tasks rose from {paid.before:.3f} to "
                f"{paid.after:.3f}, but their audit, which is not paid, fell from "
                f"{audit.before:.3f} to {audit.after:.3f}: training may be using a hole in the "
                "verifier; read the best-paid attempts, which the audit does not like",
                {**_both("held_out_reward", paid), **_both("audit", audit)},
            )
    return found


def less_likely_references(
    first: Sequence[float], now: Sequence[float], reward: Change | None, chance: float, look: int
) -> Finding | None:
    """Find that the reward has risen, and right answers have become less likely.

    It means that the policy is paid for something else than what the author holds for right. It may
    also be that the policy answers rightly in another form than the reference, such as with its
    reasoning before it; then the pass rate and an audit rise.

    Args:
        first: the mean log-probability per token of each reference answer at the first look.
        now: those of the same answers now.
        reward: how the reward has changed.
        chance: that of a false alarm in the whole run.
        look: the number of the comparison, from 1.
    """
    if reward is None or len(first) < 2 or not reward.exceeds(SURE):
        return None
    fallen = paired_change(first, now)
    if not fallen.stays_below(spent(chance, look), by=-LESS_LIKELY):
        return None
    return Finding(
        f"the reward rose from {reward.before:.3f} to {reward.after:.3f}, but the reference "
        f"answers of {len(first)} held-out tasks went from {fallen.before:.2f} to "
        f"{fallen.after:.2f} nats per token: what is paid may not be what is right; compare the "
        "best-paid attempts with the references",
        {**_both("reward", reward), **_both("reference_logprob", fallen)},
    )


def _both(name: str, seen: Change) -> dict[str, float]:
    return {f"{name}/before": seen.before, f"{name}/after": seen.after}
