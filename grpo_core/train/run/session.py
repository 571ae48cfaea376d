"""Run the steps with their evaluations, logs, checkpoints, stop rules and a safe end."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.calls.deadline import describe
from grpo_core.protocol.errors import GrpoError, RunStoppedError
from grpo_core.protocol.types import Group, TaskKey, Verdict
from grpo_core.report.card import make_card
from grpo_core.report.gains import Scores, against_audit, gains_of, logged_scores
from grpo_core.report.statistics import Gain
from grpo_core.train.compute.heap import Heap
from grpo_core.train.policy.memory import MB, Estimate, said
from grpo_core.train.rollout.tasks import train_keys
from grpo_core.train.run.checkpoint import load_checkpoint, saved_optimizer_name
from grpo_core.train.run.ending import EndKind, RunEnd
from grpo_core.train.run.heldout import evaluate_held_out, format_group
from grpo_core.train.run.metrics import peak_memory_mb
from grpo_core.train.run.notices import notices
from grpo_core.train.run.rewind import Restart, choose_checkpoint
from grpo_core.train.run.saving import Saving
from grpo_core.train.run.space import DiskEstimate, estimate_disk
from grpo_core.train.run.steps import Steps, announce
from grpo_core.train.run.stopping import Stopping
from grpo_core.train.run.warnings import Watch
from grpo_core.verify.sources import Source

MAX_REPORTED_ERRORS = 10
"""Most different reasons for unscored rollouts that are reported; rollouts.jsonl has them all."""
_TASK_KEY = re.compile(r"TaskKey\([^)]*\)")


class Session:
    """Runs `trainer`, from the first evaluation to the folder final/."""

    def __init__(self, trainer: Steps) -> None:
        self._trainer = trainer
        self._watch = Watch()
        self._stopping = Stopping(trainer.config)
        self._memory: Estimate
        self._disk: DiskEstimate
        self._heap: Heap
        self._saving = Saving(trainer)
        self._stop_reason: str | None = None
        self._scores: tuple[int, Scores] = (-1, {})
        self._end: tuple[EndKind, str] | tuple[EndKind, str, str] = (EndKind.FAILED, "")
        self._most_common_error = ""
        self._reported_errors: set[str] = set()

    async def run(self) -> dict[str, Gain]:
        """Train until the last step, a stop rule or a requested stop.

        Returns:
            The gains on held-out tasks, by environment.

        Raises:
            RunStoppedError: the device is out of memory, or too many rollouts could not be scored.
        """
        trainer = self._trainer
        end = self._run_end(EndKind.FAILED)
        try:
            async with trainer.sources:
                self._estimate_needs(await self._encode_first_prompts())
                recorded = trainer.recorded()
                self._saving.hold()
                if trainer.done == 0:
                    trainer.folder.start(recorded)
                trainer.folder.cards(
                    {
                        source.name: card
                        for source in trainer.sources
                        if (card := await self._card(source)) is not None
                    }
                )
                announce(trainer, f"memory: {self._memory}")
                announce(trainer, f"disk: {self._disk}")
                trainer.plugins.notify(
                    "grpo_run_start", run_dir=trainer.folder.path, config=recorded
                )
                with notices(self._warn):
                    gains = await self._run()
            end = self._run_end(*self._end)
            return gains
        except torch.OutOfMemoryError as error:
            advice = (
                "lower trainer.micro_batch_tokens or sampling.max_rows, then continue with --resume"
            )
            end = self._run_end(EndKind.FAILED, f"out of memory: {error}; {advice}")
            raise RunStoppedError(end.reason) from error
        except asyncio.CancelledError:  # Ctrl-C in a script, which installs no handler of its own
            end = self._run_end(EndKind.CANCELLED)
            raise
        except BaseException as error:
            end = self._run_end(
                EndKind.FAILED, str(error) if isinstance(error, GrpoError) else describe(error)
            )
            raise
        finally:
            trainer.end = self._saving.end(end)
            trainer.plugins.notify(
                "grpo_run_end",
                run_dir=trainer.folder.path,
                step=trainer.done,
                reason=end.reason or str(end.kind),
            )
            self._saving.release()

    def _run_end(self, kind: EndKind, reason: str = "", saved: str = "") -> RunEnd:
        """Return the end of the run at the last finished step."""
        return RunEnd(kind, self._trainer.done, self._trainer.total, reason, saved)

    def resume(self, restart: Restart | None = None) -> int:
        """Go back to a checkpoint, by default the newest, or to the start.

        Returns:
            The step of the checkpoint.
        """
        trainer = self._trainer
        self._saving.hold()
        restart = restart or choose_checkpoint(trainer.folder)
        progress = restart.progress
        if restart.checkpoint is not None:
            load_checkpoint(restart.checkpoint, policy=trainer.policy, updater=trainer.updater)
        self._saving.rewind(restart)
        trainer.ranks.meet()
        trainer.done = restart.step
        if restart.checkpoint is not None:
            trainer.curriculum.restore(progress["curriculum"])
            trainer.position = progress["position"]
            if (saved_optimizer := saved_optimizer_name(progress)) != (
                optimizer := trainer.config.optimizer.name
            ):
                trainer.observer.warn(
                    f"the checkpoint holds the running means of {saved_optimizer}; {optimizer} "
                    "begins without any"
                )
        self._saving.note()
        for line in trainer.folder.metric_lines():
            if "loss" in line:
                self._watch.look(line)  # reported already
            self._stop_reason = self._stopping.look(line) or (
                self._stop_reason if "eval/reward/mean" in line else None
            )
            if "eval/reward/mean" in line and line["step"] == trainer.done:
                self._scores = (
                    trainer.done,
                    logged_scores(trainer.folder, [trainer.done])[trainer.done],
                )
        self._saving.restore_best(self._stopping.best)
        return trainer.done

    def record_changes(self, changed: Mapping[str, str]) -> None:
        """Record that the run continues with other settings.

        Args:
            changed: for each setting that differs, its old and new value, as text.
        """
        if changed:
            announce(
                self._trainer,
                f"from step {self._trainer.done + 1} on: {'; '.join(changed.values())}",
            )
        self._saving.note()
        self._saving.record_settings()

    def record(self, step: int, groups: Sequence[Group[Any]], advantage_PG: Tensor) -> None:
        """Log every rollout, write one group to log.txt now and then, and notify the plugins.

        Raises:
            RunStoppedError: too many rollouts could not be scored.
        """
        trainer = self._trainer
        for group, advantage_G in zip(groups, advantage_PG.tolist(), strict=True):
            trainer.folder.rollouts(step, group, advantage_G)
        if _due(step, trainer.config.log.samples_every):
            trainer.folder.log(format_group(step, groups[0], advantage_PG[0].tolist()))
        verdicts = [verdict for group in groups for verdict in group.verdicts]
        self._warn_of_errors(verdicts, f"attempts of step {step}")
        trainer.error_rate.add(verdicts)
        trainer.plugins.notify(
            "grpo_verdicts", run_dir=trainer.folder.path, step=step, groups=groups
        )

    async def _run(self) -> dict[str, Gain]:
        """Train, evaluate, and write final/; return the gains, {} after a requested stop."""
        trainer = self._trainer
        before = await self._scores_at_start()
        if 0 < trainer.done < trainer.total:
            # A run that was stopped in that step has not evaluated after it.
            await self._evaluate_if_due(trainer.done)
        while trainer.done < trainer.total and not trainer.stops() and self._stop_reason is None:
            await self._step_and_follow_up(trainer.done + 1)
        saved = self._saving.checkpoint()
        if self._stop_reason is not None:
            announce(
                trainer,
                f"stopping after step {trainer.done} of {trainer.total}: {self._stop_reason}",
            )
        after = None if trainer.stops() else await self._evaluate(trainer.done)
        if before is None or after is None:
            self._end = (EndKind.STOPPED, trainer.stop_reason, saved)
            trainer.observer.say(str(self._run_end(*self._end)))
            return {}
        self._announce_best()
        measured = peak_memory_mb(trainer.policy.device) * MB
        announce(
            trainer,
            f"memory: at most {said(measured)} were used; {said(self._memory.peak)} had been "
            "estimated",
        )
        names = " and ".join(source.name for source in trainer.sources.trained) or "examples"
        state = trainer.policy.state()
        title = f"{trainer.config.model.name} trained on {names} by {trainer.method}"
        trainer.folder.finish(lambda folder: trainer.policy.save(folder, state), title=title)
        trainer.ranks.meet()
        gains = gains_of(before, after, [source.name for source in trainer.sources])
        if before and after and before.keys().isdisjoint(after):
            trainer.observer.warn(
                "the held-out tasks are not those of the start, as the settings changed, so no "
                "gains can be reported"
            )
        trainer.observer.finished(gains)
        for warning in against_audit(gains):
            self._warn(warning)
        self._end = (EndKind.FINISHED, self._stop_reason or "")
        if trainer.config.eval.tasks and len(trainer.sources) and not after:
            self._end = (
                EndKind.UNSCORED,
                f"none of the held-out tasks could be scored ({self._most_common_error}), so the "
                "gain is unknown",
            )
        return gains

    async def _step_and_follow_up(self, step: int) -> None:
        """Do a step, and the evaluation and checkpoint that are due after it."""
        trainer = self._trainer
        metrics = await trainer.step(step)
        if trainer.load_seconds:
            metrics["time/load"], trainer.load_seconds = trainer.load_seconds, 0.0
            metrics["memory/estimated_mb"] = self._memory.peak / MB
        trainer.done = step
        line = {"step": step, **metrics}
        self._saving.note(pending=line)
        trainer.folder.metrics(line)
        self._saving.note()
        self._publish(step, metrics)
        self._heap.step_ended()
        if step < trainer.total and not trainer.stops():
            await self._evaluate_if_due(step)
            if _due(step, trainer.config.checkpoint.every):
                self._saving.checkpoint()

    async def _evaluate_if_due(self, step: int) -> None:
        if _due(step, self._trainer.config.eval.every):
            await self._evaluate(step)
            self._saving.note()

    async def _evaluate(self, step: int) -> Scores | None:
        """Evaluate on held-out tasks, unless that was done after this step.

        Returns:
            The scores by task; {} if evaluation is off, None if a stop was requested before the
            end.
        """
        trainer = self._trainer
        if not trainer.config.eval.tasks or not len(trainer.sources):
            return {}
        if self._scores[0] == step:
            return self._scores[1]
        self._heap.empty()
        evaluation = await evaluate_held_out(trainer, step=step)
        self._heap.empty()
        if evaluation is None:
            return None
        scores, metrics, verdicts = evaluation
        self._scores = (step, scores)
        self._most_common_error = self._warn_of_errors(verdicts, "held-out tasks")
        trainer.folder.metrics({"step": step, **metrics})
        trainer.observer.evaluated(step, metrics)
        trainer.plugins.notify(
            "grpo_eval_end", run_dir=trainer.folder.path, step=step, metrics=metrics
        )
        trainer.error_rate.add(verdicts)
        best_before = self._stopping.best
        self._stop_reason = self._stopping.look({"step": step, **metrics}) or self._stop_reason
        if (
            step
            and trainer.config.eval.every
            and self._stopping.best is not None
            and self._stopping.best != best_before
        ):
            self._saving.save_best(self._stopping.best)
        return scores

    async def _scores_at_start(self) -> Scores | None:
        """Return the scores before training; a resumed run reads them from its log."""
        return (
            await self._evaluate(0)
            if self._trainer.done == 0
            else logged_scores(self._trainer.folder, [0])[0]
        )

    async def _card(self, source: Source) -> dict[str, Any] | None:
        """Return the card of an environment for the run folder.

        If it cannot be made, the run continues without it.
        """
        try:
            return (await make_card(source, seed=self._trainer.config.seed)).to_json()
        except GrpoError as error:
            self._trainer.observer.warn(f"the run's folder has no card of {source.name!r}: {error}")
            return None

    async def _encode_first_prompts(self) -> list[tuple[int, ...]]:
        """Encode the first step's prompts, and one of each environment.

        Problems then show before anything is written.
        """
        trainer, prompts = self._trainer, []
        await trainer.ready()
        if not len(trainer.sources):
            return []
        keys = train_keys(
            trainer.config,
            trainer.sources,
            0,
            trainer.config.prompts_per_step,
            trainer.curriculum.levels,
        )
        first_keys = {
            source.name: TaskKey(
                source.name,
                "train" if source.share else "eval",
                0,
                trainer.config.seed,
                source.level,
            )
            for source in trainer.sources
        }
        for task in await trainer.sources.tasks(list(dict.fromkeys([*keys, *first_keys.values()]))):
            budget = trainer.budgets[task.key.env]
            prompt_ids = trainer.policy.encode_checked(
                task.prompt, max_new_tokens=budget.turn, tools=budget.tools
            )
            prompts.append(prompt_ids)
            if budget.tools and prompt_ids == trainer.policy.encode(task.prompt):
                trainer.observer.warn(
                    "the model's chat template has no place for tools, so the policy does not "
                    f"see those of {task.key.env!r}; set model.chat_template, or describe them in "
                    "the prompt"
                )
        return prompts

    def _estimate_needs(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Estimate memory and disk space, and warn if they may not suffice."""
        trainer = self._trainer
        shared_by = trainer.ranks.size if trainer.policy.sharded else 1
        work = trainer.workload(prompts)
        self._memory = trainer.footprint.estimate(
            trainer.policy, trainer.config, work, processes=shared_by
        )
        self._memory.check(trainer.config, trainer.observer.warn)
        self._heap = Heap(trainer.policy.device, expected=self._memory.peak)
        steps = trainer.total - trainer.done
        self._disk = estimate_disk(
            trainer.folder.path, trainer.footprint, trainer.config, steps=steps, new_tokens=work.new
        )
        self._disk.check(trainer.observer.warn)

    def _publish(self, step: int, metrics: dict[str, float]) -> None:
        """Report a finished step to observer, plugins, warnings and stop rules."""
        trainer = self._trainer
        trainer.observer.step(step, trainer.total, metrics)
        trainer.plugins.notify(
            "grpo_step_end", run_dir=trainer.folder.path, step=step, metrics=metrics
        )
        for warning in self._watch.look(metrics):
            self._warn(warning)
        self._stop_reason = self._stopping.look({"step": step, **metrics})

    def _warn_of_errors(self, verdicts: Sequence[Verdict], rollouts: str) -> str:
        """Warn why rollouts could not be scored, each reason once; return the most common one."""
        reasons = Counter(
            _TASK_KEY.sub("a task", verdict.error) for verdict in verdicts if verdict.error
        )
        if not reasons:
            return ""
        reason, count = reasons.most_common(1)[0]
        if reason not in self._reported_errors and len(self._reported_errors) < MAX_REPORTED_ERRORS:
            self._reported_errors.add(reason)
            self._warn(f"{count} of {len(verdicts)} {rollouts} could not be scored: {reason}")
        return reason

    def _warn(self, text: str) -> None:
        self._trainer.folder.log(f"warning, step {self._trainer.done}: {text}")
        self._trainer.observer.warn(text)

    def _announce_best(self) -> None:
        """Report the best evaluation if it was not the last one."""
        best, trainer = self._stopping.best, self._trainer
        if best is not None and 0 < best.step < trainer.done:
            kept = (
                f"; those weights are in {self._saving.best_folder}"
                if self._saving.best_step() == best.step
                else ""
            )
            announce(
                trainer,
                f"the held-out reward was highest after step {best.step} ({best.reward:.3f}){kept}",
            )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
