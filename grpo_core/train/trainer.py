"""The GRPO loop; `Trainer.step` is the algorithm on one page.

How it differs from the paper (DeepSeekMath, arXiv 2402.03300): advantages use the population standard deviation and are exactly 0 for
equal rewards; attempts that could not be judged leave mean, standard deviation, loss and denominators; the reference stays fixed; with
one optimizer step per rollout batch the old log-probs are the policy's own, so the ratio is exactly 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.config import RunConfig, SamplingConfig
from grpo_core.environment import Environment
from grpo_core.errors import GrpoError, RunStoppedError
from grpo_core.evaluate import Gain, paired_gain
from grpo_core.plugins import Observers
from grpo_core.runlog import RunFolder
from grpo_core.spec import Spec
from grpo_core.train.algorithm import advantages
from grpo_core.train.batch import collate
from grpo_core.train.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from grpo_core.train.heldout import Scores, as_text, held_out, logged_scores
from grpo_core.train.metrics import advantage_metrics, peak_memory_mb, rollout_metrics
from grpo_core.train.observe import Observer, Silent
from grpo_core.train.policy import Policy
from grpo_core.train.provenance import recorded_config
from grpo_core.train.rewards import rewards, shuffled
from grpo_core.train.rollout import Budget, roll_out
from grpo_core.train.sampler import Engine, Sampler
from grpo_core.train.tasks import draw_number, total_steps, train_keys
from grpo_core.train.update import Updater
from grpo_core.train.warnings import Watch
from grpo_core.types import Group, Rollout, Task, TaskKey
from grpo_core.verify import ErrorRate, Verifier, VerifySettings


class Trainer:
    """One run: `await Trainer(config, env, folder=folder).run()`.

    config: validated; env: its environment; folder: where everything is written; spec: how a worker process finds the environment
    (not needed for classes that can be imported); policy, sampler: built from the config if not given.
    """

    def __init__(
        self,
        config: RunConfig,
        env: Environment[Any],
        *,
        folder: RunFolder,
        spec: Spec | None = None,
        policy: Policy | None = None,
        sampler: Sampler | None = None,
        observer: Observer | None = None,
        plugins: Observers | None = None,
    ) -> None:
        self.config, self.env, self.folder = config, env, folder
        self.observer: Observer = observer or Silent()
        self.plugins = plugins or Observers({}, report=self.observer.warn)
        self.total = total_steps(config, env)
        self.max_new_tokens = config.sampling.max_new_tokens or env.max_new_tokens
        self.verifier = Verifier(env, spec=spec, overrides=config.env, settings=_verify_settings(config))
        self.error_rate = ErrorRate(stop_above=config.verify.max_error_rate)
        if not config.lora.enabled and config.optimizer.lr > 1e-4:
            self.observer.warn(f"optimizer.lr={config.optimizer.lr:g} suits LoRA; full fine-tuning wants about 1e-6")
        started = time.perf_counter()
        self.policy = policy or Policy.load(config, need_reference=config.kl.beta > 0)
        self.sampler: Sampler = sampler or Engine(self.policy)
        self.budget = Budget(self.max_new_tokens, env.max_turns, config.sampling.max_dialogue_tokens, self.policy.context)
        self.updater = Updater(self.policy, config, steps=self.total)
        if config.trainer.shared_prefix and not self.policy.shared_prefix:
            self.observer.say("this model cannot compute shared prompts once; each completion is computed with its own copy")
        self.load_seconds = time.perf_counter() - started
        self.watch = Watch()
        self.done = 0
        self._sizes: dict[str, int] = {}
        self.stop_requested = False

    async def step(self, step: int) -> dict[str, float]:
        """Step 1, 2, ...: rollout, verify, advantage, update. P prompts, G attempts of each."""
        config, clock = self.config, _Clock()
        tasks_P = await self.verifier.tasks(train_keys(config, self.env, step), draws=draw_number(config.seed, step))
        rollouts_PG, kept_mass = await self._sample(tasks_P, attempts=config.group_size, step=step, sampling=config.sampling)
        rollout_seconds = clock.lap()

        verdicts_PG = await self.verifier.verify(tasks_P, rollouts_PG)
        verify_seconds = clock.lap()

        reward_PG, scored_PG = rewards(verdicts_PG)
        if config.trainer.shuffle_rewards:
            reward_PG = shuffled(reward_PG, scored_PG, tasks_P)
        scored_PG = scored_PG & (scored_PG.sum(dim=1, keepdim=True) >= 2)  # one attempt has nothing to be compared with
        advantage_PG = advantages(reward_PG, scored_PG, config.advantage)

        groups = [Group(t, r, v) for t, r, v in zip(tasks_P, rollouts_PG, verdicts_PG, strict=True)]
        self._record(step, groups, advantage_PG)
        self.error_rate.add([verdict for group in verdicts_PG for verdict in group])
        self.plugins.notify("grpo_verdicts", run_dir=self.folder.path, step=step, groups=groups)
        rows = collate(
            rollouts_PG,
            advantage_PG,
            scored_PG,
            aggregation=config.loss.aggregation,
            max_length=self.budget.turn * self.budget.turns,
            minibatches=config.trainer.minibatches,
        )
        updated = self.updater.update(rows)
        self.updater.steps = 0
        return {
            **rollout_metrics(rollouts_PG, verdicts_PG, list(self.env.parts)),
            **advantage_metrics(advantage_PG, scored_PG),
            **updated,
            "beta": config.kl.beta,
            "sampling/kept_mass": kept_mass,
            "tokens/trained": float(sum(sum(row.rollout.trainable) for step_rows in rows for row in step_rows)),
            "steps/skipped_nonfinite": self.updater.skipped,
            "time/rollout": rollout_seconds,
            "time/verify": verify_seconds,
            "time/update": clock.lap(),
            "time/step": clock.total(),
            "memory/peak_mb": peak_memory_mb(self.policy.device),
        }

    async def run(self) -> dict[str, Gain]:
        """Train until the last step or `request_stop`; returns the gains on held-out tasks."""
        reason = "failed"
        try:
            async with self.verifier:
                await self._probe()
                recorded = recorded_config(self.config, self.env, self.policy, steps=self.total, max_new_tokens=self.max_new_tokens)
                if self.done == 0:
                    self.folder.start(recorded)
                self.plugins.notify("grpo_run_start", run_dir=self.folder.path, config=recorded)
                gains = await self._run()
            reason = "finished" if self.folder.finished else "interrupted"
            return gains
        except torch.OutOfMemoryError as error:
            advice = "lower trainer.micro_batch_tokens or sampling.max_rows, then continue with --resume"
            reason = f"out of memory: {error}; {advice}"
            raise RunStoppedError(reason) from error
        except GrpoError as error:
            reason = str(error)
            raise
        finally:
            self._save_after_failure(reason)
            self.plugins.notify("grpo_run_end", run_dir=self.folder.path, step=self.done, reason=reason)

    def request_stop(self) -> None:
        """Finish the step that is under way, save, and end."""
        self.stop_requested = True

    def resume(self) -> int:
        """Go back to the newest checkpoint, or to the start if there is none; what was logged after it is cut. Returns its step."""
        found = checkpoints(self.folder.path / "checkpoints")
        start: dict[str, Any] = {"step": 0, "sizes": {}}
        progress = load_checkpoint(found[-1], policy=self.policy, updater=self.updater) if found else start
        self.folder.cut(progress["sizes"])  # what the checkpoint does not name was not there yet
        self._sizes = self.folder.sizes()
        self.done = int(progress["step"])
        return self.done

    async def _run(self) -> dict[str, Gain]:
        before = await self._scores_at_start()
        while self.done < self.total and not self.stop_requested:
            await self._one_step(self.done + 1)
        saved = self._checkpoint()
        after = None if self.stop_requested else await self.evaluate(self.done)
        if before is None or after is None:
            self.observer.say(f"stopped after step {self.done} of {self.total}; {saved}")
            return {}
        self.folder.finish(self.policy.save, title=f"{self.config.model.name} trained on {self.config.environment} by GRPO")
        gains = {name: gain for name in ("reward", "pass_rate") if (gain := paired_gain(_column(before, name), _column(after, name)))}
        self.observer.finished(gains)
        return gains

    async def _one_step(self, step: int) -> None:
        """A step with what is due after it."""
        metrics = await self.step(step)
        if self.load_seconds:
            metrics["time/load"], self.load_seconds = self.load_seconds, 0.0
        self.done = step
        self._publish(step, metrics)
        if step < self.total and not self.stop_requested:
            if _due(step, self.config.eval.every):
                await self.evaluate(step)
            self._sizes = self.folder.sizes()
            if _due(step, self.config.checkpoint.every):
                self._checkpoint()
        self._sizes = self.folder.sizes()

    async def evaluate(self, step: int) -> Scores | None:
        """Held-out scores by task; {} if evaluation is off, None if a stop was requested before it was complete."""
        if not self.config.eval.tasks:
            return {}
        found = await held_out(
            self.config,
            self.env,
            self.verifier,
            self._sample,
            self.folder,
            self.observer,
            step=step,
            stopped=lambda: self.stop_requested,
        )
        if found is None:
            return None
        scores, metrics, verdicts = found
        self.folder.metrics({"step": step, **metrics})
        self.observer.evaluated(step, metrics)
        self.plugins.notify("grpo_eval_end", run_dir=self.folder.path, step=step, metrics=metrics)
        self.error_rate.add(verdicts)
        return scores

    async def _scores_at_start(self) -> Scores | None:
        """Scores before training; a resumed run reads them from its log."""
        return await self.evaluate(0) if self.done == 0 else logged_scores(self.folder, step=0)

    async def _probe(self) -> None:
        """Ask for one task and encode it, so that what cannot work is found before anything is written."""
        (task,) = await self.verifier.tasks(train_keys(self.config, self.env, 1)[:1])
        self.policy.encode_checked(task.prompt, max_new_tokens=self.max_new_tokens)

    def _publish(self, step: int, metrics: dict[str, float]) -> None:
        self.folder.metrics({"step": step, **metrics})
        self.observer.step(step, self.total, metrics)
        self.plugins.notify("grpo_step_end", run_dir=self.folder.path, step=step, metrics=metrics)
        for warning in self.watch.look(metrics):
            self.folder.log(f"warning, step {step}: {warning}")
            self.observer.warn(warning)

    async def _sample(
        self, tasks_P: Sequence[Task[Any]], *, attempts: int, step: int, sampling: SamplingConfig
    ) -> tuple[list[list[Rollout]], float]:
        return await roll_out(
            tasks_P,
            attempts=attempts,
            policy=self.policy,
            sampler=self.sampler,
            sampling=sampling,
            budget=self.budget,
            replies=self.verifier,
            seed=self.config.seed,
            step=step,
        )

    def _record(self, step: int, groups: Sequence[Group[Any]], advantage_PG: Tensor) -> None:
        """Log every attempt, and show one group now and then."""
        for group, advantage_G in zip(groups, advantage_PG.tolist(), strict=True):
            self.folder.rollouts(step, group, advantage_G)
        every = self.config.log.samples_every
        if every and step % every == 0:
            self.folder.log(as_text(step, groups[0], advantage_PG[0].tolist()))

    def _checkpoint(self) -> str:
        """Save the state after the last finished step, unless nothing was done yet; says what was saved."""
        if self.done == 0:
            return "no step was finished, so there is nothing to save"
        path = save_checkpoint(
            self.folder.path / "checkpoints",
            step=self.done,
            policy=self.policy,
            updater=self.updater,
            sizes=self._sizes,
            keep=self.config.checkpoint.keep,
        )
        return f"saved {path}; continue with --resume {self.folder.path}"

    def _save_after_failure(self, reason: str) -> None:
        """A run that ended on an error keeps its last finished step, if the weights still are those after it."""
        if reason in ("finished", "interrupted", "failed") or not (self.folder.path / "config.json").exists():
            return
        saved = self._checkpoint() if self.updater.steps == 0 else "the step under way had changed weights, so older checkpoints hold"
        self.observer.say(saved)
        self.folder.log(f"stopped after step {self.done}: {reason}; {saved}")


class _Clock:
    def __init__(self) -> None:
        self._start = self._lap = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._lap = now - self._lap, now
        return seconds

    def total(self) -> float:
        return time.perf_counter() - self._start


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _column(scores: Scores, name: str) -> dict[TaskKey, float]:
    return {key: values[name] for key, values in scores.items()}


def _verify_settings(config: RunConfig) -> VerifySettings:
    verify = config.verify
    return VerifySettings(
        workers=verify.workers,
        timeout_seconds=verify.timeout_seconds,
        retries=verify.retries,
        isolation=verify.isolation,
        weights=config.weights,
    )
