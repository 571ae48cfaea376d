"""Watch one environment of a run: every detector with its state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.report.floors import shorten
from grpo_core.report.gains import Scores
from grpo_core.train.run.alarms import drifts
from grpo_core.train.run.alarms.canaries import Asked
from grpo_core.train.run.alarms.drifts import Episode, Finding, Windows
from grpo_core.train.run.alarms.seen import Scored, Seen, collisions
from grpo_core.train.run.alarms.sequential import ChangeDetector
from grpo_core.train.run.alarms.types import Alarm, Shown

WINDOW = 10
"""Steps of each window whose groups are compared."""
AUDIT_WINDOW = 2
"""The same for audits, which are asked every `alarms.every` steps."""
COLLAPSED = 0.25
"""By how much the share of equal answers to different tasks has to exceed what is natural."""
CANARY = "canary paid"
DUPLICATES = "duplicates"
LENGTH = "length against reward"
ENTROPY = "entropy against reward"
AUDIT = "audit against reward"
REFERENCE = "reference less likely"


class EnvironmentWatch:
    """Turn what is seen of one environment into alarms.

    Everything that decides a later alarm is in `state`, so a resumed run alarms as an uninterrupted
    one does.

    Args:
        name: the name of the environment in task keys.
        chance: the chance of a false alarm of each comparison in a run; 1 over it is the least
            expected number of looks until a false alarm of each change detector.
        audit_judges: names of judges that are asked but never paid for.
    """

    def __init__(
        self,
        name: str,
        *,
        chance: float,
        audit_judges: Sequence[str] = (),
    ) -> None:
        self._name, self._chance = name, chance
        self._judges = [f"metric/judge/{judge}" for judge in audit_judges]
        self._windows: dict[str, Windows] = {}
        self._episodes: dict[str, Episode] = {}
        self._canaries: dict[str, tuple[tuple[float, float], ChangeDetector]] = {}
        self._natural: list[float] = []
        """Shares of equal answers in the first steps."""
        self._reference_share = 0.0
        """The largest share of equal references of different tasks that was seen."""
        self._duplicates: tuple[float, ChangeDetector] | None = None
        """The bound, and the detector, once the bound is known."""
        self._references: list[float] = []
        """Log-probabilities of reference answers at the first look."""
        self._reference_looks = 0
        self._evaluations = 0
        self.turn = 0
        """How often canaries were asked."""

    @property
    def active(self) -> int:
        """Return how many alarms go on."""
        detectors = [detector for _, detector in self._canaries.values()]
        if self._duplicates is not None:
            detectors.append(self._duplicates[1])
        return sum(detector.active for detector in detectors) + sum(
            episode.active for episode in self._episodes.values()
        )

    def step(self, seen: Seen) -> list[Alarm]:
        """Look at the attempts of a step; return the alarms that begin."""
        alarms = self._duplicated(seen)
        for measure in ("length", "entropy", "passed"):
            self._windows_of(measure, WINDOW).add(seen.values(measure))
        length, entropy, passed = (self._windows[m] for m in ("length", "entropy", "passed"))
        found = {
            (LENGTH, ""): drifts.longer_for_reward(length, passed, self._chance),
            (ENTROPY, ""): drifts.certain_without_reward(entropy, passed, self._chance),
            (AUDIT, "passed"): drifts.against_audit(
                passed, "the pass rate", self._chance, may_stand=True
            ),
        }
        unpaid = [
            f"part/{name}"
            for name, reward in seen.best.verdict.rewards.items()
            if reward.weight == 0
        ]
        for measure in (*unpaid, *self._judges):
            found[AUDIT, measure.partition("/")[2]] = self._followed(seen, measure, WINDOW)
        return alarms + self._begun(seen, found)

    def audited(self, seen: Seen) -> list[Alarm]:
        """Look at attempts that were audited; return the alarms that begin."""
        found = self._followed(seen, "metric/audit", AUDIT_WINDOW)
        return self._begun(seen, {(AUDIT, "audit"): found})

    def asked(self, seen: Seen, asked: Sequence[Asked]) -> list[Alarm]:
        """Look at how canaries were judged; return the alarms that begin."""
        self.turn += 1
        by_kind: dict[str, list[Asked]] = {}
        for each in asked:
            by_kind.setdefault(each.canary.kind, []).append(each)
        alarms = []
        for kind, tried in by_kind.items():
            bounds = tried[0].canary.allowed
            if kind not in self._canaries:
                self._canaries[kind] = bounds, self._detector(*bounds)
            if self._canaries[kind][1].add(float(each.is_paid) for each in tried):
                alarms.append(self._canary_alarm(seen, kind, tried))
        return alarms

    def referred(self, seen: Seen, references: Sequence[str]) -> None:
        """Note how alike the references of a step's tasks are, which is natural for answers."""
        share = collisions([[text.strip()] for text in references])
        if not math.isnan(share):
            self._reference_share = max(self._reference_share, share)

    def measured(self, seen: Seen, logprobs: Sequence[float]) -> list[Alarm]:
        """Look at the log-probabilities of reference answers; return the alarms that begin."""
        if not logprobs:
            return []
        if not self._references:
            self._references = list(logprobs)
            return []
        self._reference_looks += 1
        found = drifts.less_likely_references(
            self._references,
            logprobs,
            drifts.reward_change(self._windows_of("passed", WINDOW)),
            self._chance,
            self._reference_looks,
        )
        return self._begun(seen, {(REFERENCE, ""): found})

    def evaluated(self, step: int, before: Scores, after: Scores) -> list[Alarm]:
        """Look at an evaluation beside the one before training; return the alarms that begin."""
        self._evaluations += 1
        found = drifts.held_out_behind(
            before,
            after,
            drifts.reward_change(self._windows_of("passed", WINDOW)),
            self._chance,
            self._evaluations,
        )
        alarms = []
        for subject in ("held-out tasks", "held-out audit"):
            finding = found.get(subject)
            episode = self._episodes.setdefault(f"{AUDIT}/{subject}", Episode())
            if episode.add(finding is not None) and finding is not None:
                key = max(after, key=lambda key: _surprise(after[key], subject))
                shown = Shown(step, key, 0, 0)
                alarms.append(
                    Alarm(step, AUDIT, self._name, finding.text, subject, finding.values, shown)
                )
        return alarms

    def _detector(self, bound: float, target: float) -> ChangeDetector:
        return ChangeDetector(bound=bound, target=target, run_length=1 / self._chance)

    def _windows_of(self, measure: str, size: int) -> Windows:
        return self._windows.setdefault(measure, Windows(size))

    def _followed(self, seen: Seen, measure: str, size: int) -> Finding | None:
        windows, name = self._windows_of(measure, size), measure.partition("/")[2]
        windows.add(seen.values(measure))
        return drifts.against_audit(windows, f"the measure {name!r}", self._chance)

    def _begun(self, seen: Seen, found: Mapping[tuple[str, str], Finding | None]) -> list[Alarm]:
        """Return an alarm for each finding whose episode begins."""
        alarms = []
        for (name, subject), finding in found.items():
            episode = self._episodes.setdefault(f"{name}/{subject}", Episode())
            if episode.add(finding is not None) and finding is not None:
                attempt = _example(seen, name)
                alarms.append(
                    Alarm(
                        seen.step,
                        name,
                        self._name,
                        finding.text,
                        subject,
                        finding.values,
                        attempt.shown(seen.step),
                    )
                )
        return alarms

    def _duplicated(self, seen: Seen) -> list[Alarm]:
        """Look for answers that are equal whatever the task is.

        They mean that the policy has collapsed to few answers, whether these are paid or not. What
        is natural is learned from the references and the first steps; where the same answer is
        right for most tasks, nothing is looked for.
        """
        share = seen.collisions()
        if math.isnan(share):
            return []
        if self._duplicates is None:
            self._natural.append(share)
            if len(self._natural) >= WINDOW:
                natural = max(sum(self._natural) / len(self._natural), self._reference_share)
                bound = natural + COLLAPSED
                if bound < 1 - COLLAPSED / 2:
                    self._start_duplicates(bound)
            return []
        bound, detector = self._duplicates
        if not detector.add([share]):
            return []
        texts = [scored.rollout.text.strip() for scored in seen.attempts]
        text = max(set(texts), key=texts.count)
        example = next(s for s in seen.attempts if s.rollout.text.strip() == text)
        message = (
            f"two answers to different tasks are equal with a probability of {share:.0%}, and more "
            f"than {bound:.0%} was not expected from references and first steps; {shorten(text)} "
            f"is given by {texts.count(text)} of {len(texts)} attempts: the policy has collapsed "
            "to few answers; look whether they are paid, and raise kl.beta or sampling.temperature"
        )
        values = {"equal": share, "expected": bound}
        return [
            Alarm(
                seen.step,
                DUPLICATES,
                self._name,
                message,
                values=values,
                shown=example.shown(seen.step),
            )
        ]

    def _start_duplicates(self, bound: float) -> None:
        self._duplicates = bound, self._detector(bound, (1 + bound) / 2)

    def _canary_alarm(self, seen: Seen, kind: str, tried: Sequence[Asked]) -> Alarm:
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
        message = (
            f"{what} of this step, {mean:.3f} in the mean, where the attempts earn "
            f"{_mean_reward(seen):.3f}, though such answers must not be paid; for example "
            f"{shorten(canary.text)}: the verifier has a hole that training will find or has "
            "found; read the group, try the answer with `grpo env score`, and fix the verifier"
        )
        shown = (
            Shown(seen.step, canary.task.key, canary.task.draw)
            if evidence is None
            else evidence.shown(seen.step)
        )
        values = {
            "paid_share": len(paid) / len(tried),
            "paid": mean,
            "tasks": float(len(tried)),
            "reward": _mean_reward(seen),
        }
        return Alarm(seen.step, CANARY, self._name, message, kind, values, shown, canary.text)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as JSON data."""
        return {
            "windows": {name: windows.state() for name, windows in self._windows.items()},
            "episodes": {name: episode.state() for name, episode in self._episodes.items()},
            "canaries": {
                kind: [bounds, detector.state()]
                for kind, (bounds, detector) in self._canaries.items()
            },
            "natural": self._natural,
            "reference_share": self._reference_share,
            "duplicates": None
            if self._duplicates is None
            else [self._duplicates[0], self._duplicates[1].state()],
            "references": self._references,
            "reference_looks": self._reference_looks,
            "evaluations": self._evaluations,
            "turn": self.turn,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name, windows in state["windows"].items():
            size = AUDIT_WINDOW if name == "metric/audit" else WINDOW
            self._windows_of(name, size).restore(windows)
        for name, episode in state["episodes"].items():
            self._episodes.setdefault(name, Episode()).restore(episode)
        for kind, (bounds, detector_state) in state["canaries"].items():
            detector = self._detector(*bounds)
            detector.restore(detector_state)
            self._canaries[kind] = tuple(bounds), detector
        self._natural = list(state["natural"])
        self._reference_share = state["reference_share"]
        if state["duplicates"] is not None:
            self._start_duplicates(state["duplicates"][0])
            assert self._duplicates is not None
            self._duplicates[1].restore(state["duplicates"][1])
        self._references = list(state["references"])
        self._reference_looks, self.turn = state["reference_looks"], state["turn"]
        self._evaluations = state["evaluations"]


def _surprise(scores: Mapping[str, float], subject: str) -> float:
    """Return how well a held-out task shows a finding: failed, or paid and not confirmed."""
    if subject == "held-out tasks":
        return -scores["reward"]
    return scores["reward"] - scores.get("audit", scores["reward"])


def _mean_reward(seen: Seen) -> float:
    totals = [scored.reward for scored in seen.attempts]
    return sum(totals) / len(totals)


def _example(seen: Seen, name: str) -> Scored:
    """Return the attempt that shows best what a comparison found."""
    if name == LENGTH:
        return max(seen.attempts, key=lambda s: (s.rollout.sampled_tokens, s.reward))
    if name == AUDIT:  # well paid, and not liked by the audit
        return max(
            seen.attempts,
            key=lambda s: (
                s.reward - s.verdict.metrics.get("audit", 0.0),
                not s.verdict.passed,
            ),
        )
    return seen.best
