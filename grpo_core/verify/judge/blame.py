"""Decide whether an answer is to blame for an exception of a verifier.

It is asked only for environments that declare `raises_at_answers`: their verifiers are code of a
library that reads whatever a policy writes. Everywhere else an exception is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_core.calls.deadline import DeadlineError
from grpo_core.calls.wire import Reply, decode, encode, prompt_digest
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.executor import Op, Request
from grpo_core.protocol.types import Reward, Rollout, Task, Verdict
from grpo_core.verify.judge.checks import BrokenContractError, check_verdict
from grpo_core.verify.judge.raised import CPU_LIMIT
from grpo_core.verify.workers.pool import WorkerLostError, WorkerPool

_REPEATS = 2
"""How often an answer must fail again."""
_WALL_FACTOR = 6.0
"""The wall time of a call, relative to its CPU time: on a busy machine it gets little of a core."""
_AT_ONCE = 2
"""Most workers that are asked at once."""


def check_declaration(env: Environment[Any]) -> None:
    """Check that an environment which declares `raises_at_answers` may.

    Raises:
        ConfigError: its verdicts need more than the answer and the task.
    """
    if not env.raises_at_answers:
        return
    reason = (
        f"it has {env.rung()}() instead of verify()"
        if env.rung() != "verify"
        else f"it needs {', '.join(sorted(env.needs))}"
        if env.needs
        else ""
    )
    if reason:
        raise ConfigError(
            f"{type(env).__qualname__} declares raises_at_answers, but {reason}, so an exception "
            "may have another cause than the answer; set raises_at_answers = False in the class"
        )


class AnswerBlame:
    """Ask fresh workers whether a verifier fails because of an answer.

    An answer is to blame if the verifier fails in the same way again, twice, in fresh workers in
    which the reference passes before, between and after. Each call gets a copy of a worker that has
    built the environment and done nothing else: that is as fresh as a new one, and costs
    milliseconds.
    """

    def __init__(
        self,
        env: Environment[Any],
        boot: Mapping[str, Any],
        settings: VerifyConfig,
        *,
        seconds: float,
    ) -> None:
        """Prepare; no worker is started yet.

        Args:
            env: the environment.
            boot: the first message to a worker.
            settings: limits of workers.
            seconds: the CPU time of a verdict.
        """
        self._env, self._seconds = env, seconds
        self._pool = WorkerPool(
            boot,
            size=_AT_ONCE,
            start_seconds=settings.worker_start_seconds,
            memory_mb=settings.worker_memory_mb,
            further_variables=settings.worker_environment,
            namespace=settings.namespace,
        )

    async def verdict(self, task: Task[Any], rollout: Rollout, error: Exception) -> Verdict | None:
        """Return the floor if the answer is to blame for `error`, else None."""
        kind = CPU_LIMIT if isinstance(error, DeadlineError) else getattr(error, "kind", "")
        if not kind:
            return None
        try:
            blamed = await self._fails_alone(task, rollout, kind)
        except (WorkerLostError, DeadlineError, BrokenContractError):
            return None
        return self._floor(kind, str(error)) if blamed else None

    async def close(self) -> None:
        """End the workers."""
        await self._pool.close()

    async def _fails_alone(self, task: Task[Any], rollout: Rollout, kind: str) -> bool:
        """Return whether the verifier fails twice at the answer, and never at the reference."""
        text = (await self._ask("reference", task)).value
        if not isinstance(text, str):  # there is none, or it is one of several turns
            return False
        reference = Rollout.of(text)
        for _ in range(_REPEATS):
            if not await self._passes(task, reference):
                return False
            if (await self._ask("verify", task, rollout)).kind != kind:
                return False
        return await self._passes(task, reference)

    async def _passes(self, task: Task[Any], rollout: Rollout) -> bool:
        reply = await self._ask("verify", task, rollout)
        if reply.error is not None:
            return False
        return check_verdict(decode(reply.value), self._env, rollout).passed

    async def _ask(self, op: Op, task: Task[Any], *arguments: Any) -> Reply:
        encoded = [encode(argument) for argument in arguments]
        request = Request(op, task.key, task.draw, prompt_digest(task), encoded)
        return await self._pool.ask(
            {**request.to_json(), "cpu_seconds": self._seconds},
            seconds=_WALL_FACTOR * self._seconds,
        )

    def _floor(self, kind: str, message: str) -> Verdict:
        """Return the verdict on an answer that is to blame."""
        reason = (
            f"the verifier does not end within {self._seconds:g} s of CPU time"
            if kind == CPU_LIMIT
            else f"the verifier raises {message}"
        )
        note = f"the floor: at this answer {reason}, again in a fresh worker; the reference passes"
        paying = next((name for name, weight in self._env.parts.items() if weight), None)
        rewards = {
            name: Reward(self._env.floor / weight, note=note) if name == paying else Reward(0.0)
            for name, weight in self._env.parts.items()
        }
        return check_verdict(Verdict(rewards, raised=kind), self._env)
