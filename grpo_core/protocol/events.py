"""Declare the events of a run and what a listener may answer to them.

A run emits each event to its listeners, one after the other, and waits for each answer. Events are
frozen: a listener sees what happens, and changes neither rewards nor advantages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from grpo_core.protocol.types import Group, Rollout, Script, Task, TaskKey, Verdict

CANARY_LIMIT = 2_000
"""The most characters of a canary that alarms.jsonl keeps."""


class RunServices(Protocol):
    """Answer what a listener asks about a run while it hears an event.

    Nothing of it is trained on or counted, and the global random generators stay as they are. Every
    method raises `GrpoError` if an environment fails. What ends the run itself, as a process that
    is lost, also ends it where a listener asks.
    """

    async def tasks(self, environment: str, count: int) -> Sequence[Task[Any]]:
        """Return at most `count` held-out tasks of an environment, the same ones at every call."""
        ...

    async def references(self, tasks: Sequence[Task[Any]]) -> Sequence[Script | None]:
        """Return the reference answer of each task; None for a task without one."""
        ...

    async def cheats(self, tasks: Sequence[Task[Any]]) -> Sequence[Sequence[Script]]:
        """Return the answers to each task that must get the floor, as its author declares them."""
        ...

    async def verify(
        self, attempts: Sequence[tuple[Task[Any], str | Rollout]]
    ) -> Sequence[Verdict]:
        """Return the verdict on each answer to a task, as the run itself judges it."""
        ...

    async def audit(self, groups: Sequence[Group[Any]]) -> Sequence[Group[Any]]:
        """Return the groups with the metric `audit` in each verdict.

        Groups of an environment without an audit stay as they are, and so does an attempt that was
        not scored or whose audit fails.
        """
        ...

    async def logprobs(self, attempts: Sequence[tuple[Task[Any], str]]) -> Sequence[float | None]:
        """Return the mean log-probability per token of each answer under the present policy.

        None stands for an answer that is empty or does not fit into the model's context, and for
        every answer where the policy does not continue a text.
        """
        ...


@dataclass(frozen=True, slots=True)
class TrainedEnvironment:
    """Describe an environment that the policy is trained on, and what may be asked about it."""

    name: str
    """Its name in task keys."""
    floor: float
    """The reward of the worst answer."""
    open_ended: bool
    """There is no wrong answer, as `Environment.open_ended` says."""
    answer_in_prompt: bool
    """A right answer may stand in the prompt."""
    answer_at: Literal["start", "end"] | None
    """Where in a text the answer is read; None: anywhere."""
    has_audit: bool
    """It has a stricter check, which training never sees."""
    is_one_text: bool
    """An attempt is one text that answers a prompt: no dialogue, no episode, no agent."""
    is_one_by_one: bool
    """The verdict on an attempt depends on no other attempt."""
    can_be_ended: bool
    """A verdict that takes too long can be ended, as the verifier runs in another process."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run folder exists, and the first step is about to begin."""

    run_dir: Path
    """The run folder."""
    config: Mapping[str, Any]
    """The content of config.json."""
    services: RunServices
    """Judges answers and measures log-probabilities until the run ends."""
    environments: Sequence[TrainedEnvironment] = ()
    """The environments that the policy is trained on."""


@dataclass(frozen=True, slots=True)
class BatchCollected:
    """The rollouts of a step have their verdicts and advantages; nothing was learned from them."""

    step: int
    """The number of the step, from 1."""
    groups: Sequence[Group[Any]] = ()
    """All groups that were sampled, also those that are not trained on; () for `grpo sft`."""
    chosen: Sequence[int] = ()
    """The numbers, in `groups`, of those that are trained on."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What is known of the metrics of the step."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The weights are updated."""

    step: int
    """The number of the step, from 1."""
    total: int
    """The number of planned steps."""
    metrics: Mapping[str, float]
    """The metrics of the step, as metrics.jsonl has them."""


@dataclass(frozen=True, slots=True)
class EvaluationEnded:
    """Held-out tasks were evaluated: before training (step 0), or after a step."""

    step: int
    """The last finished step; 0 before training."""
    metrics: Mapping[str, float]
    """The metrics of the evaluation, as metrics.jsonl has them."""
    groups: Sequence[Group[Any]]
    """One group of one rollout for each held-out task."""
    scores: Mapping[TaskKey, Mapping[str, float]]
    """What two evaluations are compared by (reward, pass_rate and any audit), by task."""
    before: Mapping[TaskKey, Mapping[str, float]]
    """The same of the evaluation before training."""


@dataclass(frozen=True, slots=True)
class RolloutPlace:
    """Name a group of a run's log, or one attempt in it."""

    step: int
    """The step whose rollouts have the group."""
    key: TaskKey
    """The key of its task."""
    draw: int
    """The draw of its task."""
    attempt: int | None = None
    """The number of the attempt in the group; None: the whole group."""


@dataclass(frozen=True, slots=True)
class AlarmRaised:
    """A sign of reward hacking or of collapse begins: a line of alarms.jsonl."""

    step: int
    """The step that showed it."""
    name: str
    """The kind of alarm."""
    environment: str
    """The name of the environment, as in task keys."""
    message: str
    """What was seen, what it may mean, and what to look at."""
    subject: str = ""
    """Which canary or which measure; "" if the kind has only one."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The numbers that were seen, by name."""
    shown: RolloutPlace | None = None
    """The attempt that shows it best."""
    canary: str | None = None
    """The answer that should not be paid."""

    @property
    def title(self) -> str:
        """Return the kind of alarm with its subject."""
        return f"{self.name} ({self.subject})" if self.subject else self.name

    def to_json(self) -> dict[str, Any]:
        """Return the alarm as JSON data, as a line of alarms.jsonl has it."""
        shown = self.shown
        return {
            "step": self.step,
            "name": self.name,
            "environment": self.environment,
            "subject": self.subject,
            "message": self.message,
            "values": dict(self.values),
            "group": None
            if shown is None
            else {"step": shown.step, "key": asdict(shown.key), "draw": shown.draw},
            "attempt": None if shown is None else shown.attempt,
            "canary": None if self.canary is None else self.canary[:CANARY_LIMIT],
        }


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run has ended; it is emitted for every run that has started."""

    step: int
    """The last finished step."""
    reason: str
    """What ended the run, such as "finished" or the message of an error."""
    gains: Mapping[str, Any] | None = None
    """The gains on held-out tasks by name; None unless the run has finished."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user; it reaches log.txt and the display at once, and no plugin."""

    text: str
    """The sentence."""
    step: int
    """The last finished step."""
    level: Literal["info", "warning"] = "info"
    shown: bool = True
    """Whether the display shows it; False: it was shown already."""
    kept: bool = True
    """Whether log.txt keeps it."""


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """Some held-out tasks of an evaluation are done; it reaches the display and no plugin."""

    done: int
    """How many tasks are done."""
    total: int
    """How many there are."""


Event: TypeAlias = (
    RunStarted
    | BatchCollected
    | StepEnded
    | EvaluationEnded
    | AlarmRaised
    | RunEnded
    | Notice
    | EvaluationProgress
)


@dataclass(frozen=True, slots=True)
class Response:
    """Hold what a listener answers to an event; None answers nothing."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step, only in answer to `BatchCollected`; metrics.jsonl and the trackers have
    them as NAME/..., by the name under which the plugin offers the listener."""
    alarms: Sequence[AlarmRaised] = ()
    """Alarms that begin: they go to alarms.jsonl, the display and all listeners."""
    stop: str = ""
    """Why to stop after the present step, with a checkpoint to resume from, as after Ctrl-C."""
    finish: str = ""
    """Why to finish after the present step, as stop rules do: with a last evaluation and final/."""
    warnings: Sequence[str] = ()
    """Sentences for the user, which log.txt keeps; each is given once in a run."""
    by_environment: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Metrics of single environments, by their names: as `metrics`, but in a mixture as
    ENVIRONMENT/NAME/..."""


class Listener(Protocol):
    """Hear the events of a run.

    A listener may also have `state()`, which returns JSON data that every checkpoint stores, and
    `restore(state)`, which gets it back before `RunStarted` in a run that resumes.

    Of several processes of a run, the first one alone has listeners of plugins, and services work
    in that process alone. A class with `in_every_process = True` has a listener in each of them.
    All hear the same batches and evaluations and must ask the same in the same order, since the
    processes share the work; so the run ends if one of them fails. Answers count in the first.
    """

    def on(self, event: Any) -> Response | Awaitable[Response | None] | None:
        """Hear an event; the run waits for the answer. The method may be `async def`."""
        ...
