"""Run a method's steps with evaluations, logs, checkpoints, stop rules and a safe end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from grpo_core.calls.deadline import describe
from grpo_core.calls.phases import phase
from grpo_core.engine.compute.heap import Heap
from grpo_core.engine.policy.memory_estimate import MB, format_bytes
from grpo_core.figures.gains import Gain, Scores, against_audit, gains_of
from grpo_core.protocol.errors import ConfigError, GrpoError, RunStoppedError
from grpo_core.protocol.events import (
    EvaluationEnded,
    EvaluationProgress,
    Event,
    RunEnded,
    RunStarted,
    StepEnded,
)
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.gains import logged_scores
from grpo_core.runs.lines import Kind, kind_of
from grpo_core.runs.model_card import model_card
from grpo_core.runs.starting import Note, starting
from grpo_core.runs.trust import remember
from grpo_core.train.run.checkpoint import load_checkpoint, saved_optimizer_name
from grpo_core.train.run.ending import EndKind, RunEnd
from grpo_core.train.run.journal import Journal, notices
from grpo_core.train.run.measure import evaluate_held_out
from grpo_core.train.run.method import Clock, Method
from grpo_core.train.run.metrics import peak_memory_mb
from grpo_core.train.run.model_look import look_at_model
from grpo_core.train.run.opening import (
    create_first_tasks,
    encode_first_prompts,
    estimate_needs,
    recorded_config,
)
from grpo_core.train.run.references import check_references
from grpo_core.train.run.rewind import Restart, choose_checkpoint
from grpo_core.train.run.rows import look_at_rows
from grpo_core.train.run.run_log import is_due
from grpo_core.train.run.sampling_check import check_sampler
from grpo_core.train.run.saving import Saving
from grpo_core.train.run.services import ActorServices, describe_trained
from grpo_core.train.run.stopping import Stopping
from grpo_core.train.run.stream import Answers, Listed, Stream
from grpo_core.verify.card import make_card
from grpo_core.verify.sources import Source


class Run:
    """Train by a method, from the first evaluation to the folder final/.

    Args:
        method: collects batches and updates on them.
        folder: where everything is written; nothing is before the first step.
        journal: tells the user what happens.
        stream: takes the events of the run to its listeners.
        list_listeners: returns new listeners in their order; called again where the run goes back
            to a checkpoint.
    """

    def __init__(
        self,
        method: Method,
        folder: RunFolder,
        *,
        journal: Journal,
        stream: Stream,
        list_listeners: Callable[[Saving, Stopping], Sequence[Listed]],
    ) -> None:
        self.method = method
        self.folder = folder
        self.done = 0
        """The last finished step."""
        self.end: RunEnd | None = None
        """How the run ended; None before its end."""
        self.is_own = True
        """Whether the user consents to all settings; not if a resumed run has others left."""
        self._actor, self._config = method.actor, method.actor.config
        self._stream, self._list_listeners = stream, list_listeners
        self._journal = journal
        self._saving = Saving(method, folder, journal, states=stream.states)
        self._load_seconds = self._actor.load_seconds
        self._has_started = False
        self._state_at_start = method.stream.state()
        self._finish_reason: str
        """Why the run finishes early; "" if it does not."""
        self._first_scores: Scores | None
        """The scores before training; None until they are known."""
        self._scores: tuple[int, Scores]
        """Step of the last evaluation, and its scores."""
        self._forget_metrics()

    async def train(self) -> dict[str, Gain]:
        """Train until the last step, a stop rule or a requested stop.

        Returns:
            The gains on held-out tasks, by environment; {} after a requested stop.

        Raises:
            RunStoppedError: the device is out of memory, or too many rollouts could not be scored.
        """
        has_failed = self.end is not None and self.end.kind in (EndKind.FAILED, EndKind.CANCELLED)
        if has_failed and self._has_started:
            self.resume()  # the unfinished step may have changed weights, logs and position
        end = self._make_end(EndKind.FAILED)
        gains: dict[str, Gain] | None = None
        try:
            async with self._actor.sources, self._actor.sampling():
                first = self._actor.ranks.first
                doing = "preparing the first step"
                with starting(self.folder.shown, doing) if first else nullcontext() as note:
                    await self._open(note)
                with notices(self._journal.warn_again):
                    gains, end = await self._train()
            return gains
        except torch.OutOfMemoryError as error:
            advice = "lower trainer.micro_batch_tokens or sampling.max_rows"
            if self._saving.lock is not None:
                advice += ", then continue with --resume"
            end = self._make_end(EndKind.FAILED, f"out of memory: {error}; {advice}")
            raise RunStoppedError(end.reason) from error
        except asyncio.CancelledError:  # Ctrl-C in a script, which installs no handler of its own
            end = self._make_end(EndKind.CANCELLED)
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, GrpoError) else describe(error)
            end = self._make_end(EndKind.FAILED, reason)
            raise
        finally:
            self.end = self._saving.end(end)
            if self._has_started:
                reason = end.reason or str(end.kind)
                has_finished = end.kind in (EndKind.FINISHED, EndKind.UNSCORED)
                await self._stream.emit(
                    RunEnded(self.done, reason, gains if has_finished else None)
                )
                for name in self._stream.switched_off:
                    self._journal.warn_again(
                        f"{name} failed during the run and has only a part of it; "
                        f"{self.folder.shown / 'metrics.jsonl'} has all"
                    )
            self._saving.release()

    def resume(self, restart: Restart | None = None) -> int:
        """Go back to a checkpoint, by default the newest, or to the start.

        Returns:
            The step of the checkpoint.

        Raises:
            ConfigError: there is no checkpoint, but the weights are no longer those of the start.
        """
        self._saving.hold()
        try:
            self._go_back(restart or choose_checkpoint(self.folder))
        except BaseException:
            self._saving.release()
            raise
        return self.done

    def _go_back(self, restart: Restart) -> None:
        if restart.checkpoint is None and (self.done or self.method.updater.steps):
            raise ConfigError(
                f"{self.folder.shown} has no checkpoint, and training has changed the weights; "
                "make a new trainer to start again"
            )
        self._forget_metrics()
        if restart.checkpoint is not None:
            load_checkpoint(
                restart.checkpoint, policy=self._actor.policy, updater=self.method.updater
            )
            saved_name = saved_optimizer_name(restart.progress)
            if saved_name != (name := self._config.optimizer.name):
                self._journal.warn(
                    f"the checkpoint holds the running means of {saved_name}; {name} "
                    "begins without any"
                )
        self._actor.updated(restart.step)
        self._saving.rewind(restart)
        self._actor.ranks.meet()
        self.done = self._stream.done = restart.step
        self.method.stream.restore(restart.progress if restart.checkpoint else self._state_at_start)
        # Older versions stored the state of the alarms alone.
        states = restart.progress.get("listeners") or {"alarms": restart.progress.get("alarms", {})}
        self._stream.restore(states)
        self._saving.note(self.done)
        self._read_metrics()
        self._saving.align_best(self._stopping.best)

    def record_changes(self, changed: Mapping[str, str]) -> None:
        """Record that the run continues with other settings.

        Args:
            changed: for each setting that differs, its old and new value, as text.
        """
        self._start_folder(recorded_config(self.method))
        self._journal.begin(self.folder)
        if changed:
            self._journal.announce(f"from step {self.done + 1} on: {'; '.join(changed.values())}")
        self._saving.note(self.done)
        self._saving.record_settings()

    async def _open(self, note: Note | None) -> None:
        """Check and announce what the run needs, and start its folder.

        Args:
            note: gets the estimate of memory, for the case that this process is killed.
        """
        actor, journal = self._actor, self._journal
        with phase("starting the environments and creating the first tasks", journal.say):
            await look_at_rows(self.method, journal)
            tasks = await create_first_tasks(self.method)
            prompts = encode_first_prompts(self.method, tasks, journal)
        look_at_model(actor, tasks, prompts, journal)
        if self.done == 0:
            with phase("verifying the reference answers of the first tasks", journal.say):
                keys = [task.key for task in tasks]
                await check_references(actor, keys, warn=journal.warn, refuse=True)
        self._memory, disk = estimate_needs(
            self.method,
            prompts,
            path=self.folder.path,
            steps=self.method.total - self.done,
            observer=journal,
        )
        if note is not None:
            note.add(estimate=self._memory.peak, free=self._memory.free)
        with phase("comparing the sampler's log-probs with the trainer's", journal.say):
            await check_sampler(actor, prompts, journal)
        self._heap = Heap(actor.policy.device, expected=self._memory.peak)
        record = recorded_config(self.method)
        self._saving.hold()
        if self.done == 0:
            self._start_folder(record)
        journal.begin(self.folder)
        with phase("writing the cards of the environments", journal.say):
            cards = {source.name: await self._card(source) for source in actor.sources}
        self.folder.cards({name: card for name, card in cards.items() if card is not None})
        if actor.defaults:
            journal.announce(actor.defaults)
        journal.announce(f"memory: {self._memory}")
        journal.announce(f"disk: {disk}")
        self._has_started = True
        trained = tuple(describe_trained(source) for source in actor.sources.trained)
        own, shared = (
            RunStarted(
                self.folder.path,
                MappingProxyType(record),
                ActorServices(actor, is_shared=is_shared),
                trained,
            )
            for is_shared in (False, True)
        )
        await self._emit(own, shared=shared)

    def _start_folder(self, record: Mapping[str, Any]) -> None:
        """Remember that the user uses the settings, and write config.json.

        In this order, so that a run that is killed in between is not asked about later.
        """
        if self.is_own:
            remember(self.folder.path, record)
        self.folder.start(record)

    async def _train(self) -> tuple[dict[str, Gain], RunEnd]:
        """Train, evaluate, and write final/; return the gains and how the run ended."""
        actor, total = self._actor, self.method.total
        if self.done == 0:
            before = await self._evaluate(0)
        else:  # a resumed run reads the scores before training from its log
            before = self._first_scores = logged_scores(self.folder, [0])[0]
        if 0 < self.done < total:
            # A run that was stopped in that step has not evaluated after it.
            await self._evaluate_if_due(self.done)
        async with self.method.collecting():
            while self.done < total and not actor.stops() and not self._finishes():
                await self._step(self.done + 1)
        saved = self._saving.checkpoint()
        if self._finish_reason:
            self._journal.announce(
                f"stopping after step {self.done} of {total}: {self._finish_reason}"
            )
        after = None if actor.stops() else await self._evaluate(self.done)
        if before is None or after is None:
            end = self._make_end(EndKind.STOPPED, actor.stop.reason, saved)
            self._journal.say(str(end))
            return {}, end
        gains = gains_of(before, after, [source.name for source in actor.sources])
        self._write_result(gains)
        if before and after and before.keys().isdisjoint(after):
            self._journal.warn(
                "the held-out tasks are not those of the start, as the settings changed, so no "
                "gains can be reported"
            )
        for warning in against_audit(gains):
            self._journal.warn(warning)
        if self._config.eval.tasks and len(actor.sources) and not after:
            reason = f" ({self._journal.unscored})" if self._journal.unscored else ""
            return gains, self._make_end(
                EndKind.UNSCORED,
                f"none of the held-out tasks could be scored{reason}, so the gain is unknown",
            )
        return gains, self._make_end(EndKind.FINISHED, self._finish_reason)

    async def _step(self, step: int) -> None:
        """Do a step, and the evaluation and checkpoint that are due after it."""
        clock = Clock()
        batch, rows = await self.method.collect(step, clock)
        answers = await self._emit(batch, lap=clock.lap)
        own_metrics = await self.method.update(batch, rows, clock)
        metrics = own_metrics | answers.metrics | own_metrics  # ours first, and never replaced
        if self._load_seconds:
            metrics["time/load"], self._load_seconds = self._load_seconds, 0.0
            metrics["memory/estimated_mb"] = self._memory.peak / MB
        self.done = self._stream.done = step
        self._saving.note(step, pending={"step": step, "kind": Kind.STEP, **metrics})
        self.method.updater.steps = 0  # from here on the weights are those after this step
        await self._emit(StepEnded(step, self.method.total, MappingProxyType(metrics)))
        self._saving.note(step)
        self._heap.step_ended()
        if step < self.method.total and not self._actor.stops():
            await self._evaluate_if_due(step)
            if is_due(step, self._config.checkpoint.every):
                async with self._actor.holding_weights():
                    self._saving.checkpoint()

    async def _emit(
        self,
        event: Event,
        *,
        shared: Event | None = None,
        lap: Callable[[str], None] = lambda name: None,
    ) -> Answers:
        """Emit an event; note the requests to stop or to finish that listeners answer."""
        answers = await self._stream.emit(event, shared=shared, lap=lap)
        if answers.stop:
            self._actor.stop.make(answers.stop)
        self._finish_reason = self._finish_reason or answers.finish
        return answers

    def _finishes(self) -> bool:
        """Return whether a listener in any process asks the run to finish."""
        reasons = self._actor.ranks.gather_values(self._finish_reason)
        self._finish_reason = next(filter(None, reasons), "")
        return bool(self._finish_reason)

    async def _evaluate_if_due(self, step: int) -> None:
        if is_due(step, self._config.eval.every):
            await self._evaluate(step)
            self._saving.note(self.done)

    async def _evaluate(self, step: int) -> Scores | None:
        """Evaluate on held-out tasks, unless that was done after this step.

        Returns:
            The scores by task; {} if evaluation is off, None if a stop was requested before the
            end.
        """
        if not self._config.eval.tasks or not len(self._actor.sources):
            return {}
        if self._scores[0] == step:
            return self._scores[1]
        self._heap.empty()
        evaluation = await evaluate_held_out(
            self._actor,
            progress=lambda done, total: self._stream.post(EvaluationProgress(done, total)),
        )
        self._heap.empty()
        if evaluation is None:
            return None
        groups, scores, metrics = evaluation
        self._scores = (step, scores)
        if step == 0:
            self._first_scores = scores
        before = MappingProxyType(self._first_scores or {})
        await self._emit(
            EvaluationEnded(
                step, MappingProxyType(metrics), tuple(groups), MappingProxyType(scores), before
            )
        )
        return scores

    def _forget_metrics(self) -> None:
        """Set what is derived from the metrics to what it is before the first line."""
        self._stopping = Stopping(self._config)
        self._stream.listen(
            self._list_listeners(self._saving, self._stopping),
            fatal=(RunStoppedError, torch.OutOfMemoryError),
        )
        self._finish_reason = ""
        self._scores = (-1, {})
        self._first_scores = None

    def _read_metrics(self) -> None:
        """Bring warnings, stop rules and scores to where the log of a resumed run ends."""
        for line in self.folder.metric_lines():
            is_evaluation = kind_of(line) is Kind.EVALUATION
            # Only the last step and its evaluation decide.
            reason = self._stream.replay(line)
            self._finish_reason = reason or (self._finish_reason if is_evaluation else "")
            if is_evaluation and line["step"] == self.done:
                self._scores = (self.done, logged_scores(self.folder, [self.done])[self.done])

    async def _card(self, source: Source) -> dict[str, Any] | None:
        """Return the card of an environment for the run folder.

        If it cannot be made, the run continues without it.
        """
        try:
            card = await make_card(source, seed=self._config.seed)
            return replace(card, overlap_turns=self._actor.overlaps_turns(source)).to_json()
        except GrpoError as error:
            self._journal.warn(f"the run's folder has no card of {source.name!r}: {error}")
            return None

    def _write_result(self, gains: Mapping[str, Gain]) -> None:
        """Write final/, and say what is known at the end."""
        actor, policy = self._actor, self._actor.policy
        best = self._stopping.best
        if best is not None and 0 < best.step < self.done:
            kept = (
                f"; those weights are in {self._saving.best_folder}"
                if self._saving.best_step() == best.step
                else ""
            )
            self._journal.announce(
                f"the held-out reward was highest after step {best.step} ({best.reward:.3f}){kept}"
            )
        self._journal.announce(
            f"memory: at most {format_bytes(peak_memory_mb(policy.device) * MB)} were used; "
            f"{format_bytes(self._memory.peak)} had been estimated"
        )
        state = policy.state()
        location = str(self.folder.shown / "final")
        self.folder.finish(
            lambda folder: policy.save(folder, state),
            card=lambda saved: model_card(self.folder, saved, location=location, gains=gains),
        )
        actor.ranks.meet()

    def _make_end(self, kind: EndKind, reason: str = "", saved: str = "") -> RunEnd:
        """Return the end of the run at the last finished step."""
        return RunEnd(kind, self.done, self.method.total, reason, saved)
