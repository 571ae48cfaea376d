"""Define the `Executor` protocol: where environments verify, what they are asked and answer.

A plugin offers one by the hook `grpo_executors`: its target is called with its settings and
returns an `Executor`. Everything that travels is JSON, and the place derives each task from its
key. The default, `LocalExecutor` of `grpo_core.verify.workers.local`, also serves as the far end
of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import TaskKey

Op = Literal[
    "task",
    "verify",
    "reference",
    "cheats",
    "audit",
    "reply",
    "open",
    "verdict",
    "agent",
    "close",
]
"""What a place is asked for: a task's prompt, or a method of the environment that takes a task.

Where `Request.session` names an episode, it is a method of that one: "open" makes it, "reply" and
"verdict" ask it, "agent" lets it run an agent, and "close" ends it."""
VERIFYING: frozenset[Op] = frozenset({"verify", "verdict", "audit"})
"""What is asked for after the policy's last word."""
Outcome = Literal["value", "raised", "deadline", "lost"]


@dataclass(frozen=True, slots=True)
class EnvironmentToVerify:
    """Describe an environment, so that a place of verification can build its own copy."""

    spec: Spec
    """From where it is imported."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Its settings, where they differ from the defaults of its Config."""
    isolated: bool = True
    """Whether its code is called in worker processes that are killed at a deadline. Otherwise it
    is trusted or asynchronous, and the place calls it in its own process."""
    concurrency: int = 1
    """Most requests that one copy of it can work on at once; 1 for synchronous code."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The section `verify` of the config: workers and their limits."""
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    """The section `sandbox`: the place opens the sandbox that the environment needs."""
    judges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The section `judges`."""
    episodes: bool = False
    """Whether its attempts are episodes. Isolated ones live in worker processes, many in each, and
    reach the services that the place opens."""
    stateful: bool = False
    """Whether a verdict depends on earlier ones, so that only one place may be opened."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions that decide verdicts, by name: of Python, grpo-core and the environment's package.
    A place with others must not be used (`grpo_core.verify.workers.local.versions_that_differ`)."""

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvironmentToVerify:
        """Return the description from which `to_json` made `data`."""
        return cls(**{**data, "spec": Spec(**data["spec"])})

    def boot_message(
        self, services: Mapping[str, Any] | None = None, *, episodes: bool = False
    ) -> dict[str, Any]:
        """Return the first message to a worker process, from which it builds its copy.

        Args:
            services: names of the services that the worker's copy may use; None: none.
            episodes: whether it serves episodes, many at a time; else one request at a time.
        """
        spec = {name: getattr(self.spec, name) for name in ("name", "target", "extra")}
        message = {"spec": spec, "overrides": dict(self.overrides)}
        if services is not None:
            message["services"] = dict(services)
        return {**message, "episodes": True} if episodes else message


@dataclass(frozen=True, slots=True)
class Request:
    """Ask an environment for one thing."""

    op: Op
    """What is asked for."""
    key: TaskKey
    """Key of the task, from which the place derives it."""
    draw: int = 0
    """The task's draw."""
    prompt: str | None = None
    """Digest of the prompt that the policy saw: a place that derives another refuses the request.
    None where the prompt itself is asked for."""
    arguments: Sequence[Any] = ()
    """Further arguments of the method, as JSON data: a rollout, or the messages so far."""
    session: str | None = None
    """Id of the episode that is asked. Requests with the same session go to the same part of the
    place while it lives; where it is lost they are answered "lost". None: any part may answer."""
    alone: bool = False
    """Whether the episode that is opened gets a worker process of its own, which no other one can
    take with it when it ends."""

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON data."""
        values = {name: getattr(self, name) for name in _REQUEST_FIELDS}
        return {**values, "key": asdict(self.key)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Return the request from which `to_json` made `data`, which may have further fields."""
        values = {name: data[name] for name in _REQUEST_FIELDS}
        return cls(**{**values, "key": TaskKey(**data["key"])})


_REQUEST_FIELDS = tuple(each.name for each in fields(Request))


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request: with a value, or with the reason why there is none."""

    outcome: Outcome
    """"value"; "raised": the environment raised or broke the protocol; "deadline": it took too
    long and was ended; "lost": a worker, a process or a machine failed. All but the first are
    retried, and in the end become an error of the verdict and never a reward."""
    value: Any = None
    """What the method returned, as JSON data."""
    text: str = ""
    """What went wrong, for the user; of a deadline, what follows the sentence about it."""
    kind: str = ""
    """What was raised, if an answer may be blamed for it (`Environment.raises_at_answers`)."""
    output: str = ""
    """The end of what the environment's code printed meanwhile."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON data."""
        further = {"kind": self.kind, "output": self.output}
        return {
            "outcome": self.outcome,
            "value": self.value,
            "text": self.text,
            **{name: text for name, text in further.items() if text},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """Return the answer from which `to_json` made `data`."""
        return cls(**data)


class Place(Protocol):
    """Verify for one environment."""

    async def open(self) -> None:
        """Prepare for requests; called once, before the first of them.

        Raises:
            UserError: it can never answer, as where a machine has another version of a package.
        """
        ...

    async def ask(self, request: Request, *, seconds: float) -> Answer:
        """Return the answer to a request; concurrent calls are usual.

        A failure is an answer too. The caller asks again, by `verify.retries`, and another part of
        the place may answer then. If the caller is cancelled, the request is given up.

        Args:
            request: what is asked for.
            seconds: timeout of the environment's code, which starts when the code does and not
                while the request waits for its turn. Then the code is ended.
        """
        ...

    async def close(self) -> None:
        """End everything that the place has started."""
        ...


class Executor(Protocol):
    """Open places in which environments verify."""

    in_process: ClassVar[bool]
    """Whether the environment's object in this process is called directly where no worker process
    is needed. Only then can environments verify that were given as objects."""

    def open(self, environment: EnvironmentToVerify) -> Place:
        """Return a place for an environment; nothing is started before `Place.open`."""
        ...

    async def examine(self) -> Sequence[str]:
        """Return a line about each part that verifies, such as a machine, for `grpo doctor`.

        It starts nothing, and returns no line if there is nothing to look at yet.

        Raises:
            UserError: the executor cannot be used; the message says why.
        """
        ...

    async def close(self) -> None:
        """Free what all places share, such as a connection; called after they were closed."""
        ...
