"""Watch a run for reward hacking and collapse, environment by environment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from statistics import fmean
from typing import Any, TypeVar

from grpo_core.figures.gains import Scores
from grpo_core.protocol.errors import GrpoError, RunStoppedError
from grpo_core.protocol.events import (
    AlarmRaised,
    BatchCollected,
    EvaluationEnded,
    Event,
    Response,
)
from grpo_core.protocol.types import TaskKey
from grpo_core.train.actor import Actor
from grpo_core.train.run.alarms.asking import Asking
from grpo_core.train.run.alarms.environment import EnvironmentWatch
from grpo_core.train.run.alarms.seen import Seen
from grpo_core.verify.sources import Source

T = TypeVar("T")
EventScores = Mapping[TaskKey, Mapping[str, float]]
"""Scores by task, as events have them."""


class AlarmWatch:
    """Look at each step before anything is learned from it, as a listener of the run.

    It changes neither weights nor tasks nor random numbers, so a run with alarms trains to the same
    weights as one without.

    Args:
        actor: asks verifiers and policy.
        warn: receives a warning if something cannot be asked; the run goes on.
    """

    def __init__(self, actor: Actor, warn: Callable[[str], None]) -> None:
        config = actor.config
        self._config, self._warn = config.alarms, warn
        self._asking = Asking(actor, tasks=config.alarms.tasks)
        sources: list[Source] = actor.sources.trained if config.alarms.enabled else []
        judges = [name for name in config.judges if name != "default"]
        self._watched = {
            source.name: (
                source,
                EnvironmentWatch(source.name, chance=config.alarms.chance, audit_judges=judges),
            )
            for source in sources
        }

    async def on(self, event: Event) -> Response | None:
        """Look at a step or an evaluation; answer with the alarms that begin."""
        match event:
            case BatchCollected():
                alarms, metrics = await self.look(event)
            case EvaluationEnded() if event.step:
                alarms, metrics = self.evaluated(event.step, event.before, event.scores), {}
            case _:
                return None
        titles = ", ".join(alarm.title for alarm in alarms)
        reason = (
            f"alarms.stop=true, and there is an alarm: {titles}; read alarms.jsonl, and continue "
            "with alarms.stop=false if it is a false one"
        )
        return Response(metrics, alarms, stop=reason if alarms and self._config.stop else "")

    async def look(self, batch: BatchCollected) -> tuple[list[AlarmRaised], dict[str, float]]:
        """Return the alarms that begin with a step, and its metrics of alarms."""
        if not batch.groups or not self._watched:
            return [], {}
        alarms: list[AlarmRaised] = []
        metrics: dict[str, float] = {}
        every = self._config.every
        is_due = every > 0 and (batch.step == 1 or batch.step % every == 0)
        for source, watch in self._watched.values():
            seen = Seen.of(batch.step, batch.groups, source.name)
            if not seen.groups:
                continue
            if is_due:
                for ask in (self._ask_canaries, self._audit):
                    alarms += await self._tried(source, ask(source, watch, seen), [])
                measuring = self._asking.reference_logprobs(source)
                logprobs = await self._tried(source, measuring, {})
                alarms += watch.measured(seen, logprobs)
                if logprobs:
                    prefix = f"{source.name}/" if len(self._watched) > 1 else ""
                    metrics[f"{prefix}alarms/reference_logprob"] = fmean(logprobs.values())
            alarms += watch.step(seen)
        metrics["alarms/new"] = float(len(alarms))
        metrics["alarms/active"] = float(sum(watch.active for _, watch in self._watched.values()))
        return alarms, metrics

    async def _tried(self, source: Source, asking: Awaitable[T], otherwise: T) -> T:
        """Return what is asked, or something else where the environment fails."""
        try:
            return await asking
        except RunStoppedError:
            raise
        except GrpoError as error:
            self._warn(f"the alarms of {source.name!r} could not be asked: {error}")
            return otherwise

    async def _ask_canaries(
        self, source: Source, watch: EnvironmentWatch, seen: Seen
    ) -> list[AlarmRaised]:
        references = await self._asking.references(seen)
        asked = await self._asking.canaries(source, seen, references, turn=watch.canaries.turn)
        texts = [answer for answer in references if isinstance(answer, str)]
        return watch.asked(seen, asked, texts)

    async def _audit(
        self, source: Source, watch: EnvironmentWatch, seen: Seen
    ) -> list[AlarmRaised]:
        groups = [scored[0].group for scored in seen.groups]
        audited = await self._asking.audited(source, groups)
        return watch.audited(seen.audited(audited)) if audited else []

    def evaluated(self, step: int, before: EventScores, after: EventScores) -> list[AlarmRaised]:
        """Return the alarms that begin with an evaluation.

        Args:
            step: the step after which it was made.
            before: the scores before training.
            after: those now.
        """
        return [
            alarm
            for name, (_, watch) in self._watched.items()
            for alarm in watch.evaluated(step, _of(before, name), _of(after, name))
        ]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as JSON data."""
        return {name: watch.state() for name, (_, watch) in self._watched.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint; of a folder without alarms nothing is known."""
        for name, (_, watch) in self._watched.items():
            if name in state:
                watch.restore(state[name])


def _of(scores: EventScores, environment: str) -> Scores:
    """Return the scores of one environment."""
    return {key: dict(values) for key, values in scores.items() if key.env == environment}
