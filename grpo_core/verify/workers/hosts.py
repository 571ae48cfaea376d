"""Run an environment's code where the config says: in this process, or in a place of an executor.

With the default executor, a place is a pool of worker processes on this machine, and trusted or
asynchronous code runs in this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_jsonable_python

from grpo_core.calls.call import current_call
from grpo_core.calls.deadline import DeadlineError
from grpo_core.calls.namespace import find_bubblewrap
from grpo_core.calls.wire import decode, encode, prompt_digest
from grpo_core.config.settings import JudgeConfig, SandboxConfig, VerifyConfig
from grpo_core.protocol.environment import Environment, Need
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.executor import EnvironmentToVerify, Executor, Op, Place, Request
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.judge.checks import check_task
from grpo_core.verify.judge.raised import VerifierRaisedError
from grpo_core.verify.workers.inline import InlineHost
from grpo_core.verify.workers.local import LocalExecutor, episode_place, versions_here, worker_place
from grpo_core.verify.workers.pool import WorkerLostError


class PlaceHost:
    """Run the environment in a place of verification, which has its own copy of it.

    Tasks have no `data` in this process: the place derives it from the key.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    async def open(self) -> None:
        """Prepare the place.

        Raises:
            UserError: it can never answer.
        """
        await self._place.open()

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]:
        """Return the task of `key`; `seconds` is the timeout."""
        prompt = await self._ask(Request("task", key), seconds)
        return check_task(Task(key, prompt, None), key)

    async def call(
        self,
        op: Op,
        task: Task[Any],
        *arguments: Any,
        seconds: float,
        episode: str | None = None,
        alone: bool = False,
    ) -> Any:
        """Return the unchecked result of the environment's method; see `InlineHost.call`."""
        request = Request(
            op,
            task.key,
            task.draw,
            prompt_digest(task),
            [encode(value) for value in arguments],
            session=episode,
            alone=alone,
        )
        return await self._ask(request, seconds)

    async def close(self) -> None:
        """End what the place has started."""
        await self._place.close()

    async def _ask(self, request: Request, seconds: float) -> Any:
        answer = await self._place.ask(request, seconds=seconds)
        current_call().note(answer.output)
        if answer.outcome == "deadline":
            raise DeadlineError(answer.text)
        if answer.outcome == "lost":
            raise WorkerLostError(answer.text)
        if answer.outcome == "raised":
            raise VerifierRaisedError(answer.text, answer.kind)
        return decode(answer.value)


_MOST_EPISODES = 10_000
"""More episodes than are ever asked at once in one place."""
Host = InlineHost | PlaceHost
"""Call the methods of an environment.

Each call has a timeout, which starts when the call does and not while it waits for its turn. A call
raises DeadlineError or any exception that the environment raises.
"""


@dataclass(frozen=True, slots=True)
class Placement:
    """Say where environments verify, and with which services."""

    executor: Executor = field(default_factory=LocalExecutor)
    """What opens the places."""
    name: str = "local"
    """Its name in the config, for messages."""
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    """The sandbox that a place opens if the environment needs one."""
    judges: Mapping[str, JudgeConfig] = field(default_factory=dict)
    """The judges that a place opens if the environment needs one."""


def create_host(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifyConfig,
    placement: Placement | None = None,
) -> Host:
    """Return what runs the environment's code: this process or a place of an executor.

    Args:
        env: the environment.
        spec: Spec by which a place builds its own copy; None: derived from the class of `env`.
        overrides: settings of that copy; None: those of `env`.
        settings: isolation and workers.
        placement: where it verifies; None: on this machine.

    Raises:
        ConfigError: the isolation or the executor does not fit the environment.
    """
    placement = placement or Placement()
    isolatable = env.rung() in ("verify", "episode")
    if settings.isolation == "process" and not isolatable:
        raise ConfigError(
            "verify.isolation=process is for a synchronous verify() and for episodes; "
            f"{type(env).__qualname__} has {env.rung()}(): use verify.isolation=auto"
        )
    isolated = settings.isolation == "process" or (
        settings.isolation == "auto" and isolatable and not env.trusted
    )
    if placement.executor.in_process:
        if not isolated:
            return InlineHost(env, max_concurrency=settings.max_concurrency)
    elif fault := _fault_of_travelling(env, spec, settings):
        raise ConfigError(
            f"verify.executor.name={placement.name} cannot be used: {fault}; "
            "set verify.executor.name=local"
        )
    if isolated and env.rung() != "episode":
        _refuse_services(env)
    if isolated and placement.executor.in_process:
        _require_namespace(settings)
    described = describe_environment(env, spec, overrides, settings, isolated=isolated)
    if placement.executor.in_process and described.episodes:
        return PlaceHost(episode_place(described, env.services))
    if not placement.executor.in_process:
        described = replace(
            described,
            sandbox=placement.sandbox.model_dump(mode="json"),
            judges={name: each.model_dump(mode="json") for name, each in placement.judges.items()},
            versions=versions_here(described.spec),
        )
    return PlaceHost(placement.executor.open(described))


def create_agent_host(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifyConfig,
) -> Host:
    """Return what runs the agents of an environment; the arguments are as for `create_host`.

    It is a place on this machine, where the endpoint listens. Worker processes have many agents
    each, and call the services that the environment needs through this process.

    Raises:
        ConfigError: a worker process cannot import the environment.
    """
    if settings.isolation == "inline" or (settings.isolation == "auto" and env.trusted):
        return InlineHost(
            env,
            max_concurrency=settings.max_concurrency,
            further_variables=settings.worker_environment,
        )
    _require_namespace(settings)
    described = describe_environment(env, spec, overrides, settings, isolated=True)
    return PlaceHost(episode_place(replace(described, episodes=True), env.services))


def _fault_of_travelling(
    env: Environment[Any], spec: Spec | None, settings: VerifyConfig
) -> str | None:
    """Return why an environment can verify only in this process; None if it can elsewhere."""
    name = type(env).__qualname__
    if spec is None:
        return (
            f"the environment {name} was given as an object, and only one that is named can be "
            "built elsewhere"
        )
    if env.rung() == "verify_batch":
        return f"{name} judges whole groups with verify_batch(), which runs only in this process"
    if settings.isolation == "inline":
        return "verify.isolation=inline keeps verifiers in this process"
    return None


def create_worker_host(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifyConfig,
    *,
    size: int | None = None,
) -> PlaceHost:
    """Return a pool of workers on this machine that runs the environment's code.

    Args:
        env: the environment.
        spec: Spec by which a worker builds its own copy; None: derived from the class of `env`.
        overrides: settings of that copy; None: those of `env`.
        settings: workers and their limits.
        size: the most workers; None: as `settings` say.

    Raises:
        ConfigError: another process cannot build the environment.
    """
    if size is not None:
        settings = settings.model_copy(update={"workers": size})
    _require_namespace(settings)
    described = describe_environment(env, spec, overrides, settings, isolated=True)
    if described.episodes:
        return PlaceHost(episode_place(described, env.services))
    _refuse_services(env)
    return PlaceHost(worker_place(described, size=size))


def verdict_needs(env: Environment[Any]) -> frozenset[Need]:
    """Return the services that verdicts need: all but the endpoint, which is for the agent."""
    return env.needs - {"endpoint"}


def _refuse_services(env: Environment[Any]) -> None:
    """Raise ConfigError if verdicts need services."""
    if needs := verdict_needs(env):
        raise ConfigError(
            f"{type(env).__qualname__} needs {', '.join(sorted(needs))}, "
            "which a worker process cannot reach; "
            "write averify() instead of verify(), or set verify.isolation=inline"
        )


def _require_namespace(settings: VerifyConfig) -> None:
    """Raise ConfigError if workers must have a process namespace and there can be none."""
    if settings.namespace == "required" and (reason := find_bubblewrap()[1]):
        raise ConfigError(
            f"verify.namespace=required cannot be met: {reason}; "
            "set verify.namespace=auto to run verifiers without one"
        )


def describe_environment(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifyConfig,
    *,
    isolated: bool,
) -> EnvironmentToVerify:
    """Return the description from which another process builds its own copy of `env`.

    Args:
        env: the environment.
        spec: its Spec; None: derived from its class.
        overrides: settings that replace the defaults of its Config; None: all settings of `env`.
        settings: workers and their limits.
        isolated: whether its code runs in worker processes.

    Raises:
        ConfigError: another process cannot import it.
    """
    return EnvironmentToVerify(
        spec or spec_of(env),
        to_jsonable_python(env.config) if overrides is None else dict(overrides),
        isolated=isolated,
        concurrency=_concurrency(env, settings),
        settings=settings.model_dump(mode="json"),
        episodes=env.rung() == "episode",
        stateful=env.stateful,
    )


def _concurrency(env: Environment[Any], settings: VerifyConfig) -> int:
    """Return the most requests that one copy of an environment can work on at once.

    Episodes that wait to be opened must not keep the open ones from going on: their number is
    limited where they live (`episodes.EpisodeSlots`).
    """
    if env.rung() == "episode":
        return _MOST_EPISODES
    return settings.max_concurrency if env.rung() == "averify" and not env.stateful else 1


def boot_message(
    env: Environment[Any], spec: Spec | None, overrides: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the first message to a worker; the arguments are as for `describe_environment`."""
    described = describe_environment(env, spec, overrides, VerifyConfig(), isolated=True)
    return described.boot_message()


def spec_of(env: Environment[Any]) -> Spec:
    """Return a Spec by which another process can import the class of `env`.

    Raises:
        ConfigError: another process cannot import it.
    """
    env_class = type(env)
    name, module = env_class.__qualname__, env_class.__module__
    if module == "__main__" or "." in name:
        raise ConfigError(
            f"a worker process cannot import {name} from {module!r}; define the class at the top "
            "level of a module, or run it in this process: set trusted = True in the class, or "
            "verify.isolation=inline"
        )
    return Spec(name, f"{module}:{name}")
