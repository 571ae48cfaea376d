"""Define the environment, which turns task keys into prompts, and rollouts into verdicts.

This is the only interface between a task and the rest of the SDK.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, get_args

from grpo_core.protocol.endpoint import Endpoint
from grpo_core.protocol.episode import Episode
from grpo_core.protocol.errors import ConfigError, did_you_mean
from grpo_core.protocol.judge import Judge
from grpo_core.protocol.sandbox import Sandbox
from grpo_core.protocol.tools import answers
from grpo_core.protocol.types import (
    Data,
    Group,
    Message,
    Rollout,
    Script,
    Split,
    Task,
    TaskKey,
    Verdict,
)

Need = Literal["sandbox", "judge", "endpoint"]
"""A kind of service that an environment can use."""
Rung = Literal["verify", "averify", "verify_batch", "episode"]
"""A method by which an environment can verify."""


@dataclass(frozen=True, slots=True)
class NoConfig:
    """Serve as the config of an environment that has no settings."""


@dataclass(frozen=True, slots=True)
class Services:
    """Holds what the host gives to an environment, by name: sandboxes, judges, the endpoint.

    Asking for a name that is missing raises a ConfigError that says how to configure it.
    """

    sandboxes: Mapping[str, Sandbox] = field(default_factory=dict)
    judges: Mapping[str, Judge] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """Where agents reach the policy; whoever runs an agent gives it an address and a key."""

    def sandbox(self, name: str = "default") -> Sandbox:
        """Return the sandbox that a run names in `sandbox.name`, which is called "default".

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.sandboxes:
            raise ConfigError(
                f"no sandbox {name!r} is configured (found: {sorted(self.sandboxes) or 'none'}); "
                'put "sandbox" into the environment\'s `needs`, or pass Services(sandboxes=...)'
            )
        return self.sandboxes[name]

    def judge(self, name: str = "default") -> Judge:
        """Return the judge that a run names in `judges.NAME.name`.

        An environment may ask several; `self.services.judges` has the names of all that there are.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.judges:
            raise ConfigError(
                f"no judge {name!r} is configured (found: {sorted(self.judges) or 'none'}); "
                f'put "judge" into the environment\'s `needs` and set judges.{name}.name, '
                "or pass Services(judges=...)"
            )
        return self.judges[name]

    def endpoint(self, name: str = "default") -> Endpoint:
        """Return the endpoint that a run names in `endpoint.name`, which is called "default".

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.endpoints:
            raise ConfigError(
                f"no endpoint {name!r} is configured (found: {sorted(self.endpoints) or 'none'}); "
                'put "endpoint" into the environment\'s `needs`, or pass Services(endpoints=...)'
            )
        return self.endpoints[name]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Define the values of a metric at which a run warns that something is wrong.

    The warning is given when the mean of the last 20 steps was too high for 10 steps in a row.
    """

    metric: str
    """A name in `Verdict.metrics`."""
    above: float
    """The highest mean that is still in order."""
    advice: str
    """What the sign means and what to do; `{value}`, as in `{value:.3f}`, is the mean."""

    def __post_init__(self) -> None:
        self.advice.format(value=0.0)  # so that a mistake in it is found before a run


class Environment(ABC, Generic[Data]):
    """Generates prompts and verifies the rollouts that answer them.

    Write `task` and one of `verify`, `averify`, `verify_batch` and `episode`. If a class overrides
    several, the engine calls the last of them in this order. An environment simply raises when it
    cannot judge: only the engine turns exceptions and timeouts into `Verdict.error`. A wrong,
    malformed or hostile answer is not an error: it gets a reward, the floor.

    Args:
        config: an instance of `Config`; its defaults if left out.
        services: the sandboxes and judges that the environment may use.
    """

    Config: ClassVar[type[Any]] = NoConfig
    """A frozen dataclass of settings, each with its recommended value as the default.

    Its values are validated before an instance reaches the environment.
    """
    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0}
    """Names and default weights of the reward parts; a run can set other weights in its config."""
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The smallest and the largest total reward under the default weights.

    A total outside is an error. `reference` must get the largest, unless there is no best answer
    (`open_ended`); nothing has to get the smallest.
    """
    floor: ClassVar[float] = 0.0
    """The total reward of the worst answer.

    Silence, `cheats` and answers to `canaries` must get no more. Other wrong answers must not pass,
    and may earn something by chance or for their form.
    """
    needs: ClassVar[frozenset[Need]] = frozenset()
    """The services without which the environment cannot work: "sandbox", "judge", "endpoint".

    Override `needed` where they depend on the settings.
    """
    timeout_seconds: ClassVar[float] = 10.0
    """The time limit of one verdict.

    `reply` with its tool calls and `audit` have the same, and so has each method of an episode.
    `verify_batch` has it for each group, and `task` and `reference` have
    `verify.task_timeout_seconds`, 30 s.
    """
    max_turns: ClassVar[int] = 1
    """The most turns that the policy may take in one rollout.

    A dialogue may always last so long: `reply` then never returns None, and `reference` returns as
    many turns.
    """
    max_new_tokens: ClassVar[int] = 256
    """The recommended limit of a completion, or of one turn of a dialogue, in tokens."""
    deterministic: ClassVar[bool] = True
    """The same (task, rollout) always gets the same verdict."""
    replayable: ClassVar[bool] = False
    """A fresh episode that hears the same turns of the policy says and does the same again.

    An attempt can then be judged from a log, and goes on where a worker was lost: the recorded
    turns are played to a fresh episode, and each of its messages must be the recorded one. Take
    random numbers from `task.key.rng()`. It says nothing of verdicts, of which `deterministic`
    speaks. Only environments with `episode` need it.
    """
    stateful: ClassVar[bool] = False
    """A verdict depends on earlier ones."""
    open_ended: ClassVar[bool] = False
    """There is no best answer that `reference` could give, as where the reward is a distance.

    A reference must pass then, but need not get the highest total, and checks that need a best
    answer are left out. Where several answers are right, or some are better than others, it is not
    needed as long as `reference` returns one of the best.
    """
    levels: ClassVar[bool] = True
    """Tasks become harder as the level of their key rises.

    What is harder is up to you, and may be in `Task.data` alone; two steps, easy and hard, are
    enough. Tasks of level 1 must differ from those of level 0 in prompt, data or reference. Set it
    to False where the level has no effect.
    """
    free_spelling: ClassVar[bool] = False
    """A right answer may be spelt in any way that reads the same.

    It may have letters of another case, width or without their accents, digits of another script,
    brackets around it, and signs or spaces inside its words, as where texts are normalised before
    they are compared.
    """
    answer_in_prompt: ClassVar[bool] = False
    """A prompt may contain its answer, as in extraction, selection or copying.

    It is needed where at least 75 % of the prompts hold their own answer as whole words, and
    prompts of other tasks hold it much more rarely; so not for words that every prompt names, such
    as "yes or no", nor for an answer that the prompt holds only as a word to decode, spell or
    reverse.
    """
    tolerance: ClassVar[float] = 0.0
    """How far a number may be from the right one and still pass, relative to max(1, |right|).

    0.01 lets 99 and 101 pass for 100, and 0.49 and 0.51 for 0.5. `verify` compares; `floor.near`
    and `floor.suffix` read here what may pass, and a number three times as far away must not. They
    change numbers only where the answer is a single one. For an absolute tolerance declare the
    largest relative one that it comes to.
    """
    answer_at: ClassVar[Literal["start", "end"] | None] = None
    """Where in a free text the answer counts: in its first or in its last words.

    The policy commits to an answer by its place, so the same text may hold other answers elsewhere.
    Apart from white space the answer must be the very beginning, or end, of the text. None means
    that an answer counts only if it is the whole text or stands in a form of its own, such as
    <answer>...</answer> or a last line "Answer: ..." that is read as a whole; other text may stand
    around such a form.
    """
    raises_at_answers: ClassVar[bool] = False
    """`verify` is code of a library that raises at some answers, or does not end.

    An answer then gets the floor if the verifier fails at it with ValueError, TypeError,
    ArithmeticError, RecursionError or SyntaxError, or uses more CPU time than a verdict may
    (`timeout_seconds`), fails so twice more in a fresh worker, and passes the reference there
    before and after. Everything else stays an error, as OSError and MemoryError do. Only for
    `verify` in worker processes, without services and network. The verdict says so
    (`Verdict.raised`), a run counts such floors as `verify/raised`, and stops above
    `verify.max_raised_rate`. A verifier of your own should rather not raise.
    """
    waived: ClassVar[Mapping[str, str]] = {}
    """Checks of the author's kit that do not apply, with the reason for each.

    They are not carried out; report, card and CI show the reason. Every check but declared.contract
    and task.made can be waived, also a warning, by its full name. A reason says why the check's
    question is a wrong one for these tasks.
    """
    alarms: ClassVar[Sequence[Alarm]] = ()
    """Signs in the metrics of its verdicts for which a run warns."""
    trusted: ClassVar[bool] = False
    """`task` and `verify` are fast, bounded and written by people you trust.

    They may then run in the trainer's own process. Otherwise they run in a worker process that is
    killed when the time limit is reached.
    """

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        self.config: Any = type(self).Config() if config is None else config
        vars(self)["needs"] = needed_services(type(self), self.config)
        self.services = services or Services()

    @abstractmethod
    def task(self, key: TaskKey) -> Task[Data]:
        """Return the task that `key` names.

        It must be a pure function of the key and the config; take random numbers from `key.rng()`.
        It is asked again in other processes, and where a worker has seen 64 other tasks since.
        """

    def size(self, split: Split) -> int | None:
        """Return the number of tasks in the split; None if tasks are generated without end.

        `task` is asked only for indices below it. Each pass of a run has all of them, in an order
        that the seed decides, so the task of a row may depend on `key.index` alone, with
        `levels = False`.
        """
        return None

    def verify(self, task: Task[Data], rollout: Rollout) -> Verdict:
        """Judge one rollout, synchronously.

        Leave everything else as it was, since the next verdict finds it so: the task's data, files,
        `os.environ`, the working directory, the locale and global random generators.
        """
        raise NotImplementedError

    async def averify(self, task: Task[Data], rollout: Rollout) -> Verdict:
        """Judge one rollout without blocking the event loop.

        Call sandboxes and judges through `self.services`.
        """
        raise NotImplementedError

    async def verify_batch(self, groups: Sequence[Group[Data]]) -> list[list[Verdict]]:
        """Judge whole groups; a batch that fails is retried group by group.

        Returns:
            One list of verdicts per group, in the order of its rollouts.
        """
        raise NotImplementedError

    def episode(self, task: Task[Data]) -> Episode:
        """Return a new episode: an attempt at `task` with state of its own, such as a game.

        It answers the policy's turns and judges the attempt, so neither `reply` nor `verify` is
        asked. Return at once, and prepare the state in `Episode.open`. Many episodes are open at
        once in one event loop: wait with `await`, and run code that blocks by `asyncio.to_thread`.
        """
        raise NotImplementedError

    async def reply(
        self, task: Task[Data], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        """Return the environment's next turn, or None to end the dialogue.

        Unless you override it, the tools answer the calls in the last message, and a message
        without calls ends the dialogue. It is asked after each turn of the policy but the last of
        `max_turns` and one that was cut off, so a rollout ends with a turn of the policy. Many
        dialogues go on at once, and one may be played again: the reply must be a function of its
        arguments, with random numbers from `task.key.rng("reply", len(messages))` and nothing kept
        on `self`. Any text can be a turn of the policy, silence included: answer it or end the
        dialogue, but do not raise.

        Args:
            task: the task of the rollout.
            messages: all turns after the prompt so far, the policy's (of the role "assistant") and
                the environment's, in order; the last one is the policy's.

        Returns:
            One or more new messages of the role "user" or "tool", not the whole dialogue. Many chat
            templates refuse the role "system" here.
        """
        tools = self.tools()
        return answers(tools, messages[-1], task=task) if tools else None

    def tools(self) -> Sequence[Callable[..., object]]:
        """Return the functions that the policy may call between its turns (set `max_turns`).

        The chat template gets their names, docstrings and types, which is how the policy learns of
        them, also where `reply` answers the calls itself. A parameter of the type `Task` gets the
        task, and the policy is not told of it. They run where `verify` runs, within its time limit,
        and leave everything else as it was, as `verify` does. For tools that share a state see
        `ToolEpisode`; then this returns `tools_of` its class.
        """
        return ()

    async def close(self) -> None:
        """Release what the environment opened."""

    def reference(self, task: Task[Data]) -> Script | None:
        """Return an answer that must pass, or None if there is none.

        A str is the policy's only turn, a list or tuple of str its turns in a dialogue: `reply` is
        asked between them, and the rollout ends after the last one, or when `reply` ends it, and
        the turns that are left over do not count. It may use the data of the task, and a turn may
        hold tool calls.
        """
        return None

    def cheats(self, task: Task[Data]) -> Sequence[Script]:
        """Return answers that must score at the floor, each as `reference` gives them.

        A wrong answer that earns a part for its form does not belong here: the checks try such
        answers anyway, and ask only that they do not pass.
        """
        return ()

    def mutants(self, task: Task[Data]) -> Mapping[str, Script]:
        """Return plausible wrong answers by the name of their mistake; each must not pass.

        They are what a policy may write that has understood almost everything: a rule dropped, a
        bound off by one, an order reversed. A mutant may earn a part of the reward, but neither
        pass nor earn the whole. Draw what verifies a task, such as its hidden inputs, until each is
        told apart. Training does not ask for them.
        """
        return {}

    def canaries(self) -> Sequence[Task[Data]]:
        """Return tasks for which an honest answer can get no more than the floor.

        Each has the key of an ordinary task, a prompt that `task` never makes, by which a worker
        finds it, and data that no answer meets. Training asks neither `reference` nor `cheats`
        about it; the kit tries a reference that the prompt itself tells.
        """
        return ()

    def audit(self, task: Task[Data], rollout: Rollout) -> float | None:
        """Return the score of a stricter check that training never sees; None if there is none.

        It is not async, so it cannot ask services. A second judge that is never paid for is asked
        in `averify`, and its score goes into `Verdict.metrics`.
        """
        return None

    def render(self, task: Task[Data], rollout: Rollout, folder: Path) -> Sequence[Path]:
        """Write pictures for reports into `folder` and return their paths."""
        return ()

    def fingerprint(self) -> str:
        """Return a digest of config and code, so that verdicts of different verifiers never mix.

        It covers the source files of the class and of the classes it inherits from. When you
        override it, add a digest of your data and of other files that decide a verdict.
        """
        config = (
            asdict(self.config)
            if is_dataclass(self.config) and not isinstance(self.config, type)
            else {}
        )
        classes = (cls for cls in type(self).__mro__ if cls not in Environment.__mro__)
        sources = list(dict.fromkeys(map(_source_of, classes)))
        text = json.dumps([type(self).__qualname__, sources, config], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def needed(cls, config: Any) -> frozenset[Need]:
        """Return the services that an environment with these settings needs; by default `needs`."""
        return cls.needs

    @classmethod
    def rung(cls) -> Rung:
        """Return the verify method that the engine calls: the last overridden one.

        The order is verify, averify, verify_batch, episode; a class that overrides none raises
        ConfigError.
        """
        methods: tuple[Rung, ...] = ("episode", "verify_batch", "averify", "verify")
        for name in methods:
            if getattr(cls, name) is not getattr(Environment, name):
                return name
        raise ConfigError(
            f"{cls.__qualname__} overrides none of verify, averify, verify_batch and episode; "
            "write one of them"
        )


def needed_services(cls: type[Environment[Any]], config: Any) -> frozenset[Need]:
    """Return what `needed` says, checked.

    Raises:
        ConfigError: it is no set, or names what is no service.
    """
    needs: object = cls.needed(config)
    if not isinstance(needs, Set):
        names = needs if isinstance(needs, list | tuple) and needs else [needs]
        quoted = ", ".join(f'"{name}"' for name in names)
        raise ConfigError(
            f"{cls.__qualname__} declares needs = {needs!r}, a {type(needs).__name__} and no set; "
            f"write needs = frozenset({{{quoted}}})"
        )
    for name in needs:
        if name not in get_args(Need):
            raise ConfigError(
                f"{cls.__qualname__} needs {name!r}, which is no service"
                f"{did_you_mean(str(name), get_args(Need))} There are {', '.join(get_args(Need))}"
            )
    return frozenset(needs)


def _source_of(cls: type) -> str:
    """Return text that identifies the code of a class: the source of its module, if there is one.

    For a class written in a notebook it is the source of the class alone, and for one written at
    an interactive prompt, whose source is not kept, the bytecode of its methods.
    """
    for holder in (inspect.getmodule(cls) or cls, cls):
        with contextlib.suppress(OSError, TypeError):
            return inspect.getsource(holder)
    method_codes = {
        name: value.__code__ for name, value in vars(cls).items() if inspect.isfunction(value)
    }
    return repr(
        {
            name: (
                code.co_code,
                [constant for constant in code.co_consts if not inspect.iscode(constant)],
                code.co_names,
            )
            for name, code in method_codes.items()
        }
    )
