"""Verify on this machine: in worker processes that can be killed, or in this process.

This is the executor that a run has by default. It is also the far end of others: a plugin sends an
`EnvironmentToVerify` elsewhere, opens a `LocalExecutor` there and lets it answer the requests.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections import OrderedDict
from dataclasses import replace
from typing import Any, ClassVar

from grpo_core.calls.call import hearing
from grpo_core.calls.deadline import DeadlineError, describe, in_thread
from grpo_core.calls.wire import decode, encode
from grpo_core.config.settings import JudgeConfig, SandboxConfig, VerifyConfig
from grpo_core.plugins.environments import build_environment, creation_errors
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import Lender
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.executor import Answer, EnvironmentToVerify, Place, Request
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.episodes.episode_place import EpisodePlace
from grpo_core.verify.judge.checks import (
    BrokenContractError,
    check_audit,
    check_reply,
    check_verdict,
)
from grpo_core.verify.judge.derive import task_with_prompt
from grpo_core.verify.workers.borrowed import names_of
from grpo_core.verify.workers.inline import InlineHost
from grpo_core.verify.workers.pool import WorkerLostError, WorkerPool

_CACHED_TASKS = 64


class LocalExecutor:
    """Verify on this machine.

    The environment's code runs in worker processes, each with its own copy of it, unless it is
    trusted or asynchronous: then it runs in this process, with services that are opened here.
    """

    in_process: ClassVar[bool] = True

    def open(self, environment: EnvironmentToVerify) -> Place:
        """Return a place on this machine."""
        if environment.isolated and environment.episodes:
            return episode_place(environment)
        if environment.isolated:
            return worker_place(environment)
        return InlinePlace(environment)

    async def examine(self) -> tuple[str, ...]:
        """Return nothing: `grpo doctor` looks at this machine by itself."""
        return ()

    async def close(self) -> None:
        """Do nothing: the places share nothing."""


class WorkerPlace:
    """Answer requests by a pool of workers, which derive the tasks."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def open(self) -> None:
        """Do nothing: workers are started when they are needed."""

    async def ask(self, request: Request, *, seconds: float) -> Answer:
        """Return the answer of a worker; see `Place.ask`."""
        try:
            reply = await self._pool.ask(request.to_json(), seconds=seconds)
        except DeadlineError as error:
            return Answer("deadline", text=str(error))
        except WorkerLostError as error:
            return Answer("lost", text=str(error))
        if reply.error is not None:
            return Answer("raised", text=reply.error, kind=reply.kind, output=reply.output)
        return Answer("value", reply.value, output=reply.output)

    async def close(self) -> None:
        """End the workers."""
        await self._pool.close()


class BuiltEnvironment:
    """Build an environment in this process from its description, with services of its own."""

    def __init__(self, environment: EnvironmentToVerify) -> None:
        self._described = environment
        self._lender = Lender(
            PluginHost(),
            SandboxConfig.model_validate(environment.sandbox),
            {name: JudgeConfig.model_validate(each) for name, each in environment.judges.items()},
        )
        self._env: Environment[Any] | None = None

    async def build(self) -> Environment[Any]:
        """Build the environment, open the services that it needs, and return it."""

        def build() -> Environment[Any]:
            spec = self._described.spec
            with creation_errors(f"environment {spec.name!r}"):
                return build_environment(
                    spec, self._described.overrides, lend=self._lender.services
                )

        self._env = await in_thread(build)
        return self._env

    async def open(self) -> Services:
        """Return the services of the environment, which is built."""
        return (await self.build()).services

    async def close(self) -> None:
        """Close the environment and its services."""
        try:
            if self._env is not None:
                await self._env.close()
        finally:
            await self._lender.close()


class GivenServices:
    """Provide services that somebody else has opened and closes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def open(self) -> Services:
        """Return the services."""
        return self._services

    async def close(self) -> None:
        """Do nothing: their owner closes them."""


class InlinePlace:
    """Answer requests by an environment in this process, with services of its own."""

    def __init__(self, environment: EnvironmentToVerify) -> None:
        self._settings = VerifyConfig.model_validate(environment.settings)
        self._built = BuiltEnvironment(environment)
        self._env: Environment[Any] | None = None
        self._tasks: OrderedDict[TaskKey, Task[Any]] = OrderedDict()

    async def open(self) -> None:
        """Build the environment and open the services that it needs."""
        self._env = await self._built.build()
        self._host = InlineHost(self._env, max_concurrency=self._settings.max_concurrency)

    async def ask(self, request: Request, *, seconds: float) -> Answer:
        """Return the answer of the environment; see `Place.ask`."""
        assert self._env is not None, "open() comes first"
        with hearing() as output:
            answer = await self._answer(self._env, request, seconds)
        return replace(answer, output=output.text)

    async def close(self) -> None:
        """Close the environment with its episodes, and its services."""
        try:
            if self._env is not None:
                await self._host.close()
        finally:
            await self._built.close()

    async def _answer(self, env: Environment[Any], request: Request, seconds: float) -> Answer:
        try:
            return Answer("value", await self._value(env, request, seconds))
        except DeadlineError as error:
            return Answer("deadline", text=str(error))
        except WorkerLostError as error:
            return Answer("lost", text=str(error))
        except BrokenContractError as error:
            return Answer("raised", text=str(error))
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            return Answer("raised", text=describe(error))

    async def _value(self, env: Environment[Any], request: Request, seconds: float) -> Any:
        """Return the checked result of a request, as JSON data."""
        derived_task = self._tasks.get(request.key)
        if derived_task is None:
            derived_task = await self._host.task(request.key, seconds=seconds)
            self._tasks[request.key] = derived_task
            if len(self._tasks) > _CACHED_TASKS:
                self._tasks.popitem(last=False)
        if request.op == "task":
            return encode(derived_task.prompt)
        task = task_with_prompt(env, derived_task, str(request.prompt))
        arguments = map(decode, request.arguments)
        result = await self._host.call(
            request.op,
            replace(task, draw=request.draw),
            *arguments,
            seconds=seconds,
            episode=request.session,
        )
        if request.op in ("verify", "verdict"):
            return encode(check_verdict(result, env))
        if request.op == "reply":
            return encode(check_reply(result))
        if request.op == "open":
            return encode(result)
        return check_audit(result) if request.op == "audit" else result


def episode_place(environment: EnvironmentToVerify, services: Services | None = None) -> Place:
    """Return worker processes for an environment with episodes.

    Args:
        environment: the environment.
        services: what its episodes may use; None: the place opens what the environment needs.
    """
    opens_services = BuiltEnvironment(environment) if services is None else GivenServices(services)
    return EpisodePlace(
        environment,
        opens_services,
        lambda services: worker_place(environment, services=services),
        size=_workers(environment),
    )


def worker_place(
    environment: EnvironmentToVerify,
    *,
    size: int | None = None,
    services: Services | None = None,
) -> WorkerPlace:
    """Return a pool of workers for an environment.

    Args:
        environment: the environment.
        size: the most workers; None: as the environment and its settings say.
        services: services that the environment finds when it is built, though it cannot call them
            there; None: none.
    """
    settings = VerifyConfig.model_validate(environment.settings)
    return WorkerPlace(
        WorkerPool(
            environment.boot_message(None if services is None else names_of(services)),
            size=size or _workers(environment),
            start_seconds=settings.worker_start_seconds,
            memory_mb=settings.worker_memory_mb,
            further_variables=settings.worker_environment,
            namespace=settings.namespace,
        )
    )


def _workers(environment: EnvironmentToVerify) -> int:
    """Return how many workers an environment gets if nothing else is said."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    workers = VerifyConfig.model_validate(environment.settings).workers
    return 1 if environment.stateful else workers or min(4, cores)


async def answer_json(place: Place, request: str, *, seconds: float) -> str:
    """Return a place's answer to a request, both as JSON text: what a plugin sends and receives.

    Args:
        place: the place.
        request: JSON text of `Request.to_json`.
        seconds: timeout of the environment's code.
    """
    asked = Request.from_json(json.loads(request))
    answer = await place.ask(asked, seconds=seconds)
    try:
        return json.dumps(answer.to_json(), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        text = f"{asked.op}() returned what cannot be sent: {error}"
        return json.dumps(Answer("raised", text=text).to_json())


def versions_here(spec: Spec) -> dict[str, str]:
    """Return the versions in this process that decide an environment's verdicts, by name.

    They are those of Python (without the patch level), of grpo-core and of the distribution that
    offers the environment.
    """
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in dict.fromkeys(("grpo-core", spec.distribution)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def versions_that_differ(environment: EnvironmentToVerify) -> str:
    """Return how the versions in this process differ from the run's; "" if they do not."""
    here = versions_here(environment.spec)
    return ", ".join(
        f"{name} {here[name]} instead of {version}"
        for name, version in environment.versions.items()
        if here[name] != version
    )
