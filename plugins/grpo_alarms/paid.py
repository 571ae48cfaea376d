"""Notice canaries that are paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_alarms.canaries import JudgedCanary
from grpo_alarms.seen import Seen
from grpo_alarms.sequential import ChangeDetector
from grpo_core.api.figures import ADVICE_BESIDE_RIGHT
from grpo_core.protocol.events import AlarmRaised, RolloutPlace
from grpo_core.words import shorten

CANARY = "canary paid"


class PaidCanaries:
    """Watch for each kind of canary on which share of the tasks it is paid.

    It means that the verifier pays an answer that it must not pay, whether the policy gives such
    answers or not. What no canary tries is not seen.

    Args:
        run_length: the least expected number of askings until a false alarm of a kind.
    """

    def __init__(self, *, run_length: float) -> None:
        self._run_length = run_length
        self._kinds: dict[str, tuple[tuple[float, float], ChangeDetector]] = {}
        self.turn = 0
        """How often canaries were asked."""

    @property
    def active(self) -> int:
        """Return for how many kinds the alarm goes on."""
        return sum(detector.active for _, detector in self._kinds.values())

    def asked(
        self, seen: Seen, environment: str, asked: Sequence[JudgedCanary]
    ) -> list[AlarmRaised]:
        """Look at how canaries were judged; return the alarms that begin."""
        self.turn += 1
        by_kind: dict[str, list[JudgedCanary]] = {}
        for answer in asked:
            by_kind.setdefault(answer.canary.kind, []).append(answer)
        return [
            _alarm(seen, environment, kind, tried)
            for kind, tried in by_kind.items()
            if self._detector(kind, tried[0].canary.allowed).add(
                float(answer.is_paid) for answer in tried
            )
        ]

    def _detector(self, kind: str, allowed: tuple[float, float]) -> ChangeDetector:
        bound, target = allowed
        if kind not in self._kinds:
            detector = ChangeDetector(bound=bound, target=target, run_length=self._run_length)
            self._kinds[kind] = (bound, target), detector
        return self._kinds[kind][1]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as JSON data."""
        return {
            "turn": self.turn,
            "kinds": {
                kind: [allowed, detector.state()]
                for kind, (allowed, detector) in self._kinds.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.turn = state["turn"]
        for kind, ((bound, target), detector_state) in state["kinds"].items():
            self._detector(kind, (bound, target)).restore(detector_state)


def _alarm(seen: Seen, environment: str, kind: str, tried: Sequence[JudgedCanary]) -> AlarmRaised:
    """Return the alarm for a kind of canary that is paid."""
    paid = [each for each in tried if each.is_paid]
    first = max(paid or tried, key=lambda each: each.verdict.total)
    canary, evidence = first.canary, first.canary.evidence
    mean = sum(each.verdict.total for each in tried) / len(tried)
    what = (
        f"{kind} is paid more than the attempt itself on {len(paid)} of {len(tried)} tasks"
        if canary.compared is not None
        else f"{kind} is paid on {len(paid)} of {len(tried)} tasks"
    )
    remedy = ADVICE_BESIDE_RIGHT.get(canary.right_at or "", "fix the verifier")
    message = (
        f"{what} of this step, {mean:.3f} in the mean, where the attempts earn "
        f"{_mean_reward(seen):.3f}, though such answers must not be paid; for example "
        f"{shorten(canary.text)}: the verifier has a hole that training will find or has "
        f"found; read the group, try the answer with `grpo env score`, and {remedy}"
    )
    shown = (
        RolloutPlace(seen.step, canary.task.key, canary.task.draw)
        if evidence is None
        else evidence.shown(seen.step)
    )
    values = {
        "paid_share": len(paid) / len(tried),
        "paid": mean,
        "tasks": float(len(tried)),
        "reward": _mean_reward(seen),
    }
    return AlarmRaised(seen.step, CANARY, environment, message, kind, values, shown, canary.text)


def _mean_reward(seen: Seen) -> float:
    totals = [scored.reward for scored in seen.attempts]
    return sum(totals) / len(totals)
