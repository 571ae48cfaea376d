"""The GRPO loop; `Trainer.step` is the algorithm on one page.

How it differs from the paper (DeepSeekMath, arXiv 2402.03300): advantages use the population
standard deviation and are exactly 0 for equal rewards; rollouts that could not be scored are left
out of mean, standard deviation, loss and denominators; the reference policy stays fixed; with one
optimizer step per rollout batch the old log-probabilities are the policy's own, so the importance
ratio is exactly 1.
"""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from grpo_core.calls.blocking import wait_for
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, nested
from grpo_core.config.settings import PLUGIN, SamplingConfig
from grpo_core.plugins.host import Observers, PluginHost
from grpo_core.plugins.services import fingerprint
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Group, Rollout, Task, TaskKey
from grpo_core.report.statistics import Gain
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.trust import require_trust
from grpo_core.train.algorithm.advantages import advantages, pods
from grpo_core.train.algorithm.refill import Refill
from grpo_core.train.algorithm.rewards import Rewards, overlong, rewards, shuffled
from grpo_core.train.compute.batch import collate
from grpo_core.train.models.adapter import ineffective_settings
from grpo_core.train.models.device import pick_device
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.choose import builtin_sampler, load_policy
from grpo_core.train.policy.memory import Footprint, Workload
from grpo_core.train.policy.sampler import Sampler
from grpo_core.train.ranks import Ranks
from grpo_core.train.rollout.curriculum import Curriculum
from grpo_core.train.rollout.dialogue import budget_of, roll_out
from grpo_core.train.rollout.judging import Judging
from grpo_core.train.rollout.tasks import (
    counted_sources,
    draw_number,
    eval_keys,
    total_steps,
    train_keys,
)
from grpo_core.train.run.clock import Clock
from grpo_core.train.run.ending import RunEnd
from grpo_core.train.run.heldout import CHUNK
from grpo_core.train.run.hold import refuse_held, shared_run_folder
from grpo_core.train.run.metrics import (
    advantage_metrics,
    group_metrics,
    peak_memory_mb,
    refuse_taken_names,
)
from grpo_core.train.run.observe import Observer, SafeObserver
from grpo_core.train.run.provenance import recorded_config
from grpo_core.train.run.resume import (
    changed_settings,
    refuse_changed_environments,
    refuse_changed_settings,
)
from grpo_core.train.run.rewind import choose_checkpoint
from grpo_core.train.run.session import Session
from grpo_core.train.run.trackers import trackers
from grpo_core.train.update.updater import Updater
from grpo_core.verify.error_rate import ErrorRate
from grpo_core.verify.sources import Sources


class Trainer:
    """Trains one run: `Trainer(config).run()`, or `Trainer(config, env).run()` with an environment
    of your own.

    Args:
        config: validated, as `grpo_core.config.overrides.build_config` makes it.
        env: the environment, or several by their names in the config; those that are not given are
            loaded by their names.
        folder: where everything is written; runs/ENV-DATE-TIME if left out. Nothing is written
            before the first step.
        host: the plugins to load from.
        sources: the environments, if they were loaded already.
        policy: built from the config if left out.
        sampler: built for the policy if left out.
        observer: receives the progress of the run.

    Raises:
        UserError: something that the user can fix is wrong; nothing has been written then.
    """

    method = "GRPO"

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
        self.ranks = Ranks(
            meeting_seconds=config.trainer.meeting_seconds,
            on_cpu=pick_device(config.model.device).type == "cpu",
        )
        self.observer: Observer = (
            Observer()
            if observer is None or not self.ranks.first
            else SafeObserver(observer, self._note_failed_display)
        )
        self._host = host
        self._envs = (
            {str(config.environment): env} if isinstance(env, Environment) else dict(env or {})
        )
        self.sources = sources or self._open_sources()
        refuse_taken_names({source.name: source.env.parts for source in self.sources})
        self.total = self._total()
        self.curriculum = Curriculum(
            config.curriculum, {source.name: source.level for source in self.sources.trained}
        )
        self.plugins = self._open_observers() if self.ranks.first else Observers.none()
        self.folder = shared_run_folder(
            folder,
            self.ranks,
            name=next((source.name for source in self.sources), self.method.lower()),
        )
        if not config.lora.enabled and config.optimizer.lr > 1e-4:
            self.observer.warn(
                f"optimizer.lr={config.optimizer.lr:g} suits LoRA; full fine-tuning wants about "
                "1e-6"
            )
        self._estimator = self._load_algorithm(config.advantage.name)
        surrogate = self._load_algorithm(config.loss.name)
        started = time.perf_counter()
        update_config = self._update_config()
        self.policy = policy or load_policy(config, need_reference=update_config.needs_reference)
        if ignored := ineffective_settings(self.policy.model, config.lora):
            self.observer.warn(
                "the model brings an adapter, which is trained further as it is, so these "
                f"settings have no effect: {', '.join(ignored)}"
            )
        if config.kl.refresh_every is not None:
            self.policy.reference.follow()
        self.footprint = Footprint(self.policy)
        if config.trainer.shard and self.ranks.size > 1:
            self.policy.shard()
        self.sampler: Sampler = sampler or builtin_sampler(self.policy)
        self.budgets = {
            source.name: budget_of(source.env, self.policy, config.sampling)
            for source in self.sources
        }
        self._refuse_too_long_buffer()
        self.updater = Updater(
            self.policy, update_config, steps=self.total, surrogate=surrogate, ranks=self.ranks
        )
        if config.trainer.shared_prefix and not self.policy.shared_prefix:
            self.observer.say(
                "this model cannot compute shared prompts once; each completion is computed with "
                "its own copy"
            )
        if config.trainer.logits_mb and not self.policy.logits_bytes and not self.policy.sharded:
            self.observer.say(
                "this model's logits are not just the output of its head, so they are computed "
                "all at once, which takes more memory"
            )
        self.load_seconds = time.perf_counter() - started
        self.error_rate = ErrorRate(stop_above=config.verify.max_error_rate)
        self.done = 0
        self.position = 0  # prompts dealt so far
        self.stop_requested = False
        self.stop_reason = ""
        self.end: RunEnd | None = None
        self._session = Session(self)

    @classmethod
    def resumed(
        cls,
        folder: Path | str,
        env: Environment[Any] | Mapping[str, Environment[Any]] | None = None,
        *,
        changes: Mapping[str, Any] = MappingProxyType({}),
        allow: Collection[str] = (),
        trust: bool = False,
        start_from: str | None = None,
        **more: Any,
    ) -> Trainer:
        """Return a trainer for the unfinished run in `folder`, with its settings, after its newest
        checkpoint.

        Args:
            changes: settings, as after --set, that differ from here on.
            allow: names of settings, sections and environments that may differ from what the run
                began with, and of logs that may be damaged.
            trust: whether code and addresses that the folder's config names may be used although
                this user has not used them on this machine.
            start_from: an older checkpoint, such as "step-20", or "start"; what came after it is
                given up.
            more: as for the constructor.

        Raises:
            ConfigError: the run is finished, or something differs or is damaged that `allow` does
                not name.
        """
        run_folder = RunFolder.open(Path(folder))
        if run_folder.finished:
            raise ConfigError(
                f"the run {folder} is finished; to train its model further, start another with "
                f"--recipe {shlex.quote(str(run_folder.path / 'config.json'))} --model "
                f"{shlex.quote(str(run_folder.path))} --out NEW"
            )
        stored = run_folder.config()
        require_trust(
            run_folder.path,
            stored,
            used=_without_given(stored, env),
            named=list(changes),
            trust=trust,
        )
        config = build_config([stored, nested(changes)])
        if config.method.upper() != cls.method:
            raise ConfigError(
                f"{cls.__name__} resumes runs of method {cls.method.lower()}, but {folder} would "
                f"be one of {config.method}"
            )
        refuse_held(run_folder.path)
        restart = choose_checkpoint(run_folder, name=start_from, allowed=allow)
        settings_before = restart.progress.get("config", stored)
        refuse_changed_settings(build_config([stored]), settings_before, allowed=[*changes, *allow])
        trainer = cls(config, env, folder=run_folder, **more)
        refuse_changed_environments(
            stored["provenance"]["environments"], trainer.fingerprints(), allowed=allow
        )
        trainer._session.resume(restart)
        if changes or allow:
            trainer.folder.start(trainer.recorded())
            trainer._session.record_changes(changed_settings(config, settings_before))
        return trainer

    def recorded(self) -> dict[str, Any]:
        """Return what config.json holds."""
        return recorded_config(self)

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each task source, by name."""
        return {source.name: fingerprint(source.env) for source in self.sources}

    async def ready(self) -> None:
        """Raise UserError for what would fail in the first step, as far as it can be known.

        It is called before anything is written.
        """

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload:
        """Estimate the largest batches from the tokens of the first step's prompts."""
        config = self.config
        new = max(
            self.budgets[source.name].dialogue or self.budgets[source.name].longest
            for source in self.sources
        )
        minibatch_prompts = prompts[
            : math.ceil(config.prompts_per_step / config.trainer.minibatches)
        ]
        rows = [
            self.policy.unwritten(prompt, new, attempt)
            for prompt in minibatch_prompts
            for attempt in range(config.group_size)
        ]
        decoded_batches = [(config.prompts_per_step, config.group_size), *self._eval_batches()]
        return Workload(rows, decoded_batches, prompt=max(map(len, prompts)), new=new)

    def _eval_batches(self) -> list[tuple[int, int]]:
        """Return the prompts and rollouts per prompt that an evaluation decodes together."""
        tasks = self.config.eval.tasks * len(self.sources)
        return [(min(CHUNK, tasks), 1)] if tasks else []

    async def step(self, step: int) -> dict[str, float]:
        """Do step 1, 2, ...: rollout, verify, advantage, update; return its metrics.

        In names, P stands for prompts, G for the rollouts of each.
        """
        config, clock = self.config, Clock()
        self.sources.forget_stats()
        refill = Refill(wanted=config.prompts_per_step, refills=config.sampling.refills)
        kept_mass = 1.0
        seen: Counter[TaskKey] = Counter()
        while refill.missing:
            tasks_P = await self._next_tasks(step, refill.missing)
            round_P, round_kept_mass = await self.judged(
                tasks_P, attempts=config.group_size, step=step, clock=clock, seen=seen
            )
            kept_mass = min(kept_mass, round_kept_mass)
            round_rewards = self.rewards(round_P)
            refill.add(round_P, self.advantages(round_rewards, whiten=False))
        groups, chosen_P = refill.groups, refill.chosen()
        batch_rewards = round_rewards if refill.rounds == 1 else self.rewards(groups)
        logged_PG = torch.zeros_like(batch_rewards.total_PG)
        batch_rewards = batch_rewards.of_groups(chosen_P)
        advantage_PG = logged_PG[chosen_P] = self.advantages(batch_rewards)

        self._session.record(step, groups, logged_PG)
        rows = collate(
            [groups[p].rollouts for p in chosen_P.tolist()],
            advantage_PG,
            batch_rewards.scored_PG,
            aggregation=config.loss.aggregation,
            max_length=max(self.budgets[source.name].longest for source in self.sources.trained),
            minibatches=config.trainer.minibatches,
            mask_truncated=config.loss.mask_truncated,
            skip_dead=self.updater.only_advantages,
        )
        beta, update_metrics = self.updater.beta, self.updater.update(rows)
        self.updater.adapt(update_metrics["kl"], attempts=batch_rewards.scored_PG.numel())
        self.policy.reference.refresh(config.kl, step)
        self.updater.steps = 0
        clock.lap("update")
        hit_rate = self.sources.cache_hit_rate()
        return {
            **group_metrics(
                groups, {source.name: source.env.parts for source in self.sources.trained}
            ),
            **advantage_metrics(advantage_PG, batch_rewards.scored_PG),
            **update_metrics,
            **self.curriculum.add(groups),
            **({} if hit_rate is None else {"verify/cache_hit_rate": hit_rate}),
            **(
                {"groups/refilled": float(len(groups) - len(chosen_P))}
                if config.sampling.refills
                else {}
            ),
            "beta": beta,
            "sampling/kept_mass": kept_mass,
            "tokens/trained": float(
                sum(sum(row.rollout.trainable) for step_rows in rows for row in step_rows)
            ),
            "steps/skipped_nonfinite": self.updater.skipped,
            **clock.metrics(),
            "memory/peak_mb": peak_memory_mb(self.policy.device),
        }

    def rewards(self, groups: Sequence[Group[Any]]) -> Rewards:
        """Return the rewards from which the advantages of `groups` are computed.

        They are the verdicts, and what the config adds to them or leaves out.
        """
        config = self.config
        group_rewards = rewards([group.verdicts for group in groups])
        if config.trainer.shuffle_rewards:
            group_rewards = shuffled(group_rewards, [group.task for group in groups])
        if config.advantage.overlong_buffer:
            lengths_PG = torch.tensor(
                [[sum(rollout.trainable) for rollout in group.rollouts] for group in groups]
            )
            longest_P1 = torch.tensor(
                [[self.budgets[group.task.key.env].longest] for group in groups]
            )
            penalty_PG = overlong(
                lengths_PG, longest=longest_P1, buffer=config.advantage.overlong_buffer
            )
            group_rewards = group_rewards.plus(penalty_PG, config.advantage.overlong_weight)
        if config.kl.placement == "reward" and config.kl.beta:
            group_rewards = group_rewards.plus(
                self.updater.divergences([group.rollouts for group in groups]), -self.updater.beta
            )
        if config.advantage.keep is not None:
            group_rewards = replace(
                group_rewards, scored_PG=pods(group_rewards, keep=config.advantage.keep)
            )
        # A single scored rollout has nothing to be compared with.
        enough_P1 = group_rewards.scored_PG.sum(dim=1, keepdim=True) >= 2
        return replace(group_rewards, scored_PG=group_rewards.scored_PG & enough_P1)

    def advantages(self, group_rewards: Rewards, *, whiten: bool | None = None) -> Tensor:
        """Return the advantages (P, G) by the configured estimator, or that of a plugin.

        Args:
            whiten: whether to whiten over the batch; as configured if left out.
        """
        config = (
            self.config.advantage
            if whiten is None
            else self.config.advantage.model_copy(update={"whiten": whiten})
        )
        return advantages(group_rewards, config, self._estimator)

    def run(self) -> dict[str, Gain]:
        """Train until the last step, a stop rule or `request_stop`; works in notebooks, too.

        It may be called again after a stop, to continue. An environment that was given to the
        constructor has been closed then, as at the end of every run.

        Returns:
            The gains on held-out tasks, by environment.
        """
        return wait_for(self.arun(), on_interrupt=self.request_stop)

    async def arun(self) -> dict[str, Gain]:
        """Do the same as `run`, for code that has an event loop of its own."""
        if self.sources.closed:
            self.sources = self._open_sources()
        try:
            return await self._session.run()
        finally:
            # The request was fulfilled; one that comes before a run begins still counts.
            self.stop_requested = False
            self.stop_reason = ""

    def request_stop(self, reason: str = "a stop was requested") -> None:
        """Ask the run to finish the present step, save, and end; the first reason is reported."""
        self.stop_reason = self.stop_reason or reason
        self.stop_requested = True

    def stops(self) -> bool:
        """Return whether a stop was requested in any process.

        All processes have to ask at the same place.
        """
        self.stop_requested = self.ranks.any(self.stop_requested)
        return self.stop_requested

    def resume(self) -> int:
        """Go back to the newest checkpoint, or to the start if there is none.

        What was logged after it is cut.

        Returns:
            The step of the checkpoint.
        """
        return self._session.resume()

    def sample(
        self,
        tasks: int | Sequence[TaskKey],
        *,
        attempts: int | None = None,
        temperature: float | None = None,
    ) -> list[Group[Any]]:
        """Sample rollouts of the present policy, not judged yet (`verify` does that).

        Nothing is trained or written.

        Args:
            tasks: task keys, or the number of held-out tasks.
            attempts: rollouts per task; group_size if left out.
            temperature: that of the run if left out.
        """
        if not len(self.sources):
            raise ConfigError(
                "this run has no environment to take tasks from; give one (eval.also takes it "
                "for evaluations alone)"
            )
        keys = (
            eval_keys(counted_sources(self.sources)[0], tasks)
            if isinstance(tasks, int)
            else list(tasks)
        )
        sampling = (
            self.config.sampling
            if temperature is None
            else self.config.sampling.model_copy(update={"temperature": temperature})
        )

        async def sampled() -> list[Group[Any]]:
            async with self._open_sources(closes_given=False) as sources:
                tasks_P = await sources.tasks(keys)
                number = attempts or self.config.group_size
                rollouts_PG, _ = await self.attempt(
                    tasks_P, attempts=number, step=self.done, sampling=sampling, sources=sources
                )
            return [Group(t, r) for t, r in zip(tasks_P, rollouts_PG, strict=True)]

        return wait_for(sampled())

    def verify(self, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """Return the same groups with a verdict for each rollout."""

        async def verified() -> list[Group[Any]]:
            async with self._open_sources(closes_given=False) as sources:
                verdicts_PG = await sources.verify(
                    [group.task for group in groups], [group.rollouts for group in groups]
                )
            return [
                replace(group, verdicts=verdicts)
                for group, verdicts in zip(groups, verdicts_PG, strict=True)
            ]

        return wait_for(verified())

    async def attempt(
        self,
        tasks_P: Sequence[Task[Any]],
        *,
        attempts: int,
        step: int,
        sampling: SamplingConfig | None = None,
        sources: Sources | None = None,
        ended: Callable[[int, Rollout], None] | None = None,
        seen: Counter[TaskKey] | None = None,
    ) -> tuple[list[list[Rollout]], float]:
        """Sample `attempts` rollouts of each task; all weights are gathered meanwhile.

        Args:
            ended: as for `roll_out`.
            seen: as for `roll_out`.

        Returns:
            The rollouts (P, G), and the least probability mass that top-p, top-k and min-p kept in
            any draw.
        """
        with self.policy.whole():
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
                ranks=self.ranks,
                ended=ended,
                seen=seen,
            )

    async def judged(
        self,
        tasks_P: Sequence[Task[Any]],
        *,
        attempts: int,
        step: int,
        sampling: SamplingConfig | None = None,
        clock: Clock | None = None,
        seen: Counter[TaskKey] | None = None,
    ) -> tuple[list[Group[Any]], float]:
        """Sample `attempts` rollouts of each task and judge them.

        Returns:
            The groups with their verdicts, and the least probability mass kept in any draw.
        """
        clock = clock or Clock()
        async with Judging(
            self.sources, self.ranks, tasks_P, attempts=attempts, overlap=self.config.verify.overlap
        ) as judging:
            rollouts_PG, kept_mass = await self.attempt(
                tasks_P,
                attempts=attempts,
                step=step,
                sampling=sampling,
                ended=judging.ended,
                seen=seen,
            )
            clock.lap("rollout")
            verdicts_PG = await judging.verdicts(rollouts_PG)
            clock.lap("verify")
        return [
            Group(t, r, v) for t, r, v in zip(tasks_P, rollouts_PG, verdicts_PG, strict=True)
        ], kept_mass

    def _note_failed_display(self, text: str) -> None:
        """Note in log.txt, if it exists yet, that the observer failed; the run continues."""
        if "folder" in vars(self) and (self.folder.path / "config.json").exists():
            self.folder.log(text)

    def _total(self) -> int:
        """Return the number of steps of the run."""
        return total_steps(self.config, self.sources, batch=self.config.prompts_per_step)

    def _update_config(self) -> RunConfig:
        """Return the settings of the update."""
        return self.config

    def _open_sources(self, *, closes_given: bool = True) -> Sources:
        return Sources.of(self.config, self._envs, host=self._host, closes_given=closes_given)

    async def _next_tasks(self, step: int, count: int) -> list[Task[Any]]:
        """Return the next `count` training tasks."""
        keys = train_keys(self.config, self.sources, self.position, count, self.curriculum.levels)
        self.position += count
        return await self.sources.tasks(keys, draw_number(self.config.seed, step))

    def _refuse_too_long_buffer(self) -> None:
        """Raise ConfigError if the overlong buffer exceeds the longest rollout."""
        buffer = self.config.advantage.overlong_buffer
        for source in self.sources.trained:
            if buffer > (longest := self.budgets[source.name].longest):
                raise ConfigError(
                    f"advantage.overlong_buffer is {buffer}, but an attempt at {source.name!r} "
                    f"has only {longest} tokens; lower it, or raise sampling.max_new_tokens"
                )

    def _plugin_host(self) -> PluginHost:
        self._host = self._host or PluginHost()
        return self._host

    def _open_observers(self) -> Observers:
        """Return the plugins and trackers that observe this run.

        No plugin is loaded if the config names none.
        """
        tracked = trackers(self.config.log, self._plugin_host)
        if not tracked and not self.config.plugins:
            return Observers.none()
        return self._plugin_host().observers(
            self.config.plugins, more=tracked, report=self.observer.warn
        )

    def _load_algorithm(self, name: str) -> Any:
        """Return the function that a plugin offers under the name in the config.

        It is None for a bundled algorithm, which needs no such function.
        """
        return (
            self._plugin_host().load("algorithm", name.removeprefix(PLUGIN))
            if name.startswith(PLUGIN)
            else None
        )


def _without_given(
    stored: Mapping[str, Any], env: Environment[Any] | Mapping[str, Environment[Any]] | None
) -> dict[str, Any]:
    """Return a recorded config without the environments that the caller has made."""
    if isinstance(env, Environment):
        return {**stored, "environment": None, "env": {}}
    given_envs = env or {}
    mixture = {
        name: member
        for name, member in (stored.get("mixture") or {}).items()
        if name not in given_envs
    }
    return {
        **stored,
        "mixture": mixture,
        **({"environment": None, "env": {}} if stored.get("environment") in given_envs else {}),
    }
