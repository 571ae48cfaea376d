"""Open an environment for code that has no event loop of its own, such as another trainer.

All work runs in one thread with an event loop, which lives until the environment is closed. So
worker processes, sandboxes and judges are started once and not for every batch, and it does not
matter whether the caller has an event loop that is running.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from grpo_core import (
    ConfigError,
    Environment,
    GrpoError,
    Message,
    Rollout,
    Task,
    TaskKey,
    Verdict,
    build_config,
)
from grpo_core.api.settings import RunConfig
from grpo_core.api.verify import Sources, Transcript, offered_tools

T = TypeVar("T")


def opened(
    env: str | Environment[Any],
    settings: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
) -> OpenEnvironment:
    """Open an environment as a run does: same workers, time limits, sandbox, judges and cache.

    Args:
        env: the name of an installed environment, FILE.py:CLASS, a file of rows, or an environment
            of your own, which is closed at the end as well.
        settings: settings of a run by section, such as {"env": {"shots": 2}, "level": 0.4}; used
            are env, weights, level, seed, verify, sandbox and judges.
        name: the name in task keys of an environment of your own; by default that of its class.

    Raises:
        UserError: the environment or a setting does not exist or is not valid.
    """
    given = {} if isinstance(env, str) else {name or type(env).__qualname__: env}
    environment = env if isinstance(env, str) else next(iter(given))
    config = build_config([settings or {}, {"environment": environment}])
    return OpenEnvironment(config, Sources.of(config, given))


class OpenEnvironment:
    """Gives tasks and verdicts of one environment to code without an event loop.

    Use it in a `with` block, or call `close`; else it is closed when the interpreter exits. The
    methods block and may be called from any thread.

    Attributes:
        config: the settings.
        name: the name of the environment in task keys.
        level: the difficulty of its tasks, from 0 to 1.
        env: the environment.
        tools: descriptions of the functions that the policy may call, as chat templates take them.
        weights: the weight of each reward part in the total, by name.
    """

    def __init__(self, config: RunConfig, sources: Sources) -> None:
        """Start the thread; `opened` calls this."""
        (source,) = sources
        self.config = config
        self.name = source.name
        self.level = source.level
        self.env = source.env
        if source.verifier.has_episodes:
            raise ConfigError(
                f"{type(self.env).__qualname__} has episodes, which only grpo-core's own trainer "
                "plays; train with grpo run, or write reply() and verify()"
            )
        if source.verifier.has_agents:
            raise ConfigError(
                f"{type(self.env).__qualname__} has an agent, which asks the policy through a "
                "server that only grpo-core's own trainer has; train with grpo run, or derive the "
                "class from Environment and write reply() and verify()"
            )
        self.tools = offered_tools(source.env)
        self.weights = {**self.env.parts, **source.verifier.weights}
        self._verifier = source.verifier
        self._sources = sources
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = (
            concurrent.futures.Future()
        )
        self._closing = asyncio.Event()
        self._failure: BaseException | None = None
        # A daemon, since the interpreter would wait for any other thread before it calls atexit.
        self._thread = threading.Thread(target=self._serve, name="grpo environment", daemon=True)
        self._thread.start()
        self._loop = self._started.result()
        atexit.register(self._close_at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def turns(self) -> int:
        """Return the most turns of the policy in a rollout."""
        return self.env.max_turns

    def tasks(self, keys: Sequence[TaskKey]) -> list[Task[Any]]:
        """Return the tasks of `keys`.

        Raises:
            GrpoError: a task cannot be created.
        """
        return self._wait_for(self._verifier.tasks(keys))

    def verdicts(self, tasks: Sequence[Task[Any]], rollouts: Sequence[Rollout]) -> list[Verdict]:
        """Return the verdict of each rollout, with the weights of the settings.

        Args:
            tasks: (B,) the task of each rollout, with its draw; rollouts of equal tasks are judged
                as a group.
            rollouts: (B,) the rollouts.
        """
        return self._wait_for(self._verdicts(tasks, rollouts))

    def transcript(self, task: Task[Any]) -> Transcript:
        """Return the transcript of an attempt at a task, without messages."""
        return Transcript(self.turns, self._verifier.conversation(task))

    def replies(self, transcripts: Iterable[Transcript]) -> list[Sequence[Message] | None]:
        """Return the environment's next turn in each dialogue; None in those that are over.

        A dialogue in which the environment fails ends with finish="error".
        """
        return self._wait_for(self._replies(transcripts))

    def close(self) -> None:
        """End all workers and services, and wait until they have ended.

        It may be called more than once.

        Raises:
            Exception: closing failed.
        """
        atexit.unregister(self._close_at_exit)
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _close_at_exit(self) -> None:
        """Close it at the interpreter's exit, as far as that allows it.

        From Python 3.12 on no thread can be started then, so closing may fail; workers end in any
        case with the process that started them.
        """
        with contextlib.suppress(RuntimeError):
            self.close()

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and return its result.

        Raises:
            GrpoError: the environment is closed, or belongs to the parent of this process.
        """
        if not self._thread.is_alive() or self._closing.is_set():
            work.close()
            raise GrpoError(
                f"the environment {self.name!r} is closed, or this process was forked from the one "
                "that opened it; open it where it is used"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # KeyboardInterrupt, too: nobody waits for the work any longer
            future.cancel()
            raise

    def _serve(self) -> None:
        """Run the event loop of the thread until `close` is called."""
        try:
            asyncio.run(self._live())
        except BaseException as failure:  # noqa: BLE001 - raised again by the thread that waits
            self._failure = failure
            if not self._started.done():
                self._started.set_exception(failure)

    async def _live(self) -> None:
        async with self._sources:
            self._started.set_result(asyncio.get_running_loop())
            await self._closing.wait()

    async def _verdicts(
        self, tasks: Sequence[Task[Any]], rollouts: Sequence[Rollout]
    ) -> list[Verdict]:
        places: dict[tuple[TaskKey, int], list[int]] = {}
        for place, task in enumerate(tasks):
            places.setdefault((task.key, task.draw), []).append(place)
        verdicts = await self._verifier.verify(
            [tasks[group[0]] for group in places.values()],
            [[rollouts[place] for place in group] for group in places.values()],
        )
        by_place = {
            place: verdict
            for group, group_verdicts in zip(places.values(), verdicts, strict=True)
            for place, verdict in zip(group, group_verdicts, strict=True)
        }
        return [by_place[place] for place in range(len(rollouts))]

    async def _replies(self, transcripts: Iterable[Transcript]) -> list[Sequence[Message] | None]:
        return list(await asyncio.gather(*(transcript.next_reply() for transcript in transcripts)))
