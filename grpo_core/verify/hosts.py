"""Where the environment's code runs: in this process (trusted or asynchronous) or in workers that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal, Protocol

from grpo_core.calls.call import current_call
from grpo_core.calls.deadline import Slots, in_thread, within
from grpo_core.calls.wire import decode, encode, prompt_digest
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Task, TaskKey, Verdict
from grpo_core.verify.checks import BrokenContractError, check_task
from grpo_core.verify.pool import WorkerPool

Op = Literal["verify", "reference", "audit", "reply"]
"""The methods of an environment that take a task."""


class Host(Protocol):
    """Each call has its deadline, counted from when its turn comes, and raises DeadlineError or whatever the environment raises."""

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]: ...

    async def call(self, op: Op, task: Task[Any], *arguments: Any, seconds: float) -> Any:
        """What the environment's method `op` gives for `task` and `arguments`, as it gave it."""

    async def close(self) -> None: ...


class InlineHost:
    """In this process. Synchronous code runs in a thread, one call at a time, since environments need not be thread-safe.

    A thread cannot be killed: one that passes its deadline goes on in the background. That is why this is for trusted code.
    """

    def __init__(self, env: Environment[Any], *, max_concurrency: int) -> None:
        self._env = env
        self._asynchronous = env.rung() == "averify"
        self._thread = Slots(1)
        self._awaits = Slots(1 if env.stateful else max_concurrency)

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]:
        async with self._thread.here():
            return check_task(await within(in_thread(self._env.task, key), seconds), key)

    async def call(self, op: Op, task: Task[Any], *arguments: Any, seconds: float) -> Any:
        env = self._env
        if (
            op == "reply" and type(env).reply is Environment.reply
        ):  # the tools are synchronous functions of the author
            async with self._thread.here():
                return await within(in_thread(asyncio.run, env.reply(task, *arguments)), seconds)
        if op == "reply" or (op == "verify" and self._asynchronous):
            work = (
                _marked(env.averify(task, *arguments))
                if op == "verify"
                else env.reply(task, *arguments)
            )
            async with self._awaits.here():
                return await within(work, seconds)
        async with self._thread.here():
            return await within(_marked(in_thread(getattr(env, op), task, *arguments)), seconds)

    async def close(self) -> None:
        """Nothing of its own."""


async def _marked(work: Awaitable[Any]) -> Any:
    """Return what `work` does; a verdict is marked if a service wants it kept out of caches."""
    result = await work
    if isinstance(result, Verdict) and not current_call().cacheable:
        return replace(result, cacheable=False)
    return result


class ProcessHost:
    """In a pool of workers, each with its own copy of the environment. Tasks have no `data` here: the workers derive it from the key."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]:
        prompt = await self._ask({"op": "task", "key": asdict(key)}, seconds)
        return check_task(Task(key, prompt, None), key)

    async def call(self, op: Op, task: Task[Any], *arguments: Any, seconds: float) -> Any:
        request = {
            "op": op,
            "key": asdict(task.key),
            "draw": task.draw,
            "prompt": prompt_digest(task),
        }
        return await self._ask(
            {**request, "arguments": [encode(argument) for argument in arguments]}, seconds
        )

    async def close(self) -> None:
        await self._pool.close()

    async def _ask(self, request: dict[str, Any], seconds: float) -> Any:
        reply = await self._pool.ask(request, seconds=seconds)
        if reply.error is not None:
            raise BrokenContractError(reply.error)
        return decode(reply.value)


def boot_message(
    env: Environment[Any], spec: Spec | None, overrides: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a worker needs to build its own copy of `env`."""
    spec = spec or spec_of(env)
    settings = _settings_of(env) if overrides is None else dict(overrides)
    return {
        "spec": {"name": spec.name, "target": spec.target, "extra": spec.extra},
        "overrides": settings,
    }


def spec_of(env: Environment[Any]) -> Spec:
    """How another process finds the class of `env`."""
    found = type(env)
    if found.__module__ == "__main__" or "." in found.__qualname__:
        raise ConfigError(
            f"a worker process cannot import {found.__qualname__} from {found.__module__!r}; put the class at the top of a module, "
            "or let it run in this process: trusted = True in the class, or verify.isolation=inline"
        )
    return Spec(found.__qualname__, f"{found.__module__}:{found.__qualname__}")


def _settings_of(env: Environment[Any]) -> Any:
    from pydantic_core import to_jsonable_python  # heavy, and of no use to inline environments

    return to_jsonable_python(env.config)
