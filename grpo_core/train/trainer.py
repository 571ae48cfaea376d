"""The GRPO loop; `Trainer.step` is the algorithm on one page.

How it differs from the paper (DeepSeekMath, arXiv 2402.03300): advantages use the population standard deviation and are exactly 0 for
equal rewards; attempts that could not be judged leave mean, standard deviation, loss and denominators; the reference stays fixed; with
one optimizer step per rollout batch the old log-probs are the policy's own, so the ratio is exactly 1.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_core.blocking import wait_for
from grpo_core.config import RunConfig, SamplingConfig
from grpo_core.curriculum import Curriculum
from grpo_core.environment import Environment
from grpo_core.error_rate import ErrorRate
from grpo_core.errors import ConfigError
from grpo_core.evaluate import Gain
from grpo_core.overrides import build_config
from grpo_core.plugins import Observers, PluginHost
from grpo_core.runlog import RunFolder
from grpo_core.sources import Sources
from grpo_core.tools import schemas
from grpo_core.train.algorithm import advantages
from grpo_core.train.batch import collate
from grpo_core.train.metrics import advantage_metrics, group_metrics, peak_memory_mb
from grpo_core.train.observe import Observer, Silent
from grpo_core.train.policy import Policy
from grpo_core.train.rewards import rewards, shuffled
from grpo_core.train.rollout import Budget, roll_out
from grpo_core.train.sampler import Engine, Sampler
from grpo_core.train.session import Session
from grpo_core.train.tasks import draw_number, eval_keys, total_steps, train_keys
from grpo_core.train.update import Updater
from grpo_core.types import Group, Rollout, Task, TaskKey


class Trainer:
    """One run: `Trainer(config).run()`, or `Trainer(config, env).run()` with an environment that is no plugin.

    config: validated, as `grpo_core.overrides.build_config` makes it.
    env: the environment, or several by their names in the config; those that are not given are loaded by their names.
    folder: where everything is written; runs/ENV-DATE-TIME if left out. Nothing is written before the first step.
    host: the plugins to load from; sources: the environments, if they were loaded already. policy, sampler: built from the config if
    not given. observer: hears how the run goes.

    Raises UserError for what the user can mend, before anything is written.
    """

    def __init__(
        self,
        config: RunConfig,
        env: Environment[Any] | Mapping[str, Environment[Any]] | None = None,
        *,
        folder: RunFolder | Path | str | None = None,
        host: PluginHost | None = None,
        sources: Sources | None = None,
        policy: Policy | None = None,
        sampler: Sampler | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.config = config
        self.observer: Observer = observer or Silent()
        self._host = host
        self._envs = {str(config.environment): env} if isinstance(env, Environment) else dict(env or {})
        self.sources = sources or self._open_sources()
        self.total = total_steps(config, self.sources)
        self.curriculum = Curriculum(config.curriculum, {source.name: source.level for source in self.sources.trained})
        self.plugins = (host or PluginHost()).observers(config.plugins, report=self.observer.warn) if config.plugins else Observers.none()
        self.folder = folder if isinstance(folder, RunFolder) else RunFolder.unused(folder, name=next(iter(self.sources)).name)
        if not config.lora.enabled and config.optimizer.lr > 1e-4:
            self.observer.warn(f"optimizer.lr={config.optimizer.lr:g} suits LoRA; full fine-tuning wants about 1e-6")
        started = time.perf_counter()
        self.policy = policy or Policy.load(config, need_reference=config.kl.beta > 0)
        self.sampler: Sampler = sampler or Engine(self.policy)
        self.budgets = {source.name: self._budget(source.env) for source in self.sources}
        self.updater = Updater(self.policy, config, steps=self.total)
        if config.trainer.shared_prefix and not self.policy.shared_prefix:
            self.observer.say("this model cannot compute shared prompts once; each completion is computed with its own copy")
        self.load_seconds = time.perf_counter() - started
        self.error_rate = ErrorRate(stop_above=config.verify.max_error_rate)
        self.done = 0
        self.stop_requested = False
        self._session = Session(self)

    @classmethod
    def resumed(cls, folder: Path | str, env: Environment[Any] | Mapping[str, Environment[Any]] | None = None, **more: Any) -> Trainer:
        """The unfinished run in `folder`, with its settings, after its newest checkpoint; more: as for the constructor."""
        opened = RunFolder.open(Path(folder))
        if opened.finished:
            raise ConfigError(f"the run {folder} is finished; start another with --recipe {opened.path / 'config.json'} --out NEW")
        trainer = cls(build_config([opened.config()]), env, folder=opened, **more)
        trainer.resume()
        return trainer

    async def step(self, step: int) -> dict[str, float]:
        """Step 1, 2, ...: rollout, verify, advantage, update. P prompts, G attempts of each."""
        config, clock = self.config, _Clock()
        keys_P = train_keys(config, self.sources, step, self.curriculum.levels)
        tasks_P = await self.sources.tasks(keys_P, draw_number(config.seed, step))
        rollouts_PG, kept_mass = await self.attempt(tasks_P, attempts=config.group_size, step=step)
        rollout_seconds = clock.lap()

        verdicts_PG = await self.sources.verify(tasks_P, rollouts_PG)
        verify_seconds, hit_rate = clock.lap(), self.sources.cache_hit_rate(tasks_P)

        found = rewards(verdicts_PG)
        if config.trainer.shuffle_rewards:
            found = shuffled(found, tasks_P)
        scored_PG = found.scored_PG & (found.scored_PG.sum(dim=1, keepdim=True) >= 2)  # one attempt has nothing to be compared with
        advantage_PG = advantages(found.total_PG, scored_PG, config.advantage, parts=(found.part_KPG, found.weight_KP))

        groups = [Group(t, r, v) for t, r, v in zip(tasks_P, rollouts_PG, verdicts_PG, strict=True)]
        self._session.record(step, groups, advantage_PG)
        rows = collate(
            rollouts_PG,
            advantage_PG,
            scored_PG,
            aggregation=config.loss.aggregation,
            max_length=max(self.budgets[source.name].turn * self.budgets[source.name].turns for source in self.sources.trained),
            minibatches=config.trainer.minibatches,
        )
        updated = self.updater.update(rows)
        self.updater.steps = 0
        return {
            **group_metrics(groups, {source.name: source.env.parts for source in self.sources.trained}),
            **advantage_metrics(advantage_PG, scored_PG),
            **updated,
            **self.curriculum.add(groups),
            **({} if hit_rate is None else {"verify/cache_hit_rate": hit_rate}),
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

    def run(self) -> dict[str, Gain]:
        """Train until the last step, a stop rule or `request_stop`; returns the gains on held-out tasks. Works in notebooks, too."""
        return wait_for(self.arun(), on_interrupt=self.request_stop)

    async def arun(self) -> dict[str, Gain]:
        """`run` for code that has an event loop of its own."""
        return await self._session.run()

    def request_stop(self) -> None:
        """Finish the step that is under way, save, and end."""
        self.stop_requested = True

    def resume(self) -> int:
        """Go back to the newest checkpoint, or to the start if there is none; what was logged after it is cut. Returns its step."""
        return self._session.resume()

    def sample(self, tasks: int | Sequence[TaskKey], *, attempts: int | None = None, temperature: float | None = None) -> list[Group[Any]]:
        """Attempts of the present policy, not judged yet (`verify` does that). Nothing is trained or written.

        tasks: keys, or how many of the held-out ones. attempts: of each task; group_size if left out. temperature: of the run if left out.
        """
        keys = eval_keys(self.sources.trained[0], tasks) if isinstance(tasks, int) else list(tasks)
        sampling = self.config.sampling if temperature is None else self.config.sampling.model_copy(update={"temperature": temperature})

        async def sampled() -> list[Group[Any]]:
            async with self._open_sources(closes_given=False) as sources:
                tasks_P = await sources.tasks(keys)
                number = attempts or self.config.group_size
                rollouts_PG, _ = await self.attempt(tasks_P, attempts=number, step=self.done, sampling=sampling, sources=sources)
            return [Group(t, r) for t, r in zip(tasks_P, rollouts_PG, strict=True)]

        return wait_for(sampled())

    def verify(self, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """The same groups with a verdict for each attempt."""

        async def verified() -> list[Group[Any]]:
            async with self._open_sources(closes_given=False) as sources:
                verdicts_PG = await sources.verify([group.task for group in groups], [group.rollouts for group in groups])
            return [replace(group, verdicts=verdicts) for group, verdicts in zip(groups, verdicts_PG, strict=True)]

        return wait_for(verified())

    async def attempt(
        self,
        tasks_P: Sequence[Task[Any]],
        *,
        attempts: int,
        step: int,
        sampling: SamplingConfig | None = None,
        sources: Sources | None = None,
    ) -> tuple[list[list[Rollout]], float]:
        """`attempts` rollouts of each task (P, G), and the least probability mass that top-p, top-k and min-p kept in any draw."""
        return await roll_out(
            tasks_P,
            attempts=attempts,
            policy=self.policy,
            sampler=self.sampler,
            sampling=sampling or self.config.sampling,
            budget=self.budgets,
            replies=sources or self.sources,
            seed=self.config.seed,
            step=step,
        )

    def _open_sources(self, *, closes_given: bool = True) -> Sources:
        return Sources.of(self.config, self._envs, host=self._host, closes_given=closes_given)

    def _budget(self, env: Environment[Any]) -> Budget:
        sampling, tools = self.config.sampling, schemas(env.tools())
        if tools and env.max_turns < 2:
            raise ConfigError(f"{type(env).__qualname__} offers tools, but with max_turns 1 no call would be answered; raise it")
        turn = sampling.max_new_tokens or env.max_new_tokens
        return Budget(turn, env.max_turns, sampling.max_dialogue_tokens, self.policy.context, tools)


class _Clock:
    def __init__(self) -> None:
        self._start = self._lap = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._lap = now - self._lap, now
        return seconds

    def total(self) -> float:
        return time.perf_counter() - self._start
