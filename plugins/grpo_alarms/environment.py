"""Watch one environment of a run: every detector with its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_alarms import drifts
from grpo_alarms.canaries import JudgedCanary
from grpo_alarms.drifts import Finding, Scores, SignPeriod, Windows
from grpo_alarms.duplicates import Duplicates
from grpo_alarms.paid import PaidCanaries
from grpo_alarms.seen import Scored, Seen
from grpo_core.protocol.events import AlarmRaised, RolloutPlace

WINDOW = 10
"""Steps of each window whose groups are compared."""
AUDIT_WINDOW = 2
"""The same for audits, which are asked every `alarms.every` steps."""
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
        self._episodes: dict[str, SignPeriod] = {}
        self.canaries = PaidCanaries(run_length=1 / chance)
        self.duplicates = Duplicates(run_length=1 / chance)
        self._references: dict[str, float] = {}
        """Log-probability of each task's reference answer at the first look."""
        self._reference_looks = 0
        self._evaluations = 0

    @property
    def active(self) -> int:
        """Return how many alarms go on."""
        episodes = sum(episode.active for episode in self._episodes.values())
        return episodes + self.canaries.active + self.duplicates.active

    def step(self, seen: Seen) -> list[AlarmRaised]:
        """Look at the attempts of a step; return the alarms that begin."""
        alarms = self.duplicates.step(seen, self._name)
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

    def audited(self, seen: Seen) -> list[AlarmRaised]:
        """Look at attempts that were audited; return the alarms that begin."""
        found = self._followed(seen, "metric/audit", AUDIT_WINDOW)
        return self._begun(seen, {(AUDIT, "audit"): found})

    def asked(
        self, seen: Seen, asked: Sequence[JudgedCanary], references: Sequence[str]
    ) -> list[AlarmRaised]:
        """Look at how canaries were judged; return the alarms that begin.

        Args:
            seen: the attempts of the step.
            asked: the canaries.
            references: the reference answers of the step's tasks, as far as they are texts.
        """
        self.duplicates.referred(references)
        return self.canaries.asked(seen, self._name, asked)

    def measured(self, seen: Seen, logprobs: Mapping[str, float]) -> list[AlarmRaised]:
        """Look at the log-probabilities of reference answers; return the alarms that begin.

        Args:
            seen: the attempts of the step.
            logprobs: the mean log-probability per token of reference answers, by their task.
        """
        if not logprobs:
            return []
        common = [task for task in self._references if task in logprobs]
        if len(common) < 2:  # the first look, or other tasks than before a resume
            self._references, self._reference_looks = dict(logprobs), 0
            return []
        self._reference_looks += 1
        found = drifts.less_likely_references(
            [self._references[task] for task in common],
            [logprobs[task] for task in common],
            drifts.reward_change(self._windows_of("passed", WINDOW)),
            self._chance,
            self._reference_looks,
        )
        return self._begun(seen, {(REFERENCE, ""): found})

    def evaluated(self, step: int, before: Scores, after: Scores) -> list[AlarmRaised]:
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
            episode = self._episodes.setdefault(f"{AUDIT}/{subject}", SignPeriod())
            if episode.add(finding is not None) and finding is not None:
                key = max(after, key=lambda key: _surprise(after[key], subject))
                shown = RolloutPlace(step, key, 0, 0)
                alarms.append(
                    AlarmRaised(
                        step, AUDIT, self._name, finding.text, subject, finding.values, shown
                    )
                )
        return alarms

    def _windows_of(self, measure: str, size: int) -> Windows:
        return self._windows.setdefault(measure, Windows(size))

    def _followed(self, seen: Seen, measure: str, size: int) -> Finding | None:
        windows, name = self._windows_of(measure, size), measure.partition("/")[2]
        windows.add(seen.values(measure))
        return drifts.against_audit(windows, f"the measure {name!r}", self._chance)

    def _begun(
        self, seen: Seen, found: Mapping[tuple[str, str], Finding | None]
    ) -> list[AlarmRaised]:
        """Return an alarm for each finding whose episode begins."""
        alarms = []
        for (name, subject), finding in found.items():
            episode = self._episodes.setdefault(f"{name}/{subject}", SignPeriod())
            if episode.add(finding is not None) and finding is not None:
                attempt = _example(seen, name)
                alarms.append(
                    AlarmRaised(
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

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as JSON data."""
        return {
            "windows": {name: windows.state() for name, windows in self._windows.items()},
            "episodes": {name: episode.state() for name, episode in self._episodes.items()},
            "canaries": self.canaries.state(),
            "duplicates": self.duplicates.state(),
            "references": dict(self._references),
            "reference_looks": self._reference_looks,
            "evaluations": self._evaluations,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name, windows in state["windows"].items():
            size = AUDIT_WINDOW if name == "metric/audit" else WINDOW
            self._windows_of(name, size).restore(windows)
        for name, episode in state["episodes"].items():
            self._episodes.setdefault(name, SignPeriod()).restore(episode)
        self.canaries.restore(state["canaries"])
        self.duplicates.restore(state["duplicates"])
        self._references = dict(state["references"])
        self._reference_looks = state["reference_looks"]
        self._evaluations = state["evaluations"]


def _surprise(scores: Mapping[str, float], subject: str) -> float:
    """Return how well a held-out task shows a finding: failed, or paid and not confirmed."""
    if subject == "held-out tasks":
        return -scores["reward"]
    return scores["reward"] - scores.get("audit", scores["reward"])


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
