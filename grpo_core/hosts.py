"""Where the environment's code runs: in this process (trusted or asynchronous) or in workers that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from grpo_core.checks import BrokenContractError, check_task
from grpo_core.deadline import Slots, in_thread, within
from grpo_core.environment import Environment
from grpo_core.errors import ConfigError
from grpo_core.pool import WorkerPool
from grpo_core.spec import Spec
from grpo_core.types import Message, Rollout, Task, TaskKey, Verdict
from grpo_core.wire import (
    key_to_json,
    messages_from_json,
    messages_to_json,
    prompt_digest,
    prompt_from_json,
    rollout_to_json,
)


class Host(Protocol):
    """Each call has its deadline, counted from when its turn comes, and raises DeadlineError or whatever the environment raises."""

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]: ...

    async def verify(self, task: Task[Any], rollout: Rollout, *, seconds: float) -> object: ...

    async def reference(self, task: Task[Any], *, seconds: float) -> str | None: ...

    async def audit(self, task: Task[Any], rollout: Rollout, *, seconds: float) -> float | None: ...

    async def reply(self, task: Task[Any], messages: Sequence[Message], *, seconds: float) -> Sequence[Message] | None: ...

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

    async def verify(self, task: Task[Any], rollout: Rollout, *, seconds: float) -> object:
        if self._asynchronous:
            async with self._awaits.here():
                return await within(self._env.averify(task, rollout), seconds)
        async with self._thread.here():
            return await within(in_thread(self._env.verify, task, rollout), seconds)

    async def reference(self, task: Task[Any], *, seconds: float) -> str | None:
        async with self._thread.here():
            return await within(in_thread(self._env.reference, task), seconds)

    async def audit(self, task: Task[Any], rollout: Rollout, *, seconds: float) -> float | None:
        async with self._thread.here():
            return await within(in_thread(self._env.audit, task, rollout), seconds)

    async def reply(self, task: Task[Any], messages: Sequence[Message], *, seconds: float) -> Sequence[Message] | None:
        if type(self._env).reply is Environment.reply:  # the tools are synchronous functions of the author
            async with self._thread.here():
                return await within(in_thread(asyncio.run, self._env.reply(task, messages)), seconds)
        async with self._awaits.here():
            return await within(self._env.reply(task, messages), seconds)

    async def close(self) -> None:
        """Nothing of its own."""


class ProcessHost:
    """In a pool of workers, each with its own copy of the environment. Tasks have no `data` here: the workers derive it from the key."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]:
        prompt = await self._ask({"op": "task", "key": key_to_json(key)}, seconds)
        return Task(key, prompt_from_json(prompt), None)

    async def verify(self, task: Task[Any], rollout: Rollout, *, seconds: float) -> object:
        return Verdict.from_json(await self._of("verify", task, seconds, rollout=rollout_to_json(rollout)))

    async def reference(self, task: Task[Any], *, seconds: float) -> str | None:
        text: str | None = await self._of("reference", task, seconds)
        return text

    async def audit(self, task: Task[Any], rollout: Rollout, *, seconds: float) -> float | None:
        score: float | None = await self._of("audit", task, seconds, rollout=rollout_to_json(rollout))
        return score

    async def reply(self, task: Task[Any], messages: Sequence[Message], *, seconds: float) -> Sequence[Message] | None:
        turn = await self._of("reply", task, seconds, messages=messages_to_json(messages))
        return None if turn is None else messages_from_json(turn)

    async def close(self) -> None:
        await self._pool.close()

    async def _of(self, op: str, task: Task[Any], seconds: float, **arguments: Any) -> Any:
        request = {"op": op, "key": key_to_json(task.key), "draw": task.draw, "prompt": prompt_digest(task), **arguments}
        return await self._ask(request, seconds)

    async def _ask(self, request: dict[str, Any], seconds: float) -> Any:
        reply = await self._pool.ask(request, seconds=seconds)
        if "error" in reply:
            raise BrokenContractError(reply["error"])
        return reply["value"]


def boot_message(env: Environment[Any], spec: Spec | None, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a worker needs to build its own copy of `env`."""
    spec = spec or spec_of(env)
    settings = _settings_of(env) if overrides is None else dict(overrides)
    return {"spec": {"name": spec.name, "target": spec.target, "extra": spec.extra}, "overrides": settings}


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
