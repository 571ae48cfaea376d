"""An environment under examination, with its tasks, its references and the form of its answers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from grpo_core import Environment, Rollout, Task, TaskKey, Verdict
from grpo_core.api.figures import Floor, is_paid
from grpo_core.api.protocol import Split
from grpo_core.api.settings import VerifyConfig
from grpo_core.api.verify import IsolatedReplies, Verifier, size_of, verdict_needs
from grpo_core.words import shorten
from grpo_kit.answers.known import KnownAnswers
from grpo_kit.dialogues.agent_plays import AgentPlays
from grpo_kit.dialogues.scripts import (
    RememberedReplies,
    attempt_rollout,
    attempt_verdicts,
)
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.tasks.sample import Sample, make_rows

TOLERANCE = 1e-6
QUICK_SECONDS = 0.05
"""A reference that takes longer comes from a search, so it is not computed repeatedly."""
_SLOW_REPLY_SECONDS = 0.05
"""Dialogues with slower replies, and attempts by slower agents, are played on few tasks."""
_AGENT_TASKS = 8
"""Tasks over which shares are taken where each attempt is a run of an agent."""
MIN_TASKS_FOR_SHARE = 4
"""The least number of tasks from which a share is meaningful."""
_LONGEST_ERROR = 200
"""Characters of an error in a message."""
_CHUNK_SIZE = 8
"""Attempts that are verified at once, so that a check ends soon after the first failure."""

_OF_AGENT = re.compile(r"\A.*the agent of environment .* failed for TaskKey\([^)]*\): ", re.DOTALL)
"""What stands before the reason why an agent failed."""

Attempt = tuple[Task[Any], str]
"""A task and a reply to it; the turns of a dialogue are joined by `join_turns`."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Count the verdicts made so far, and the seconds that they took."""

    verdicts: int = 0
    seconds: float = 0.0


@dataclass
class Subject:
    """An environment under examination, and what all checks share."""

    name: str
    """The environment's name in task keys."""
    env: Environment[Any]
    inline_verifier: Verifier
    """The engine in this process, where tasks keep their data."""
    verifier: Verifier
    """The engine as a run uses it."""
    replies: IsolatedReplies
    """Answers for the environment between the turns of a dialogue."""
    seed: int
    """The seed of the tasks."""
    tasks: Sequence[Task[Any]] = ()
    """Training tasks, of the easiest and the hardest level in turn."""
    eval_tasks: Sequence[Task[Any]] = ()
    """Held-out tasks, of the easiest and the hardest level in turn."""
    references: Sequence[str | None] = ()
    """The environment's own answer to each of `tasks`; None where it gives none.

    Several turns are joined by `join_turns`, as in all attempts.
    """
    reference_verdicts: Sequence[Verdict] = ()
    """The verdict on each of `answered`; empty if services are unavailable."""
    unavailable: str = ""
    """Why the services that the environment needs cannot be used; "" if they can."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings with which another process builds the environment from its spec."""
    reference_seconds: float = 0.0
    """Mean seconds for one reference."""
    reference_error: str = ""
    """Why there are no references, where that is a fault."""
    wide: Sample = field(default_factory=Sample)
    """Many more training tasks, where they are cheap."""
    _rows: dict[Split, Sequence[Task[Any]]] = field(default_factory=dict)
    many_answered: Sequence[Attempt] | None = None
    """`answered` and further tasks, once a check has made them."""
    effort: Effort = Effort()
    """The verdicts of all checks so far."""

    async def make_task(self, key: TaskKey) -> Task[Any]:
        """Return the task of `key`; raise GrpoError if it cannot be made."""
        return (await self.inline_verifier.tasks([key]))[0]

    async def rows(self, split: Split) -> Sequence[Task[Any]]:
        """Return the first tasks of a finite list; none of an endless stream."""
        if split not in self._rows:
            self._rows[split] = await make_rows(self.env, self.name, self.seed, split)
        return self._rows[split]

    async def verdicts(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """Return the verdict on each attempt.

        Raises:
            NotCheckedError: There are no attempts, or services that a verdict needs are missing.
        """
        if self.unavailable:
            raise NotCheckedError(self.unavailable)
        if not attempts:
            raise NotCheckedError("there are no tasks to try it on")
        started = time.monotonic()
        verdicts = await self.judged(self.verifier, attempts)
        self.effort = Effort(
            self.effort.verdicts + len(attempts),
            self.effort.seconds + time.monotonic() - started,
        )
        return verdicts

    async def judged(self, verifier: Verifier, attempts: Sequence[Attempt]) -> list[Verdict]:
        """Return the verdict of a verifier on each attempt."""
        return await attempt_verdicts(verifier, attempts, self.rollout)

    async def rollout(self, task: Task[Any], text: str) -> Rollout:
        """Return the rollout of an attempt; one of several turns, and of an agent, is played."""
        if self.has_agents:
            return await self.agents.rollout(task, text)
        return await attempt_rollout(self.env, self.remembered, task, text)

    @cached_property
    def agents(self) -> AgentPlays:
        """Return what plays attempts to the agent of the environment, each text once."""
        return AgentPlays(self.verifier)

    @cached_property
    def remembered(self) -> RememberedReplies:
        """Return `replies` that are asked for once, whichever checks need them."""
        return RememberedReplies(self.replies, self.verifier)

    @cached_property
    def replies_here(self) -> IsolatedReplies:
        """Return what replies in this process, where tasks keep their data."""
        settings = VerifyConfig(isolation="inline", timeout_seconds=min(self.replies.seconds, 2.0))
        return IsolatedReplies(self.env, settings=settings)

    async def must_be_scored(self, kind: str, attempts: Sequence[Attempt]) -> None:
        """Raise BrokenPromiseError if an attempt has no verdict.

        So few are judged at once that one that hangs ends the check. The arguments are those of
        `scored_verdicts`.
        """
        for start in range(0, len(attempts), _CHUNK_SIZE):
            await self.scored_verdicts(kind, attempts[start : start + _CHUNK_SIZE])

    async def scored_verdicts(self, kind: str, attempts: Sequence[Attempt]) -> list[Verdict]:
        """Return the verdict on each attempt; raise BrokenPromiseError if one has no verdict.

        Args:
            kind: What the attempts are, for the message.
            attempts: The attempts.
        """
        verdicts = await self.verdicts(attempts)
        for (task, text), verdict in zip(attempts, verdicts, strict=True):
            if not verdict.scored:
                raise BrokenPromiseError(
                    f"{kind}, {shorten(text)}, {describe_verdict(verdict)} at {task_label(task)}; "
                    "any text must get a verdict"
                )
        return verdicts

    @property
    def has_agents(self) -> bool:
        """Return whether an agent makes the attempts."""
        return self.verifier.has_agents

    @property
    def has_episodes(self) -> bool:
        """Return whether attempts are episodes."""
        return self.verifier.has_episodes

    @cached_property
    def services(self) -> frozenset[str]:
        """Return the services that verdicts need."""
        return verdict_needs(self.env)

    def require_same_verdicts(self) -> None:
        """Raise NotCheckedError unless the same turns must get the same verdict again."""
        if not self.env.deterministic:
            raise NotCheckedError("the environment declares deterministic = False")
        self.require_replays()

    def require_replays(self) -> None:
        """Raise NotCheckedError if attempts are episodes that cannot be played again."""
        if self.has_episodes and not self.env.replayable:
            raise NotCheckedError(
                "the environment does not declare replayable = True, so the same turns may lead "
                "elsewhere in another episode"
            )

    @property
    def answered(self) -> list[Attempt]:
        """Return each task that has a reference, with its reference."""
        return [
            (task, text)
            for task, text in zip(self.tasks, self.references, strict=False)
            if text is not None
        ]

    @property
    def other_references(self) -> list[Attempt]:
        """Return each task of the sample with a reference of another task that is not its own.

        The other task is of the same level where there is one: those of other levels are too easy
        to tell apart.
        """
        answered = self.answered
        sampled = {id(task) for task in self.sample}
        attempts = []
        for index, (task, own) in enumerate(answered):
            others = [
                (other.key.level != task.key.level, text)
                for other, text in [*answered[index + 1 :], *answered[:index]]
                if text != own
            ]
            if others and id(task) in sampled:
                attempts.append((task, min(others, key=itemgetter(0))[1]))
        return attempts

    @cached_property
    def small_count(self) -> int:
        """Return the number of tasks for checks that need many verdicts on each.

        It is smaller where each verdict needs a sandbox or a judge, or the run of a slow agent.
        """
        return 2 if self.services or self._has_slow_agents else 5

    @property
    def sample(self) -> Sequence[Task[Any]]:
        """Return the tasks over which shares are taken: few, if verdicts or replies are slow."""
        slow = self.services or self.replies.mean_seconds > _SLOW_REPLY_SECONDS
        if slow or self._has_slow_agents:
            return self.tasks[:MIN_TASKS_FOR_SHARE]
        return self.tasks[:_AGENT_TASKS] if self.has_agents else self.tasks

    @cached_property
    def _has_slow_agents(self) -> bool:
        return self.has_agents and self.agents.mean_seconds > _SLOW_REPLY_SECONDS

    @cached_property
    def answers(self) -> KnownAnswers:
        """Return what is known of the right answers and their form."""
        return KnownAnswers(self.env, self.answered, self.reference_verdicts)

    @cached_property
    def best(self) -> float:
        """Return what right answers earn in the mean; the floor if none passed."""
        right = Floor.of("right answers", [v for v in self.reference_verdicts if v.passed])
        return self.env.floor if right.reward is None else right.reward

    def is_paid(self, verdict: Verdict, *, beside_right: bool = False) -> bool:
        """Return whether a wrong answer is paid, as the alarms of a run mean it."""
        return is_paid(verdict, best=self.best, floor=self.env.floor, beside_right=beside_right)

    async def must_fail(
        self,
        kind: str,
        attempts: Sequence[Attempt],
        *,
        floor: bool = False,
        beside_right: bool = False,
        advice: str = "",
        chunk_size: int = _CHUNK_SIZE,
    ) -> int:
        """Check that each attempt gets a verdict and does not pass; return the number of attempts.

        Args:
            kind: What the attempts are, for the message.
            attempts: The attempts.
            floor: Also require that the reward is at most the floor.
            beside_right: The attempts hold the right answer beside wrong ones; also require that
                they earn less than it.
            advice: What the message says at its end.
            chunk_size: Attempts that are judged at once, so few that a hanging one ends the check.

        Raises:
            BrokenPromiseError: An attempt breaks this.
        """
        for start in range(0, len(attempts), chunk_size):
            chunk = attempts[start : start + chunk_size]
            for (task, text), verdict in zip(chunk, await self.verdicts(chunk), strict=True):
                if (
                    not verdict.scored
                    or verdict.passed
                    or (floor and verdict.total > self.env.floor + TOLERANCE)
                    or (beside_right and self.is_paid(verdict, beside_right=True))
                ):
                    expectation = (
                        f"get the floor {self.env.floor:g}"
                        if floor
                        else "get a verdict, not pass, and earn less than the right answer alone"
                        if beside_right
                        else "get a verdict, and not pass"
                    )
                    raise BrokenPromiseError(
                        f"{kind}, {shorten(text)}, {describe_verdict(verdict)} at "
                        f"{task_label(task)}; it must {expectation}{advice}"
                    )
        return len(attempts)


def task_keys(
    env: Environment[Any], name: str, split: Split, count: int, seed: int
) -> list[TaskKey]:
    """Return at most `count` task keys of a split, of the easiest and hardest level in turn."""
    size = size_of(env, split)
    count = count if size is None else min(count, size)
    return [TaskKey(name, split, index, seed, float(index % 2)) for index in range(count)]


def canary_attempts(subject: Subject, texts: Sequence[str]) -> list[Attempt]:
    """Return each text as a reply to each canary task."""
    return [
        (replace(task, key=replace(task.key, env=subject.name)), text)
        for task in subject.env.canaries()
        for text in texts
    ]


def describe_verdict(verdict: Verdict) -> str:
    """Return what a verdict says, as the rest of a sentence about an answer."""
    if verdict.error is not None:
        error = verdict.error.partition("; its last output")[0]
        error = _OF_AGENT.sub("the agent failed: ", error)
        if len(error) > _LONGEST_ERROR:  # its end says where it was raised
            error = f"{error[: _LONGEST_ERROR // 2]} ... {error[-_LONGEST_ERROR // 2 :]}"
        return f"could not be judged ({error})"
    return f"got {verdict.total:g} and {'passed' if verdict.passed else 'did not pass'}"


def task_label(task: Task[Any]) -> str:
    """Return the name of a task in messages."""
    return f"{task.key.split} task {task.key.index} of level {task.key.level:g}"
