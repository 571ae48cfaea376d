"""Watch a run for reward hacking and collapse, environment by environment."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from grpo_alarms.asking import Asking
from grpo_alarms.drifts import Scores
from grpo_alarms.environment import EnvironmentWatch
from grpo_alarms.seen import Seen
from grpo_core import GrpoError, RunStoppedError
from grpo_core.protocol.events import (
    AlarmRaised,
    BatchCollected,
    EvaluationEnded,
    Event,
    Response,
    RunStarted,
    TrainedEnvironment,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WatchedEnvironment:
    """Pair an environment with what watches it."""

    environment: TrainedEnvironment
    watch: EnvironmentWatch


class AlarmWatch:
    """Look at each step before anything is learned from it, as a listener of the run.

    It changes neither weights nor tasks nor random numbers, so a run with alarms trains to the same
    weights as one without.
    """

    in_every_process = True

    def __init__(self) -> None:
        self._settings: Mapping[str, Any] = {}
        """The settings `alarms` of the run."""
        self._asking: Asking
        self._watched: list[WatchedEnvironment] | None = None
        """The environments; None before the run has started."""
        self._stored: Mapping[str, Any] = {}
        """The state of a checkpoint, until the run starts."""
        self._warnings: list[str] = []
        """Warnings that wait for the answer to the event."""

    async def on(self, event: Event) -> Response | None:
        """Look at a step or an evaluation; answer with the alarms that begin."""
        match event:
            case RunStarted():
                self._start(event)
                return None
            case BatchCollected():
                response = await self._look(event)
            case EvaluationEnded() if event.step:
                response = Response(alarms=self._evaluated(event))
            case _:
                return None
        titles = ", ".join(alarm.title for alarm in response.alarms)
        reason = (
            f"alarms.stop=true, and there is an alarm: {titles}; read alarms.jsonl, and continue "
            "with alarms.stop=false if it is a false one"
        )
        is_over = bool(response.alarms) and self._settings["stop"]
        warnings, self._warnings = self._warnings, []
        return replace(response, warnings=warnings, stop=reason if is_over else "")

    def _start(self, event: RunStarted) -> None:
        """Watch the environments of a run that begins, or goes on."""
        stored, settings = self.state(), event.config["alarms"]
        judges = [name for name in event.config["judges"] if name != "default"]
        self._settings = settings
        self._asking = Asking(event.services, tasks=settings["tasks"])
        self._watched = [
            WatchedEnvironment(
                environment,
                EnvironmentWatch(environment.name, chance=settings["chance"], audit_judges=judges),
            )
            for environment in event.environments
            if settings["enabled"]
        ]
        for watched in self._watched:
            if watched.environment.name in stored:
                watched.watch.restore(stored[watched.environment.name])

    async def _look(self, batch: BatchCollected) -> Response:
        """Return the alarms that begin with a step, and its metrics of alarms."""
        if not batch.groups or not self._watched:
            return Response()
        alarms: list[AlarmRaised] = []
        measured: dict[str, dict[str, float]] = {}
        every = self._settings["every"]
        is_due = every > 0 and (batch.step == 1 or batch.step % every == 0)
        for watched in self._watched:
            environment, watch = watched.environment, watched.watch
            seen = Seen.of(batch.step, batch.groups, environment.name)
            if not seen.groups:
                continue
            if is_due:
                for ask in (self._ask_canaries, self._audit):
                    alarms += await self._tried(environment, ask(watched, seen), [])
                measuring = self._asking.reference_logprobs(environment)
                logprobs = await self._tried(environment, measuring, {})
                alarms += watch.measured(seen, logprobs)
                if logprobs:
                    measured[environment.name] = {"reference_logprob": fmean(logprobs.values())}
            alarms += watch.step(seen)
        metrics = {
            "new": float(len(alarms)),
            "active": float(sum(watched.watch.active for watched in self._watched)),
        }
        return Response(metrics, alarms, by_environment=measured)

    async def _tried(
        self, environment: TrainedEnvironment, asking: Awaitable[T], otherwise: T
    ) -> T:
        """Return what is asked, or something else where the environment fails."""
        try:
            return await asking
        except RunStoppedError:
            raise
        except GrpoError as error:
            self._warnings.append(f"the alarms of {environment.name!r} could not be asked: {error}")
            return otherwise

    async def _ask_canaries(self, watched: WatchedEnvironment, seen: Seen) -> list[AlarmRaised]:
        watch = watched.watch
        references = await self._asking.references(seen)
        asked = await self._asking.canaries(
            watched.environment, seen, references, turn=watch.canaries.turn
        )
        texts = [answer for answer in references if isinstance(answer, str)]
        return watch.asked(seen, asked, texts)

    async def _audit(self, watched: WatchedEnvironment, seen: Seen) -> list[AlarmRaised]:
        groups = [scored[0].group for scored in seen.groups]
        audited = await self._asking.audited(watched.environment, groups)
        return watched.watch.audited(seen.audited(audited)) if audited else []

    def _evaluated(self, event: EvaluationEnded) -> list[AlarmRaised]:
        """Return the alarms that begin with an evaluation."""
        alarms = []
        for watched in self._watched or ():
            before, after = (
                _of(scores, watched.environment.name) for scores in (event.before, event.scores)
            )
            alarms += watched.watch.evaluated(event.step, before, after)
        return alarms

    def state(self) -> Mapping[str, Any]:
        """Return what a checkpoint stores, as JSON data."""
        if self._watched is None:
            return self._stored
        return {watched.environment.name: watched.watch.state() for watched in self._watched}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint; of a folder without alarms nothing is known."""
        self._stored = state


def _of(scores: Scores, environment: str) -> Scores:
    """Return the scores of one environment."""
    return {key: values for key, values in scores.items() if key.env == environment}
