"""Say what the rewards of a run teach: at its first attempts, and once more at its end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.figures.signal import (
    Signal,
    advice_where_same,
    advice_where_solved,
    advice_without_success,
)
from grpo_core.plugins.rows import name_in_commands
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.events import (
    BatchCollected,
    EvaluationEnded,
    Event,
    RunEnded,
    StepEnded,
)
from grpo_core.protocol.ties import all_same, same_reward
from grpo_core.protocol.types import Group, Rollout, Task, Verdict
from grpo_core.runs.lines import Kind, kind_of
from grpo_core.train.actor import Actor
from grpo_core.train.run.journal import Journal
from grpo_core.train.run.services import kept_random_states
from grpo_core.verify.sources import Source
from grpo_core.words import cut

ENOUGH = 4
"""Fewer attempts at an environment say nothing yet: those of the next step are awaited."""
SHOWN = 3
"""How many attempts are shown."""
_TEXT = 150
"""The most characters that are shown of an attempt, and of its note."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Hold an attempt with its verdict."""

    task: Task[Any]
    rollout: Rollout
    verdict: Verdict

    def __str__(self) -> str:
        """Return what was written, what it earned, and what the verifier said of it."""
        notes = [f"{name}: {part.note}" for name, part in self.verdict.rewards.items() if part.note]
        if not notes:
            answer = self.verdict.answer
            notes = ["no answer found" if answer is None else f"answer: {answer}"]
        ending = " (cut off)" if self.rollout.finish == "length" else ""
        remark = cut(" ".join("; ".join(notes).split()), _TEXT)
        return f"{cut(self.rollout.text, _TEXT)!r}{ending} got {self.verdict.total:.3f} ({remark})"


class FirstLook:
    """Warn, as a listener, of environments at which the first attempts all get the same reward.

    These are the attempts of the evaluation before the first step and, where those are too few,
    of the first steps. Each environment that is trained on is looked at by itself, once.
    """

    def __init__(self, actor: Actor, journal: Journal, *, warms_up: bool) -> None:
        """Prepare the look.

        Args:
            actor: has the environments.
            journal: gets the warnings.
            warms_up: whether the run learns from right answers, so that it may begin without any.
        """
        self._actor, self._journal, self._warms_up = actor, journal, warms_up
        self._attempts: dict[str, list[_Attempt]] = {
            source.name: [] for source in actor.sources.trained
        }
        """The attempts so far, by the environments of which nothing is known yet."""

    async def on(self, event: Event) -> None:
        """Look at the attempts of the first evaluation and of the first steps."""
        match event:
            case EvaluationEnded(step=0):
                await self._look_at(event.groups, "held-out attempts before the first step")
            case BatchCollected():
                await self._look_at(event.groups, "first attempts")

    def replay(self, line: Mapping[str, Any]) -> str:
        """Look at nothing where a run resumes that has trained: what there was to say was said."""
        if kind_of(line) is Kind.STEP:
            self._attempts.clear()
        return ""

    async def _look_at(self, groups: Sequence[Group[Any]], what: str) -> None:
        for group in groups:
            attempts = self._attempts.get(group.task.key.env)
            if attempts is not None:
                attempts += [
                    _Attempt(group.task, rollout, verdict)
                    for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
                ]
        known = [name for name, attempts in self._attempts.items() if len(attempts) >= ENOUGH]
        for name in known:
            attempts = self._attempts.pop(name)
            scored = [attempt for attempt in attempts if attempt.verdict.scored]
            if not scored:
                self._journal.warn(
                    f"none of {len(attempts)} {what} at {name!r} could be judged: "
                    f"{attempts[0].verdict.error}"
                )
            elif all_same([attempt.verdict.total for attempt in scored]):
                await self._warn(self._actor.sources[name], scored, what)
            elif not any(attempt.verdict.passed for attempt in scored):
                self._announce(self._actor.sources[name], scored, what)

    async def _warn(self, source: Source, attempts: Sequence[_Attempt], what: str) -> None:
        """Warn of attempts that all got the same reward."""
        passed = sum(attempt.verdict.passed for attempt in attempts)
        if self._warms_up and passed < len(attempts):
            return
        reference = await self._reference(attempts[0].task)
        total = attempts[0].verdict.total
        lines = [f"all {len(attempts)} {what} at {source.name!r} got the same reward, {total:.3f}"]
        lines[0] += _verdict_on(source, total, passed, len(attempts))
        different = {attempt.rollout.text: attempt for attempt in attempts}
        lines += [f"  {attempt}" for attempt in islice(different.values(), SHOWN)]
        if reference:
            failed = await self._failed_reference(attempts[0].task, reference)
            shown = repr(cut(reference, _TEXT))
            lines.append(
                f"  the reference answer to the first, {shown}, {failed}"
                if failed
                else f"  a right answer to the first: {shown}"
            )
            reference = "" if failed else reference
        clipped = sum(attempt.rollout.finish == "length" for attempt in attempts) / len(attempts)
        if not self._actor.policy.end_ids and not self._actor.config.sampling.stop:
            clipped = 0.0  # no completion can end, so more tokens would not help
        lines.append(f"  {self._advice(source, total, passed / len(attempts), clipped, reference)}")
        self._journal.warn("\n".join(lines))

    async def _failed_reference(self, task: Task[Any], reference: str) -> str:
        """Return what the reference answer earned if it does not pass either; "" if it does."""
        source = self._actor.sources[task.key.env]
        if source.env.max_turns > 1 or source.verifier.has_episodes or source.verifier.has_agents:
            return ""  # of a dialogue it is the first turn alone
        with kept_random_states():
            ((verdict,),) = await self._actor.sources.verify([task], [[Rollout.of(reference)]])
        if not verdict.scored or verdict.passed:
            return ""
        return f"does not pass either, with {verdict.total:.3f}; look at the verifier first"

    def _announce(self, source: Source, attempts: Sequence[_Attempt], what: str) -> None:
        """Say that no attempt passed, where rewards differ all the same."""
        if source.env.open_ended or self._warms_up:
            return
        totals = [attempt.verdict.total for attempt in attempts]
        differing = [
            name
            for name in source.env.parts
            if not all_same([attempt.verdict.rewards[name].value for attempt in attempts])
        ]
        self._journal.announce(
            f"none of {len(attempts)} {what} at {source.name!r} passed; they got {min(totals):.3f} "
            f"to {max(totals):.3f}, by differences in {' and '.join(differing)}, and only these "
            "can be learned until one passes"
        )

    def _advice(
        self, source: Source, total: float, pass_rate: float, clipped: float, reference: str
    ) -> str:
        members = zip(self._actor.config.members().items(), self._actor.sources, strict=True)
        name = next(
            name_in_commands(name, member.env) for (name, member), each in members if each is source
        )
        level = source.level if source.env.levels else None
        if _is_highest(source, total) or (pass_rate == 1 and not source.env.open_ended):
            return advice_where_solved(name, level=level)
        if pass_rate or source.env.open_ended:
            return advice_where_same(name)
        return advice_without_success(
            name,
            model=shlex.quote(self._actor.config.model.name),
            level=level,
            clipped=clipped,
            has_reference=bool(reference),
        )

    async def _reference(self, task: Task[Any]) -> str:
        """Return the reference answer to a task, a dialogue's first turn; "" if there is none."""
        try:
            with kept_random_states():
                (answer,) = await self._actor.sources.references([task])
        except GrpoError:  # `grpo env check` says why
            return ""
        return answer if isinstance(answer, str) else next(iter(answer or ()), "")


class SignalWatch:
    """Warns, as a listener, at the end of a run in which no rewards differed within a group."""

    def __init__(self, config: RunConfig, journal: Journal) -> None:
        self._journal, self._signal = journal, Signal()
        names = [name_in_commands(name, member.env) for name, member in config.members().items()]
        environment = names[0] if len(names) == 1 else "ENV"
        self._names = {"environment": environment, "model": shlex.quote(config.model.name)}

    def on(self, event: Event) -> None:
        """Look at the metrics of a step; at the end, say what they lack."""
        match event:
            case StepEnded():
                self._signal.add(event.metrics)
            case RunEnded() if event.gains is not None and self._signal.missing:
                self._journal.warn_again(self._signal.remark(**self._names))

    def replay(self, line: Mapping[str, Any]) -> str:
        """Look at a line of the log of a run that resumes."""
        self._signal.add(line)
        return ""


def _verdict_on(source: Source, total: float, passed: int, count: int) -> str:
    """Return the end of a sentence about `count` attempts that got the same reward."""
    if not passed and _is_highest(source, total):
        return ", the highest there is, though none of them passed (`Verdict.passed`):"
    if not passed and not source.env.open_ended:
        return ", and none passed, so there is nothing to learn from yet:"
    if passed == count and not source.env.open_ended:
        return ", and all passed, so there is nothing left to learn:"
    return ", so there is nothing to learn from yet:"


def _is_highest(source: Source, total: float) -> bool:
    """Return whether a reward is the highest; other weights than the author's have another one."""
    return not source.verifier.weights and same_reward(total, source.env.reward_range[1])
