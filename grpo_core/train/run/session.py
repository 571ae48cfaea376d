"""The run around the steps: evaluations, logs, checkpoints, stop rules, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from filelock import FileLock
from torch import Tensor

from grpo_core.atomic import whole_folder
from grpo_core.card import make_card
from grpo_core.config import RunConfig
from grpo_core.curriculum import Curriculum
from grpo_core.error_rate import ErrorRate
from grpo_core.errors import GrpoError, RunStoppedError
from grpo_core.evaluate import Gain, paired_gain
from grpo_core.plugins import Observers
from grpo_core.runlog import RunFolder, read_lines, unwritable
from grpo_core.sources import Source, Sources
from grpo_core.train.compute.heap import Heap
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.memory import MB, Estimate, Footprint, Workload, said
from grpo_core.train.ranks import Ranks
from grpo_core.train.rollout import Budget
from grpo_core.train.run.checkpoint import Learned, checkpoints, load_checkpoint, save_checkpoint
from grpo_core.train.run.heldout import Judged, Scores, as_text, held_out, logged_scores
from grpo_core.train.run.hold import hold
from grpo_core.train.run.metrics import peak_memory_mb
from grpo_core.train.run.observe import Observer
from grpo_core.train.run.resume import settings_of
from grpo_core.train.run.stopping import Stopping
from grpo_core.train.run.warnings import Watch
from grpo_core.train.tasks import train_keys
from grpo_core.train.update import Updater
from grpo_core.types import Group, TaskKey


class Steps(Protocol):
    """What a session drives: the `Trainer`."""

    config: RunConfig
    sources: Sources
    total: int
    done: int
    stop_requested: bool
    ranks: Ranks
    load_seconds: float
    folder: RunFolder
    policy: Policy
    updater: Updater
    budgets: dict[str, Budget]
    curriculum: Curriculum
    position: int
    observer: Observer
    plugins: Observers
    error_rate: ErrorRate

    @property
    def method(self) -> str: ...

    @property
    def judged(self) -> Judged: ...

    def recorded(self) -> dict[str, Any]: ...

    footprint: Footprint

    async def ready(self) -> None: ...

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload: ...

    async def step(self, step: int) -> dict[str, float]: ...

    def stops(self) -> bool: ...


class Session:
    """One run of `trainer`, from the first evaluation to the folder final/."""

    def __init__(self, trainer: Steps) -> None:
        self._trainer = trainer
        self._watch = Watch()
        self._stopping = Stopping(trainer.config)
        self._memory: Estimate
        self._heap: Heap
        self._progress: dict[str, Any] = {}
        self._reason: str | None = None
        self._scores: tuple[int, Scores] = (-1, {})
        self._lock: FileLock | None = None

    async def run(self) -> dict[str, Gain]:
        """Train until the last step, a stop rule or a wish to stop; returns the gains on held-out tasks."""
        trainer, reason = self._trainer, "failed"
        try:
            async with trainer.sources:
                self._estimate(await self._probe())
                recorded = trainer.recorded()
                self._hold()
                if trainer.done == 0:
                    trainer.folder.start(recorded)
                trainer.folder.cards({source.name: card for source in trainer.sources if (card := await self._card(source)) is not None})
                self._tell(f"memory: {self._memory}")
                trainer.plugins.notify("grpo_run_start", run_dir=trainer.folder.path, config=recorded)
                gains = await self._run()
            reason = "finished" if trainer.folder.finished else "interrupted"
            return gains
        except torch.OutOfMemoryError as error:
            advice = "lower trainer.micro_batch_tokens or sampling.max_rows, then continue with --resume"
            reason = f"out of memory: {error}; {advice}"
            raise RunStoppedError(reason) from error
        except GrpoError as error:
            reason = str(error)
            raise
        except asyncio.CancelledError:  # Ctrl-C in a script, which installs no handler of its own
            reason = "cancelled"
            raise
        finally:
            self._save_after_failure(reason)
            trainer.plugins.notify("grpo_run_end", run_dir=trainer.folder.path, step=trainer.done, reason=reason)
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def resume(self) -> int:
        """Go back to the newest checkpoint, or to the start if there is none. Returns its step."""
        trainer = self._trainer
        self._hold()
        found = checkpoints(trainer.folder.path / "checkpoints")
        start: dict[str, Any] = {"step": 0, "sizes": {}}
        progress = load_checkpoint(found[-1], policy=trainer.policy, updater=trainer.updater) if found else start
        trainer.folder.cut(progress["sizes"])  # what the checkpoint does not name was not there yet
        trainer.ranks.meet()
        trainer.done = int(progress["step"])
        if found:
            trainer.curriculum.restore(progress["curriculum"])
            trainer.position = progress["position"]
        self._note()
        for line in read_lines(trainer.folder.path / "metrics.jsonl"):
            if "loss" in line:
                self._watch.look(line)  # said already
            self._reason = self._stopping.look(line) or (self._reason if "eval/reward/mean" in line else None)
            if "eval/reward/mean" in line and line["step"] == trainer.done:
                self._scores = (trainer.done, logged_scores(trainer.folder, step=trainer.done))
        return trainer.done

    def _hold(self) -> None:
        """Be the one who writes the run's folder."""
        if self._trainer.ranks.first and self._lock is None:
            self._lock = hold(self._trainer.folder.path)

    def record(self, step: int, groups: Sequence[Group[Any]], advantage_PG: Tensor) -> None:
        """Log every attempt, show one group now and then, tell the plugins; raises RunStoppedError if too many could not be judged."""
        trainer = self._trainer
        for group, advantage_G in zip(groups, advantage_PG.tolist(), strict=True):
            trainer.folder.rollouts(step, group, advantage_G)
        if _due(step, trainer.config.log.samples_every):
            trainer.folder.log(as_text(step, groups[0], advantage_PG[0].tolist()))
        trainer.error_rate.add([verdict for group in groups for verdict in group.verdicts])
        trainer.plugins.notify("grpo_verdicts", run_dir=trainer.folder.path, step=step, groups=groups)

    async def _run(self) -> dict[str, Gain]:
        trainer = self._trainer
        before = await self._scores_at_start()
        if 0 < trainer.done < trainer.total:
            await self._evaluate_if_due(trainer.done)  # a run that was stopped in that step has not done it
        while trainer.done < trainer.total and not trainer.stops() and self._reason is None:
            await self._one_step(trainer.done + 1)
        saved = self._checkpoint()
        if self._reason is not None:
            self._tell(f"stopping after step {trainer.done} of {trainer.total}: {self._reason}")
        after = None if trainer.stops() else await self._evaluate(trainer.done)
        if before is None or after is None:
            trainer.observer.say(f"stopped after step {trainer.done} of {trainer.total}; {saved}")
            return {}
        self._tell_of_best()
        measured = peak_memory_mb(trainer.policy.device) * MB
        self._tell(f"memory: at most {said(measured)} were used; {said(self._memory.peak)} had been estimated")
        names = " and ".join(source.name for source in trainer.sources.trained) or "examples"
        state = trainer.policy.state()
        title = f"{trainer.config.model.name} trained on {names} by {trainer.method}"
        trainer.folder.finish(lambda folder: trainer.policy.save(folder, state), title=title)
        trainer.ranks.meet()
        gains = _gains(before, after, [source.name for source in trainer.sources])
        trainer.observer.finished(gains)
        return gains

    async def _one_step(self, step: int) -> None:
        """A step with what is due after it."""
        trainer = self._trainer
        metrics = await trainer.step(step)
        if trainer.load_seconds:
            metrics["time/load"], trainer.load_seconds = trainer.load_seconds, 0.0
            metrics["memory/estimated_mb"] = self._memory.peak / MB
        trainer.done = step
        self._publish(step, metrics)
        self._note()
        self._heap.step_ended()
        if step < trainer.total and not trainer.stops():
            await self._evaluate_if_due(step)
            if _due(step, trainer.config.checkpoint.every):
                self._checkpoint()

    async def _evaluate_if_due(self, step: int) -> None:
        if _due(step, self._trainer.config.eval.every):
            await self._evaluate(step)
            self._note()

    async def _evaluate(self, step: int) -> Scores | None:
        """Held-out scores by task; {} if evaluation is off, None if a stop was requested before it was complete."""
        trainer = self._trainer
        if not trainer.config.eval.tasks or not len(trainer.sources):
            return {}
        if self._scores[0] == step:
            return self._scores[1]
        self._heap.empty()
        found = await held_out(
            trainer.config,
            trainer.sources,
            trainer.judged,
            trainer.folder,
            trainer.observer,
            step=step,
            stopped=trainer.stops,
        )
        self._heap.empty()
        if found is None:
            return None
        scores, metrics, verdicts = found
        self._scores = (step, scores)
        trainer.folder.metrics({"step": step, **metrics})
        trainer.observer.evaluated(step, metrics)
        trainer.plugins.notify("grpo_eval_end", run_dir=trainer.folder.path, step=step, metrics=metrics)
        trainer.error_rate.add(verdicts)
        best = self._stopping.best
        self._reason = self._stopping.look({"step": step, **metrics}) or self._reason
        if step and trainer.config.eval.every and self._stopping.best != best:
            self._keep_best()
        return scores

    async def _scores_at_start(self) -> Scores | None:
        """Scores before training; a resumed run reads them from its log."""
        return await self._evaluate(0) if self._trainer.done == 0 else logged_scores(self._trainer.folder, step=0)

    async def _card(self, source: Source) -> dict[str, Any] | None:
        """What is known of an environment, for the run's folder; a run that works goes on without."""
        try:
            return (await make_card(source, seed=self._trainer.config.seed)).to_json()
        except GrpoError as error:
            self._trainer.observer.warn(f"the run's folder has no card of {source.name!r}: {error}")
            return None

    async def _probe(self) -> list[tuple[int, ...]]:
        """Encode the first step's prompts, and one of each environment, so that what cannot work is found before anything is written."""
        trainer, found = self._trainer, []
        await trainer.ready()
        if not len(trainer.sources):
            return []
        keys = train_keys(trainer.config, trainer.sources, 0, trainer.config.prompts_per_step, trainer.curriculum.levels)
        first = {s.name: TaskKey(s.name, "train" if s.share else "eval", 0, trainer.config.seed, s.level) for s in trainer.sources}
        for task in await trainer.sources.tasks(list(dict.fromkeys([*keys, *first.values()]))):
            budget = trainer.budgets[task.key.env]
            ids = trainer.policy.encode_checked(task.prompt, max_new_tokens=budget.turn, tools=budget.tools)
            found.append(ids)
            if budget.tools and ids == trainer.policy.encode(task.prompt):
                trainer.observer.warn(
                    f"the model's chat template has no place for tools, so the policy is not told of those of {task.key.env!r}; "
                    "set model.chat_template, or describe them in the prompt"
                )
        return found

    def _estimate(self, prompts: Sequence[tuple[int, ...]]) -> None:
        trainer = self._trainer
        shared_by = trainer.ranks.size if trainer.policy.sharded else 1
        work = trainer.workload(prompts)
        self._memory = trainer.footprint.estimate(trainer.policy, trainer.config, work, processes=shared_by)
        self._memory.check(trainer.config, trainer.observer.warn)
        self._heap = Heap(trainer.policy.device, expected=self._memory.peak)

    def _publish(self, step: int, metrics: dict[str, float]) -> None:
        trainer = self._trainer
        trainer.folder.metrics({"step": step, **metrics})
        trainer.observer.step(step, trainer.total, metrics)
        trainer.plugins.notify("grpo_step_end", run_dir=trainer.folder.path, step=step, metrics=metrics)
        for warning in self._watch.look(metrics):
            trainer.folder.log(f"warning, step {step}: {warning}")
            trainer.observer.warn(warning)
        self._reason = self._stopping.look({"step": step, **metrics})

    def _note(self) -> None:
        """What a checkpoint of now has to hold: a step that fails later must not change it."""
        trainer = self._trainer
        self._progress = {"sizes": trainer.folder.sizes(), "curriculum": trainer.curriculum.state(), "position": trainer.position}

    def _tell(self, text: str) -> None:
        self._trainer.observer.say(text)
        self._trainer.folder.log(text)

    def _checkpoint(self) -> str:
        """Save the state after the last finished step, unless nothing was done yet; says what was saved."""
        trainer = self._trainer
        if trainer.done == 0:
            return "no step was finished, so there is nothing to save"
        path = trainer.folder.path / "checkpoints"
        learned = Learned.of(trainer.policy, trainer.updater)
        if trainer.ranks.first:
            path = save_checkpoint(
                path,
                learned,
                step=trainer.done,
                policy=trainer.policy,
                updater=trainer.updater,
                more={**self._progress, "config": settings_of(trainer.folder.config())},
                keep=trainer.config.checkpoint.keep,
            )
        return f"saved {path}; continue with --resume {trainer.folder.path}"

    def _keep_best(self) -> None:
        """checkpoints/best/: the weights with the highest held-out reward so far, as transformers and peft load them."""
        folder, best = self._trainer.folder.path / "checkpoints", self._stopping.best
        assert best is not None
        state = self._trainer.policy.state()
        if not self._trainer.ranks.first:
            return
        try:
            with whole_folder(folder / "best") as partial:
                self._trainer.policy.save(partial, state)
                (partial / "best.json").write_text(json.dumps({"step": best.step, "reward": best.reward}) + "\n", encoding="utf-8")
        except OSError as error:
            raise unwritable(folder / "best", error) from None

    def _tell_of_best(self) -> None:
        best, trainer = self._stopping.best, self._trainer
        if best is not None and 0 < best.step < trainer.done:
            kept = trainer.folder.path / "checkpoints" / "best"
            self._tell(f"the held-out reward was highest after step {best.step} ({best.reward:.3f}); those weights are in {kept}")

    def _save_after_failure(self, reason: str) -> None:
        """A run that ended on an error keeps its last finished step, if the weights still are those after it."""
        trainer, saved = self._trainer, ""
        if reason in ("finished", "interrupted", "failed") or not (trainer.folder.path / "config.json").exists():
            return
        if trainer.ranks.first and self._lock is None:  # it is the run of another process
            return
        if trainer.policy.sharded:  # the other processes, whose parts are missing here, may be gone
            saved = "the weights are shared out, so older checkpoints hold"
        elif trainer.updater.steps:
            saved = "the step under way had changed weights, so older checkpoints hold"
        try:
            saved = saved or self._checkpoint()
            trainer.folder.log(f"stopped after step {trainer.done}: {reason}; {saved}")
        except GrpoError as error:  # a disk that is full is full here, too; what ended the run is what the caller has to hear
            saved = f"the last steps could not be saved: {error}"
        trainer.observer.say(saved)


def _gains(before: Scores, after: Scores, names: Sequence[str]) -> dict[str, Gain]:
    """Gains by what was measured; with several environments each has its own."""
    found = {}
    for name in names:
        for column in ("reward", "pass_rate"):
            gain = paired_gain(_column(before, name, column), _column(after, name, column))
            if gain is not None:
                found[column if len(names) == 1 else f"{name} {column}"] = gain
    return found


def _column(scores: Scores, name: str, column: str) -> dict[TaskKey, float]:
    return {key: values[column] for key, values in scores.items() if key.env == name}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
