"""Measure a model behind an endpoint on held-out tasks, many attempts at once.

Every attempt is on disk before it counts as done, so an evaluation goes on after a kill with
nothing lost and nothing counted twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from grpo_core import Group, Task, TaskKey
from grpo_core.api.calls import StopRequest
from grpo_core.api.settings import RunConfig
from grpo_core.api.verify import ErrorRate, EvalSet, Source, Sources, eval_sets, offered_tools
from grpo_core.calls.api_client import ApiClient
from grpo_core.plugins.services import fingerprint
from grpo_evals.attempts import (
    AttemptLimits,
    EndpointAttempt,
    is_judged_alone,
    play,
)
from grpo_evals.folder import EvalFolder
from grpo_evals.policy import RemotePolicy, StoppedError
from grpo_evals.results import (
    Attempted,
    count_errors,
    count_no_text,
    count_refused,
    remarks_on,
    summary_of,
)
from grpo_evals.types import (
    EndpointUsage,
    Evaluated,
    EvaluationSettings,
    Progress,
)
from grpo_evals.unasked import with_unasked

T = TypeVar("T")
_PLAYED_PER_REQUEST = 2
"""Attempts in progress for each request that may be in flight: while one waits for its verdict,
another one asks."""


class EndpointEvaluation:
    """Measure a model in all environments of a config; use `run` once.

    Args:
        config: the settings of tasks, sampling and verification.
        sources: the environments of `config`; they are opened and closed here.
        settings: the endpoint, and how it is asked.
        folder: where the attempts are written.
        stop: after a request to stop, no attempt begins.

    Attributes:
        folder: where the attempts are written; `run` closes it.
    """

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        settings: EvaluationSettings,
        *,
        folder: EvalFolder,
        stop: StopRequest,
    ) -> None:
        self.folder = folder
        self._config, self._sources, self._settings = config, sources, settings
        self._stop = stop
        self._progress: Callable[[Progress], None] = lambda progress: None
        self._limits = {source.name: limits_of(source, config) for source in sources}
        self._sets = eval_sets(sources, tasks=settings.tasks, levels=settings.levels)
        self._total = settings.samples * sum(len(each.keys) for each in self._sets)
        self._error_rate = ErrorRate(stop_above=config.verify.max_error_rate)
        self._places = asyncio.Semaphore(_PLAYED_PER_REQUEST * settings.concurrency)
        self._done: set[tuple[TaskKey, int]] = set()
        self._failed: set[tuple[TaskKey, int]] = set()

    async def run(self, progress: Callable[[Progress], None]) -> Evaluated:
        """Return the results of all attempts, or after a stop of those that were made.

        Args:
            progress: is called after each attempt.

        Raises:
            ConfigError: the server refuses the key, the model or a setting.
            RunStoppedError: too many attempts failed, or a line cannot be written.
        """
        settings, self._progress = self._settings, progress
        client = ApiClient(
            key=settings.key,
            base_url=settings.model.endpoint,
            timeout_seconds=settings.timeout_seconds,
            at_once=settings.concurrency,
            per_minute=settings.per_minute,
            check=self._check_stop,
        )
        policy = RemotePolicy(
            client,
            settings.model,
            retries=settings.retries,
            stop=self._stop,
            cache=settings.cache,
        )
        try:
            async with self._sources:
                attempted = await _all_or_none(self._attempted(policy, each) for each in self._sets)
            evaluated = self._evaluated(attempted)
            self.folder.write_results(evaluated.to_json(settings))
        finally:
            await policy.close()
            self.folder.close()
        return evaluated

    def _check_stop(self) -> None:
        if self._stop.is_made:
            raise StoppedError

    async def _attempted(self, policy: RemotePolicy, held_out: EvalSet) -> list[Attempted]:
        """Return the attempts at each task of a set, as far as they were made."""
        tasks = await self._sources.tasks(held_out.keys)
        attempts = await _all_or_none(self._attempts_at(policy, task) for task in tasks)
        return list(zip(tasks, attempts, strict=True))

    async def _attempts_at(
        self, policy: RemotePolicy, task: Task[Any]
    ) -> Sequence[EndpointAttempt]:
        """Return the attempts at a task that were made.

        Attempts that are judged together are judged once all of them were made.
        """
        numbers = range(self._settings.samples)
        known = [self.folder.attempts.get((task.key, number)) for number in numbers]
        made = await _all_or_none(self._attempt(policy, task, number) for number in numbers)
        attempts = [attempt for attempt in made if attempt is not None]
        together = not is_judged_alone(self._sources[task.key.env])
        if not together or len(attempts) < len(numbers):
            return attempts
        same = all(new is old for new, old in zip(attempts, known, strict=True))
        if same and all(attempt.is_judged for attempt in attempts):
            return attempts
        return await self._judge(task, attempts)

    async def _attempt(
        self, policy: RemotePolicy, task: Task[Any], number: int
    ) -> EndpointAttempt | None:
        """Return an attempt from the folder, or play it; None after a requested stop.

        One that came to its end and could not be judged is judged again.
        """
        known = self.folder.attempts.get((task.key, number))
        source = self._sources[task.key.env]
        alone = is_judged_alone(source)
        if known is not None and known.is_played and (known.is_judged or not alone):
            self._count(known)
            return known
        async with self._places:
            if self._stop.is_made:
                return None
            can_be_judged = source.env.rung() != "episode" or source.env.replayable
            if known is not None and known.is_played and can_be_judged:
                return (await self._judge(task, [known]))[0]
            try:
                attempt = await play(
                    policy,
                    self._sources,
                    task,
                    number,
                    limits=self._limits[source.name],
                    seed=self._config.seed,
                )
            except StoppedError:
                return None
            await self._record(task, attempt)
            return attempt

    async def _judge(
        self, task: Task[Any], attempts: Sequence[EndpointAttempt]
    ) -> list[EndpointAttempt]:
        """Return attempts at a task with new verdicts, which are recorded."""
        rollouts = [attempt.rollout for attempt in attempts]
        (verdicts,) = await self._sources.verify([task], [rollouts])
        (group,) = await self._sources.audited([Group(task, rollouts, verdicts)])
        judged = [
            replace(attempt, verdict=verdict, usage=EndpointUsage())
            for attempt, verdict in zip(attempts, group.verdicts, strict=True)
        ]
        for attempt in judged:
            await self._record(task, attempt)
        return judged

    async def _record(self, task: Task[Any], attempt: EndpointAttempt) -> None:
        """Write an attempt to disk; raise RunStoppedError if too many have failed."""
        await self.folder.record(attempt, draw=task.draw)
        self._count(attempt)
        if attempt.verdict is not None:
            self._error_rate.add([attempt.verdict])

    def _count(self, attempt: EndpointAttempt) -> None:
        """Report an attempt that has ended, or has a new verdict."""
        name = (attempt.key, attempt.number)
        self._done.add(name)
        failed = not attempt.is_played or (attempt.verdict is not None and not attempt.is_judged)
        (self._failed.add if failed else self._failed.discard)(name)
        self._progress(Progress(len(self._done), self._total, len(self._failed), self.folder.usage))

    def _evaluated(self, attempted: Sequence[Sequence[Attempted]]) -> Evaluated:
        """Return the results of the attempts at each set."""
        rows = [[attempt for _, at_task in row for attempt in at_task] for row in attempted]
        attempts = [attempt for row in rows for attempt in row]
        return Evaluated(
            [
                with_unasked(summary_of(held_out, row, self._settings.samples), row)
                for held_out, row in zip(self._sets, attempted, strict=True)
            ],
            [count_refused(row) for row in rows],
            [count_no_text(row) for row in rows],
            remarks_on(attempts),
            count_errors(attempts),
            self.folder.usage,
            len(attempts) == self._total,
        )


def limits_of(source: Source, config: RunConfig) -> AttemptLimits:
    """Return the limits of an attempt at a task of an environment.

    Raises:
        ConfigError: its tools cannot be offered.
    """
    env = source.env
    tokens = config.sampling.max_new_tokens or env.max_new_tokens
    return AttemptLimits(env.max_turns, tokens, offered_tools(env))


def identity(config: RunConfig, sources: Sources, settings: EvaluationSettings) -> dict[str, Any]:
    """Return what decides the attempts and their verdicts, as JSON data.

    The numbers of tasks and samples and the levels are not part of it: more attempts leave those
    that were made as they are.
    """
    model, params = settings.model, settings.model.params
    own_tags = config.model.thought_tags  # evaluations of earlier versions know no others
    members = list(config.members().values())
    return {
        "endpoint": model.endpoint,
        "model": model.name,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "stop": list(params.stop),
        "request": dict(model.request),
        **({"thought_tags": list(own_tags)} if own_tags is not None else {}),
        "seed": config.seed,
        "environments": {
            source.name: {
                "fingerprint": fingerprint(source.env),
                "settings": member.env,
                "weights": member.weights,
                "max_new_tokens": limits_of(source, config).tokens,
                "max_turns": source.env.max_turns,
            }
            for source, member in zip(sources, members, strict=True)
        },
    }


async def _all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at the same time; if one fails, end the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
