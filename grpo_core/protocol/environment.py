"""The one contract between a task and everything else: prompts out, verdicts back."""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.judge import Judge
from grpo_core.protocol.sandbox import Sandbox
from grpo_core.protocol.tools import answers
from grpo_core.protocol.types import Data, Group, Message, Rollout, Split, Task, TaskKey, Verdict

Need = Literal["sandbox", "judge"]
Rung = Literal["verify", "averify", "verify_batch"]


@dataclass(frozen=True, slots=True)
class NoConfig:
    """The config of an environment that has nothing to configure."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the host lends to an environment, by name. Asking for what is not there says which plugin to install."""

    sandboxes: Mapping[str, Sandbox] = field(default_factory=dict)
    judges: Mapping[str, Judge] = field(default_factory=dict)

    def sandbox(self, name: str = "default") -> Sandbox:
        if name not in self.sandboxes:
            raise ConfigError(
                f"no sandbox {name!r} is configured (found: {sorted(self.sandboxes) or 'none'})"
            )
        return self.sandboxes[name]

    def judge(self, name: str = "default") -> Judge:
        if name not in self.judges:
            raise ConfigError(
                f"no judge {name!r} is configured (found: {sorted(self.judges) or 'none'})"
            )
        return self.judges[name]


class Environment(ABC, Generic[Data]):
    """A prompt generator with a verifier. Write `task` and one rung of the ladder `verify` < `averify` < `verify_batch`.

    The engine calls the highest rung that was overridden. Environments raise plainly: the engine alone turns exceptions and
    deadlines into `Verdict.error`. A wrong, malformed or hostile answer is not an error: it gets a reward, the floor.

    Config: a frozen dataclass of settings, every default a recommended value; validated before it gets here.
    parts: names and default weights of the reward parts; a run re-weights them by config.
    reward_range: smallest and largest total under the default weights. floor: what the worst answer gets.
    needs: services that must be there. timeout_seconds: deadline of one verdict. max_turns: how often the policy may speak.
    deterministic: the same (task, rollout) always gets the same verdict. stateful: a verdict depends on earlier ones.
    open_ended: there is no best answer, as with a distance: a reference has to pass, and need not get the highest total.
    levels: tasks grow harder with the level of their key. answer_in_prompt: a prompt may hold its answer, as in multiple choice.
    trusted: `task` and `verify` are fast, bounded and shipped by people you trust, so they may run in the trainer's own process;
    otherwise they run in a worker process that is killed at the deadline.
    """

    Config: ClassVar[type[Any]] = NoConfig
    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0}
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    floor: ClassVar[float] = 0.0
    needs: ClassVar[frozenset[Need]] = frozenset()
    timeout_seconds: ClassVar[float] = 10.0
    max_turns: ClassVar[int] = 1
    max_new_tokens: ClassVar[int] = 256
    deterministic: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False
    levels: ClassVar[bool] = True
    answer_in_prompt: ClassVar[bool] = False
    trusted: ClassVar[bool] = False

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        self.config: Any = type(self).Config() if config is None else config
        self.services = services or Services()

    @abstractmethod
    def task(self, key: TaskKey) -> Task[Data]:
        """The task that `key` names: a pure function of the key and the config; take randomness from `key.rng()`."""

    def size(self, split: Split) -> int | None:
        """How many tasks the split has; None: generated without end."""
        return None

    def verify(self, task: Task[Data], rollout: Rollout) -> Verdict:
        """Judge one attempt, synchronously."""
        raise NotImplementedError

    async def averify(self, task: Task[Data], rollout: Rollout) -> Verdict:
        """Judge one attempt without blocking the event loop: sandboxes and judges are asked through `self.services`."""
        raise NotImplementedError

    async def verify_batch(self, groups: Sequence[Group[Data]]) -> list[list[Verdict]]:
        """Judge whole groups: one list of verdicts per group, in the order of its rollouts. A failed batch is retried group by group."""
        raise NotImplementedError

    async def reply(
        self, task: Task[Data], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        """The environment's next turn after `messages` (those that followed the prompt); None ends the dialogue.

        Without a reply of your own, the tools answer the calls in the last message, and one without calls ends the dialogue.
        """
        return answers(self.tools(), messages[-1].content) if self.tools() else None

    def tools(self) -> Sequence[Callable[..., object]]:
        """Functions that the policy may call between its turns (set `max_turns`); the chat template gets their names, docstrings and
        types. They run where `verify` runs, with its deadline."""
        return ()

    async def close(self) -> None:
        """Give back what was opened."""

    def reference(self, task: Task[Data]) -> str | None:
        """An answer that must pass."""
        return None

    def cheats(self, task: Task[Data]) -> Sequence[str]:
        """Answers that must score at the floor."""
        return ()

    def canaries(self) -> Sequence[Task[Data]]:
        """Tasks whose honest reward is the floor."""
        return ()

    def audit(self, task: Task[Data], rollout: Rollout) -> float | None:
        """A stricter check that training never sees."""
        return None

    def render(self, task: Task[Data], rollout: Rollout, folder: Path) -> Sequence[Path]:
        """Pictures for reports."""
        return ()

    def fingerprint(self) -> str:
        """Identifies config and code, so that verdicts of different verifiers are never mixed: the files of the class and of those that it
        inherits from. Add the digest of your data, and of other files that decide a verdict."""
        config = (
            asdict(self.config)
            if is_dataclass(self.config) and not isinstance(self.config, type)
            else {}
        )
        classes = [cls for cls in type(self).__mro__ if cls not in Environment.__mro__]
        sources = list(dict.fromkeys(map(_source, classes)))
        text = json.dumps([type(self).__qualname__, sources, config], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def rung(cls) -> Rung:
        """The highest rung of the verify ladder that the author overrode."""
        ladder: tuple[Rung, ...] = ("verify_batch", "averify", "verify")
        for name in ladder:
            if getattr(cls, name) is not getattr(Environment, name):
                return name
        raise ConfigError(
            f"{cls.__qualname__} overrides none of verify, averify, verify_batch; write one of them"
        )


def _source(found: type) -> str:
    """The file of a class; of one that was written in a notebook the class alone, of one that was written at a prompt what can be known:
    its compiled methods."""
    try:
        return inspect.getsource(inspect.getmodule(found) or found)
    except (OSError, TypeError):
        pass
    try:
        return inspect.getsource(found)
    except (OSError, TypeError):
        code = {
            name: value.__code__ for name, value in vars(found).items() if inspect.isfunction(value)
        }
        return repr(
            {
                name: (c.co_code, [k for k in c.co_consts if not inspect.iscode(k)], c.co_names)
                for name, c in code.items()
            }
        )
