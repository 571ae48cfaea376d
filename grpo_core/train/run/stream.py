"""Emit the events of a run to its listeners, in their order, and gather what they answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isawaitable
from typing import Any

from grpo_core.calls.isolation import ForeignError, isolated, reason
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.events import (
    AlarmRaised,
    BatchCollected,
    EvaluationProgress,
    Event,
    Listener,
    Notice,
    Response,
)


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Name a listener of a run."""

    name: str
    listener: Any
    """A `Listener`; one of a plugin may be anything."""
    plugin: str = ""
    """The plugin or tracker that it comes from, in words; "" for one of ours."""
    environments: Collection[str] = ()
    """The environments that are trained on, of which it may give metrics."""
    is_shared: bool = False
    """Each of several processes has it, and they share the work of what it asks."""


@dataclass(slots=True)
class Answers:
    """Gather what listeners answer to an event."""

    metrics: dict[str, float] = field(default_factory=dict)
    stop: str = ""
    """The first reason to stop; "" if there is none."""
    finish: str = ""
    """The first reason to finish; "" if there is none."""


class Stream:
    """Emit events, one after the other; the listeners hear each in the order of their list.

    One of a plugin that fails is switched off with one warning, and the run continues; what one of
    ours raises ends the run.

    Args:
        voices: the listeners that tell the user, which hear what is posted.
    """

    def __init__(self, voices: Sequence[Listener]) -> None:
        self._voices = voices
        self._listed: list[Listed] = []
        self._fatal: tuple[type[BaseException], ...] = ()
        self._warned: set[tuple[str, str]] = set()
        """The warnings that listeners have answered with, each with the listener's name."""
        self.switched_off: list[str] = []
        """The listeners that failed and are not called again, each with the step before."""
        self.done = 0
        """The last finished step."""

    def listen(
        self,
        listed: Sequence[Listed],
        *,
        fatal: tuple[type[BaseException], ...] = (RunStoppedError,),
    ) -> None:
        """Emit to these listeners, in this order, instead of those before.

        Args:
            listed: the listeners.
            fatal: what ends the run also where a plugin's listener has asked for what raises it.
        """
        self._listed, self._fatal = list(listed), fatal

    def post(self, event: Notice | EvaluationProgress) -> None:
        """Tell the user at once, from any place and thread."""
        for voice in self._voices:
            voice.on(event)

    async def emit(
        self,
        event: Event,
        *,
        shared: Event | None = None,
        lap: Callable[[str], None] = lambda name: None,
    ) -> Answers:
        """Wait until every listener has heard the event; return what they answer.

        Args:
            event: what has happened.
            shared: the same for listeners that each process has, if it is another for these.
            lap: is called with a listener's name after it has answered with metrics, to measure
                its time.
        """
        answers = Answers()
        for listed in list(self._listed):
            if listed not in self._listed:  # it was switched off at an alarm of this event
                continue
            if listed.plugin:
                response = await self._hear(listed, (listed.is_shared and shared) or event)
            else:
                answer = listed.listener.on(event)
                response = await answer if isawaitable(answer) else answer
            if response is None:
                continue
            self._warn(listed, response.warnings)
            if response.metrics:
                lap(listed.name)
            answers.metrics |= response.metrics
            answers.stop = answers.stop or response.stop
            answers.finish = answers.finish or response.finish
            for alarm in response.alarms:
                after = await self.emit(alarm)
                answers.stop = answers.stop or after.stop
                answers.finish = answers.finish or after.finish
        return answers

    async def _hear(self, listed: Listed, event: Event) -> Response | None:
        """Return what a plugin's listener answers; None if it fails and is switched off."""
        try:
            answer = isolated(lambda: listed.listener.on(event))
            if isawaitable(answer):
                try:
                    answer = await answer
                except (Exception, SystemExit) as error:
                    raise ForeignError(reason(error)) from error
            return _checked(answer, event, listed)
        except ForeignError as error:
            failure: BaseException = error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the run itself is cancelled
                raise
            failure = error
        self._switch_off(listed, type(event).__name__, failure)
        return None

    def _warn(self, listed: Listed, warnings: Sequence[str]) -> None:
        """Post the warnings that were not given yet."""
        for text in warnings:
            if (listed.name, text) not in self._warned:
                self._warned.add((listed.name, text))
                self.post(Notice(text, self.done, "warning"))

    def _switch_off(self, listed: Listed, place: str, error: BaseException) -> None:
        """Call a listener no more.

        Raises:
            BaseException: what it asked of the run ends the run.
            RunStoppedError: other processes would wait for what this one no longer asks.
        """
        if isinstance(error.__cause__, self._fatal):
            raise error.__cause__
        why = str(error) if isinstance(error, ForeignError) else reason(error)
        if listed.is_shared:
            raise RunStoppedError(
                f"{listed.plugin} failed in {place}, and the listeners of the other processes "
                f"would wait for it: {why}; correct it, or continue without it"
            ) from error
        self._listed.remove(listed)
        self.switched_off.append(f"{listed.plugin} (after step {self.done})")
        text = f"{listed.plugin} failed in {place} and is not called again in this run: {why}"
        self.post(Notice(text, self.done, "warning"))

    def replay(self, line: Mapping[str, Any]) -> str:
        """Bring listeners with a method `replay` past a line of a resumed run's metrics.jsonl.

        Returns:
            The reason to finish that the line gives; "" if it gives none.
        """
        reasons = [
            listed.listener.replay(line)
            for listed in self._listed
            if not listed.plugin and hasattr(listed.listener, "replay")
        ]
        return next(filter(None, reasons), "")

    def states(self) -> dict[str, Any]:
        """Return the states of the listeners that have one, as JSON data, by name."""
        states = {}
        for listed in list(self._listed):
            if not hasattr(listed.listener, "state"):
                continue
            if not listed.plugin:
                states[listed.name] = listed.listener.state()
                continue
            try:
                states[listed.name] = isolated(partial(_json_state, listed.listener))
            except ForeignError as error:
                self._switch_off(listed, "state", error)
        return states

    def restore(self, states: Mapping[str, Any]) -> None:
        """Give the listeners the states of a checkpoint; who has none there begins anew."""
        for listed in list(self._listed):
            if listed.name not in states or not hasattr(listed.listener, "restore"):
                continue
            state = states[listed.name]
            if not listed.plugin:
                listed.listener.restore(state)
                continue
            try:
                isolated(partial(listed.listener.restore, state))
            except ForeignError as error:
                self._switch_off(listed, "restore", error)


def _json_state(listener: Any) -> Any:
    """Return the state of a listener as a checkpoint would give it back."""
    return json.loads(json.dumps(listener.state()))


def _checked(answer: object, event: Event, listed: Listed) -> Response | None:
    """Return the answer of a plugin's listener, all its metrics under the listener's name.

    Raises:
        ForeignError: it is not a response, or not one to this event.
    """
    if answer is None:
        return None
    if not isinstance(answer, Response):
        raise ForeignError(f"it returned {answer!r:.80}; return a Response or None")
    has_metrics = answer.metrics or answer.by_environment
    if has_metrics and not isinstance(event, BatchCollected):
        raise ForeignError("it returned metrics; they belong into the answer to BatchCollected")
    if answer.alarms and isinstance(event, AlarmRaised):
        raise ForeignError("it raised an alarm in answer to an alarm")
    for alarm in answer.alarms:
        if not isinstance(alarm, AlarmRaised):
            raise ForeignError(f"an alarm of it is {alarm!r:.80}; make it an AlarmRaised")
    if isinstance(answer.warnings, str):
        raise ForeignError("its warnings are a text; make them a list of texts")
    try:
        metrics = dict(_named_metrics(answer, listed))
    except (TypeError, ValueError, AttributeError) as error:
        raise ForeignError(f"its metrics are not numbers by name: {error}") from error
    return replace(
        answer,
        metrics=metrics,
        by_environment={},
        warnings=[str(text) for text in answer.warnings],
        stop=str(answer.stop),
        finish=str(answer.finish),
    )


def _named_metrics(answer: Response, listed: Listed) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a plugin's listener by their whole names.

    Raises:
        ForeignError: the run does not train on the environment of a metric.
    """
    for environment, metrics in answer.by_environment.items():
        if environment not in listed.environments:
            known = ", ".join(listed.environments)
            raise ForeignError(
                f"it returned metrics of {environment!r}; this run trains on {known}"
            )
        prefix = f"{environment}/" if len(listed.environments) > 1 else ""
        for key, value in metrics.items():
            yield f"{prefix}{listed.name}/{key}", float(value)
    for key, value in answer.metrics.items():
        yield f"{listed.name}/{key}", float(value)
