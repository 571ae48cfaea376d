"""Run an environment's code: in this process, or in worker processes that can be killed.

Trusted or asynchronous code runs in this process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from grpo_core.calls.call import current_call
from grpo_core.calls.deadline import Slots, in_thread, within
from grpo_core.calls.wire import decode, encode, prompt_digest
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Task, TaskKey, Verdict
from grpo_core.verify.checks import BrokenContractError, awaited, check_task
from grpo_core.verify.pool import WorkerPool

Op = Literal["verify", "reference", "audit", "reply"]
"""The methods of an environment that take a task."""


class InlineHost:
    """Run the environment in this process.

    Synchronous code runs in a thread, one call at a time, since environments need not be
    thread-safe. A thread cannot be killed: after a timeout it continues in the background. That is
    why this is for trusted code.
    """

    def __init__(
        self, env: Environment[Any], *, max_concurrency: int, replies_in_thread: bool = False
    ) -> None:
        """Prepare the calls.

        Args:
            env: the environment.
            max_concurrency: most asynchronous calls at once.
            replies_in_thread: run also an overridden reply() in a thread, with an event loop of its
                own, so that one that blocks does not hold the caller.
        """
        self._env = env
        self._replies_in_thread = replies_in_thread
        self._asynchronous = env.rung() == "averify"
        self._thread_slot = Slots(1)
        self._await_slots = Slots(1 if env.stateful else max_concurrency)

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]:
        """Return the task of `key`; `seconds` is the timeout."""
        async with self._thread_slot.here():
            return check_task(await within(in_thread(self._env.task, key), seconds), key)

    async def call(self, op: Op, task: Task[Any], *arguments: Any, seconds: float) -> Any:
        """Return the unchecked result of the environment's method `op`.

        Args:
            op: name of the method.
            task: its first argument.
            *arguments: its other arguments.
            seconds: timeout of the call.
        """
        env = self._env
        if op == "reply" and (self._replies_in_thread or type(env).reply is Environment.reply):
            # The inherited reply() calls the environment's tools, which are synchronous functions.
            async with self._thread_slot.here():
                return await within(in_thread(_run_reply, env, task, *arguments), seconds)
        if op == "reply" or (op == "verify" and self._asynchronous):
            name = "averify" if op == "verify" else "reply"
            async with self._await_slots.here():
                work = awaited(getattr(env, name)(task, *arguments), name)
                return await within(_mark_cacheability(work), seconds)
        async with self._thread_slot.here():
            return await within(
                _mark_cacheability(in_thread(getattr(env, op), task, *arguments)), seconds
            )

    async def close(self) -> None:
        """Do nothing: this host has no resources of its own."""


def _run_reply(env: Environment[Any], task: Task[Any], *arguments: Any) -> Any:
    """Return the environment's reply, in an event loop of its own."""
    return asyncio.run(awaited(env.reply(task, *arguments), "reply"))


async def _mark_cacheability(work: Awaitable[Any]) -> Any:
    """Return the result of `work`; a verdict is marked if a service requests not to cache it."""
    result = await work
    if isinstance(result, Verdict) and not current_call().cacheable:
        return replace(result, cacheable=False)
    return result


class ProcessHost:
    """Run the environment in a pool of workers, each with its own copy of it.

    Tasks have no `data` in this process: the workers derive it from the key.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]:
        """Return the task of `key`; `seconds` is the timeout."""
        prompt = await self._send_request({"op": "task", "key": asdict(key)}, seconds)
        return check_task(Task(key, prompt, None), key)

    async def call(self, op: Op, task: Task[Any], *arguments: Any, seconds: float) -> Any:
        """Return the unchecked result of the environment's method; see `InlineHost.call`."""
        request = {
            "op": op,
            "key": asdict(task.key),
            "draw": task.draw,
            "prompt": prompt_digest(task),
            "arguments": [encode(argument) for argument in arguments],
        }
        return await self._send_request(request, seconds)

    async def close(self) -> None:
        """End the workers."""
        await self._pool.close()

    async def _send_request(self, request: dict[str, Any], seconds: float) -> Any:
        reply = await self._pool.ask(request, seconds=seconds)
        if reply.error is not None:
            raise BrokenContractError(reply.error)
        return decode(reply.value)


Host = InlineHost | ProcessHost
"""Call the methods of an environment.

Each call has a timeout, which starts when the call does and not while it waits for its turn. A call
raises DeadlineError or any exception that the environment raises.
"""


def create_host(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifyConfig,
) -> Host:
    """Return what runs the environment's code: this process or a pool of workers.

    Args:
        env: the environment.
        spec: Spec by which a worker builds its own copy; None: derived from the class of `env`.
        overrides: settings of that copy; None: those of `env`.
        settings: isolation and workers.

    Raises:
        ConfigError: the isolation does not fit the environment.
    """
    synchronous = env.rung() == "verify"
    if settings.isolation == "process" and not synchronous:
        raise ConfigError(
            "verify.isolation=process is for a synchronous verify(); "
            f"{type(env).__qualname__} has {env.rung()}(): use verify.isolation=auto"
        )
    if settings.isolation == "inline" or (
        settings.isolation == "auto" and (env.trusted or not synchronous)
    ):
        return InlineHost(env, max_concurrency=settings.max_concurrency)
    return create_worker_host(env, spec, overrides, settings)


def create_worker_host(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifyConfig,
    *,
    size: int | None = None,
) -> ProcessHost:
    """Return a pool of workers that runs the environment's code.

    Args:
        env: the environment.
        spec: Spec by which a worker builds its own copy; None: derived from the class of `env`.
        overrides: settings of that copy; None: those of `env`.
        settings: workers and their limits.
        size: the most workers; None: as `settings` say.

    Raises:
        ConfigError: another process cannot build the environment.
    """
    if env.needs:
        raise ConfigError(
            f"{type(env).__qualname__} needs {', '.join(sorted(env.needs))}, "
            "which a worker process cannot reach; "
            "write averify() instead of verify(), or set verify.isolation=inline"
        )
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return ProcessHost(
        WorkerPool(
            boot_message(env, spec, overrides),
            size=size or (1 if env.stateful else settings.workers or min(4, cores)),
            start_seconds=settings.worker_start_seconds,
            memory_mb=settings.worker_memory_mb,
            further_variables=settings.worker_environment,
        )
    )


def boot_message(
    env: Environment[Any], spec: Spec | None, overrides: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the first message to a worker, from which it builds its own copy of `env`.

    Args:
        env: the environment.
        spec: its Spec; None: derived from its class.
        overrides: settings that replace the defaults of its Config; None: all settings of `env`.
    """
    spec = spec or spec_of(env)
    return {
        "spec": {"name": spec.name, "target": spec.target, "extra": spec.extra},
        "overrides": to_jsonable_python(env.config) if overrides is None else dict(overrides),
    }


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
