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
from grpo_core.errors import ConfigError, RunStoppedError
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
from grpo_core.train.rollout import roll_out
from grpo_core.train.sampler import Engine, Sampler
from grpo_core.train.tasks import draw_number, total_steps, train_keys
from grpo_core.train.update import Updater
from grpo_core.train.warnings import Watch
from grpo_core.types import Group, Rollout, Task, TaskKey, Verdict
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
        if env.max_turns > 1:
            raise ConfigError(
                f"environment {config.environment!r} is a dialogue (max_turns={env.max_turns}); the trainer drives one turn so far"
            )
        self.config, self.env, self.folder = config, env, folder
        self.observer: Observer = observer or Silent()
        self.plugins = plugins or Observers({}, report=self.observer.warn)
        self.total = total_steps(config, env)
        self.max_new_tokens = config.sampling.max_new_tokens or env.max_new_tokens
        self.verifier = Verifier(env, spec=spec, overrides=config.env, settings=_verify_settings(config))
        self.error_rate = ErrorRate(stop_above=config.verify.max_error_rate)
        started = time.perf_counter()
        self.policy = policy or Policy.load(config, need_reference=config.kl.beta > 0)
        self.sampler: Sampler = sampler or Engine(self.policy)
        self.updater = Updater(self.policy, config, steps=self.total)
        self.load_seconds = time.perf_counter() - started
        self.watch = Watch()
        self.done = 0
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
            max_length=self.max_new_tokens,
            minibatches=config.trainer.minibatches,
        )
        updated = self.updater.update(rows)
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
        config = self.config.model_dump(mode="json")
        if self.done == 0:
            self.folder.start(config)
        self.plugins.notify("grpo_run_start", run_dir=self.folder.path, config=config)
        reason = "failed"
        try:
            async with self.verifier:
                gains = await self._run()
            reason = "finished" if self.done == self.total else "interrupted"
            return gains
        except RunStoppedError as error:
            reason = str(error)
            self.folder.log(f"stopped after step {self.done}: {error}; {self._checkpoint()}")
            raise
        finally:
            self.plugins.notify("grpo_run_end", run_dir=self.folder.path, step=self.done, reason=reason)

    def request_stop(self) -> None:
        """Finish the step that is under way, save, and end."""
        self.stop_requested = True

    def resume(self) -> int:
        """Go back to the newest checkpoint; what was logged after it is cut. Returns its step."""
        found = checkpoints(self.folder.path / "checkpoints")
        if not found:
            raise ConfigError(f"{self.folder.path} holds no checkpoint to resume from; start again with another --out")
        progress = load_checkpoint(found[-1], policy=self.policy, updater=self.updater)
        self.folder.cut(progress["sizes"])
        self.done = int(progress["step"])
        return self.done

    async def _run(self) -> dict[str, Gain]:
        before = await self._scores_at_start()
        while self.done < self.total and not self.stop_requested:
            step = self.done + 1
            metrics = await self.step(step)
            if self.load_seconds:
                metrics["time/load"], self.load_seconds = self.load_seconds, 0.0
            self.done = step
            self._publish(step, metrics)
            if step < self.total:
                if _due(step, self.config.eval.every):
                    await self.evaluate(step)
                if _due(step, self.config.checkpoint.every):
                    self._checkpoint()
        if self.stop_requested:
            self.observer.say(f"stopped after step {self.done} of {self.total}; {self._checkpoint()}")
            return {}
        after = await self.evaluate(self.done)
        self._checkpoint()
        self.folder.finish(self.policy.save, title=f"{self.config.model.name} trained on {self.config.environment} by GRPO")
        gains = {name: gain for name in ("reward", "pass_rate") if (gain := paired_gain(_column(before, name), _column(after, name)))}
        self.observer.finished(gains)
        return gains

    async def evaluate(self, step: int) -> Scores:
        """Held-out scores by task; {} if evaluation is off."""
        if not self.config.eval.tasks:
            return {}
        scores, metrics = await held_out(
            self.config, self.env, self.verifier, self._sample, self.folder, self.observer, step=step, stopped=lambda: self.stop_requested
        )
        self.folder.metrics({"step": step, **metrics})
        self.observer.evaluated(step, metrics)
        self.plugins.notify("grpo_eval_end", run_dir=self.folder.path, step=step, metrics=metrics)
        return scores

    async def _scores_at_start(self) -> Scores:
        """Scores before training; a resumed run reads them from its log."""
        return await self.evaluate(0) if self.done == 0 else logged_scores(self.folder, step=0)

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
            max_new_tokens=self.max_new_tokens,
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
        """Save, unless nothing was done yet; says what was saved."""
        if self.done == 0:
            return "no step was finished, so there is nothing to save"
        path = save_checkpoint(
            self.folder.path / "checkpoints",
            step=self.done,
            policy=self.policy,
            updater=self.updater,
            sizes=self.folder.sizes(),
            keep=self.config.checkpoint.keep,
        )
        return f"saved {path}; continue with --resume {self.folder.path}"


class _Clock:
    def __init__(self) -> None:
        self._start = self._lap = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._lap = now - self._lap, now
        return seconds

    def total(self) -> float:
        return time.perf_counter() - self._start


def rewards(verdicts_PG: Sequence[Sequence[Verdict]]) -> tuple[Tensor, Tensor]:
    """Totals (P, G) in float64 and which attempts were scored (P, G); an unscored one holds 0, which nothing reads."""
    reward_PG = torch.tensor([[v.total if v.scored else 0.0 for v in group] for group in verdicts_PG], dtype=torch.float64)
    scored_PG = torch.tensor([[v.scored for v in group] for group in verdicts_PG])
    return reward_PG, scored_PG


def shuffled(reward_PG: Tensor, scored_PG: Tensor, tasks_P: Sequence[Task[Any]]) -> Tensor:
    """The control experiment: each group's scored rewards in random order, so that they say nothing about the attempts."""
    reward_PG = reward_PG.clone()
    for p, task in enumerate(tasks_P):
        places = scored_PG[p].nonzero().flatten().tolist()
        reward_PG[p, places] = reward_PG[p, task.key.rng("shuffle", task.draw).sample(places, len(places))]
    return reward_PG


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
