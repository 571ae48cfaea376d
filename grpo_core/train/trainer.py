"""The GRPO loop; `Trainer.step` is the algorithm on one page.

How it differs from the paper (DeepSeekMath, arXiv 2402.03300): advantages use the population standard deviation and are exactly 0 for
equal rewards; attempts that could not be judged leave mean, standard deviation, loss and denominators; the reference stays fixed; with
one optimizer step per rollout batch the old log-probs are the policy's own, so the ratio is exactly 1.
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
from grpo_core.train.models.adapter import without_effect
from grpo_core.train.models.device import pick_device
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.choose import builtin_sampler, load_policy
from grpo_core.train.policy.memory import Footprint, Workload
from grpo_core.train.policy.sampler import Sampler
from grpo_core.train.ranks import Ranks
from grpo_core.train.rollout.curriculum import Curriculum
from grpo_core.train.rollout.dialogue import budget_of, roll_out
from grpo_core.train.rollout.judging import Judging
from grpo_core.train.rollout.tasks import counted, draw_number, eval_keys, total_steps, train_keys
from grpo_core.train.run.clock import Clock
from grpo_core.train.run.ending import RunEnd
from grpo_core.train.run.heldout import CHUNK
from grpo_core.train.run.hold import one_folder, refuse_held
from grpo_core.train.run.metrics import (
    advantage_metrics,
    group_metrics,
    peak_memory_mb,
    refuse_taken_names,
)
from grpo_core.train.run.observe import Observer, Unfailing
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
    """One run: `Trainer(config).run()`, or `Trainer(config, env).run()` with an environment that is no plugin.

    config: validated, as `grpo_core.config.overrides.build_config` makes it.
    env: the environment, or several by their names in the config; those that are not given are loaded by their names.
    folder: where everything is written; runs/ENV-DATE-TIME if left out. Nothing is written before the first step.
    host: the plugins to load from; sources: the environments, if they were loaded already. policy, sampler: built from the config if
    not given. observer: hears how the run goes.

    Raises UserError for what the user can mend, before anything is written.
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
            else Unfailing(observer, self._note_failed_display)
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
        self.plugins = self._watchers() if self.ranks.first else Observers.none()
        self.folder = one_folder(
            folder,
            self.ranks,
            name=next((source.name for source in self.sources), self.method.lower()),
        )
        if not config.lora.enabled and config.optimizer.lr > 1e-4:
            self.observer.warn(
                f"optimizer.lr={config.optimizer.lr:g} suits LoRA; full fine-tuning wants about 1e-6"
            )
        self._estimator, surrogate = (
            self._offered(config.advantage.name),
            self._offered(config.loss.name),
        )
        started = time.perf_counter()
        updating = self._updating()
        self.policy = policy or load_policy(config, need_reference=updating.needs_reference)
        if ignored := without_effect(self.policy.model, config.lora):
            self.observer.warn(
                f"the model brings an adapter, which is continued as it is, so these have no effect: {', '.join(ignored)}"
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
        self._refuse_long_buffer()
        self.updater = Updater(
            self.policy, updating, steps=self.total, surrogate=surrogate, ranks=self.ranks
        )
        if config.trainer.shared_prefix and not self.policy.shared_prefix:
            self.observer.say(
                "this model cannot compute shared prompts once; each completion is computed with its own copy"
            )
        if config.trainer.logits_mb and not self.policy.logits_bytes and not self.policy.sharded:
            self.observer.say(
                "this model's logits are more than the output of its head; they are computed all at once, in more memory"
            )
        self.load_seconds = time.perf_counter() - started
        self.error_rate = ErrorRate(stop_above=config.verify.max_error_rate)
        self.done = 0
        self.position = 0  # prompts that were dealt so far
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
        """The unfinished run in `folder`, with its settings, after its newest checkpoint.

        changes: settings, as after --set, that are to be others from here on. allow: names of settings, sections and environments that may
        differ from what the run began with, and of logs that may be damaged; anything else raises ConfigError. start_from: an older
        checkpoint, such as "step-20", or "start"; what came after it is given up. trust: whether code and addresses that the folder's
        config names may be used although this user has not used them on this machine. more: as for the constructor.
        """
        opened = RunFolder.open(Path(folder))
        if opened.finished:
            raise ConfigError(
                f"the run {folder} is finished; to train its model further, start another with --recipe "
                f"{shlex.quote(str(opened.path / 'config.json'))} --model {shlex.quote(str(opened.path))} --out NEW"
            )
        stored = opened.config()
        require_trust(
            opened.path, stored, used=_to_load(stored, env), named=list(changes), trust=trust
        )
        config = build_config([stored, nested(changes)])
        if config.method.upper() != cls.method:
            raise ConfigError(
                f"{cls.__name__} goes on with runs of method {cls.method.lower()}, but {folder} would be one of {config.method}"
            )
        refuse_held(opened.path)
        restart = choose_checkpoint(opened, name=start_from, allowed=allow)
        before = restart.progress.get("config", stored)
        refuse_changed_settings(build_config([stored]), before, allowed=[*changes, *allow])
        trainer = cls(config, env, folder=opened, **more)
        refuse_changed_environments(
            stored["provenance"]["environments"], trainer.fingerprints(), allowed=allow
        )
        trainer._session.resume(restart)
        if changes or allow:
            trainer.folder.start(trainer.recorded())
            trainer._session.agree(changed_settings(config, before))
        return trainer

    def recorded(self) -> dict[str, Any]:
        """What config.json holds."""
        return recorded_config(self)

    def fingerprints(self) -> dict[str, str]:
        """Of everything that the run takes its tasks from, by name."""
        return {source.name: fingerprint(source.env) for source in self.sources}

    async def ready(self) -> None:
        """Raises UserError for what would go wrong in the first step, as far as it can be known before anything is written."""

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload:
        """The largest batches, as far as the tokens of the first step's prompts tell."""
        config = self.config
        new = max(
            self.budgets[source.name].dialogue or self.budgets[source.name].longest
            for source in self.sources
        )
        asked = prompts[: math.ceil(config.prompts_per_step / config.trainer.minibatches)]
        rows = [
            self.policy.unwritten(prompt, new, number)
            for prompt in asked
            for number in range(config.group_size)
        ]
        decoded = [(config.prompts_per_step, config.group_size), *self._evaluated()]
        return Workload(rows, decoded, prompt=max(map(len, prompts)), new=new)

    def _evaluated(self) -> list[tuple[int, int]]:
        """Prompts and attempts that an evaluation decodes together."""
        tasks = self.config.eval.tasks * len(self.sources)
        return [(min(CHUNK, tasks), 1)] if tasks else []

    async def step(self, step: int) -> dict[str, float]:
        """Step 1, 2, ...: rollout, verify, advantage, update. P prompts, G attempts of each."""
        config, clock = self.config, Clock()
        self.sources.forget_stats()
        refill, kept_mass = (
            Refill(wanted=config.prompts_per_step, refills=config.sampling.refills),
            1.0,
        )
        seen: Counter[TaskKey] = Counter()
        while refill.missing:
            tasks_P = await self._next_tasks(step, refill.missing)
            round_P, kept = await self.judged(
                tasks_P, attempts=config.group_size, step=step, clock=clock, seen=seen
            )
            kept_mass = min(kept_mass, kept)
            found = self.rewards(round_P)
            refill.add(round_P, self.advantages(found, whiten=False))
        asked, chosen_P = refill.groups, refill.chosen()
        found = found if refill.rounds == 1 else self.rewards(asked)
        logged_PG = torch.zeros_like(found.total_PG)
        found = found.of_groups(chosen_P)
        advantage_PG = logged_PG[chosen_P] = self.advantages(found)

        self._session.record(step, asked, logged_PG)
        rows = collate(
            [asked[p].rollouts for p in chosen_P.tolist()],
            advantage_PG,
            found.scored_PG,
            aggregation=config.loss.aggregation,
            max_length=max(self.budgets[source.name].longest for source in self.sources.trained),
            minibatches=config.trainer.minibatches,
            mask_truncated=config.loss.mask_truncated,
            skip_dead=self.updater.only_advantages,
        )
        beta, updated = self.updater.beta, self.updater.update(rows)
        self.updater.adapt(updated["kl"], attempts=found.scored_PG.numel())
        self.policy.reference.refresh(config.kl, step)
        self.updater.steps = 0
        clock.lap("update")
        hit_rate = self.sources.cache_hit_rate()
        return {
            **group_metrics(
                asked, {source.name: source.env.parts for source in self.sources.trained}
            ),
            **advantage_metrics(advantage_PG, found.scored_PG),
            **updated,
            **self.curriculum.add(asked),
            **({} if hit_rate is None else {"verify/cache_hit_rate": hit_rate}),
            **(
                {"groups/refilled": float(len(asked) - len(chosen_P))}
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
        """What the advantages of `groups` are made of: the verdicts, and what the config adds to them or leaves out."""
        config = self.config
        found = rewards([group.verdicts for group in groups])
        if config.trainer.shuffle_rewards:
            found = shuffled(found, [group.task for group in groups])
        if config.advantage.overlong_buffer:
            lengths_PG = torch.tensor(
                [[sum(rollout.trainable) for rollout in group.rollouts] for group in groups]
            )
            longest_P1 = torch.tensor(
                [[self.budgets[group.task.key.env].longest] for group in groups]
            )
            punished_PG = overlong(
                lengths_PG, longest=longest_P1, buffer=config.advantage.overlong_buffer
            )
            found = found.plus(punished_PG, config.advantage.overlong_weight)
        if config.kl.placement == "reward" and config.kl.beta:
            found = found.plus(
                self.updater.divergences([group.rollouts for group in groups]), -self.updater.beta
            )
        if config.advantage.keep is not None:
            found = replace(found, scored_PG=pods(found, keep=config.advantage.keep))
        enough_P1 = (
            found.scored_PG.sum(dim=1, keepdim=True) >= 2
        )  # one attempt has nothing to be compared with
        return replace(found, scored_PG=found.scored_PG & enough_P1)

    def advantages(self, found: Rewards, *, whiten: bool | None = None) -> Tensor:
        """By the configured estimator, or that of a plugin. whiten: over the batch; as configured, if left out."""
        config = (
            self.config.advantage
            if whiten is None
            else self.config.advantage.model_copy(update={"whiten": whiten})
        )
        return advantages(found, config, self._estimator)

    def run(self) -> dict[str, Gain]:
        """Train until the last step, a stop rule or `request_stop`; returns the gains on held-out tasks. Works in notebooks, too.

        May be called again after a stop, to go on. An environment that was given has been closed then, as at the end of every run.
        """
        return wait_for(self.arun(), on_interrupt=self.request_stop)

    async def arun(self) -> dict[str, Gain]:
        """`run` for code that has an event loop of its own."""
        if self.sources.closed:
            self.sources = self._open_sources()
        try:
            return await self._session.run()
        finally:
            self.stop_requested = (
                False  # it was obeyed; one that comes before a run begins still counts
            )
            self.stop_reason = ""

    def request_stop(self, reason: str = "a stop was requested") -> None:
        """Finish the step that is under way, save, and end. The first reason is the one that is told."""
        self.stop_reason = self.stop_reason or reason
        self.stop_requested = True

    def stops(self) -> bool:
        """Whether a stop was requested, in any process; all of them have to ask at the same place."""
        self.stop_requested = self.ranks.any(self.stop_requested)
        return self.stop_requested

    def resume(self) -> int:
        """Go back to the newest checkpoint, or to the start if there is none; what was logged after it is cut. Returns its step."""
        return self._session.resume()

    def sample(
        self,
        tasks: int | Sequence[TaskKey],
        *,
        attempts: int | None = None,
        temperature: float | None = None,
    ) -> list[Group[Any]]:
        """Attempts of the present policy, not judged yet (`verify` does that). Nothing is trained or written.

        tasks: keys, or how many of the held-out ones. attempts: of each task; group_size if left out. temperature: of the run if left out.
        """
        if not len(self.sources):
            raise ConfigError(
                "this run has no environment to take tasks from; give one (eval.also takes it for evaluations alone)"
            )
        keys = eval_keys(counted(self.sources)[0], tasks) if isinstance(tasks, int) else list(tasks)
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
        """The same groups with a verdict for each attempt."""

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
        """`attempts` rollouts of each task (P, G), and the least probability mass that top-p, top-k and min-p kept in any draw.

        ended, seen: as for `roll_out`.
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
        """Groups of `attempts` rollouts of each task with their verdicts, and the least probability mass kept in any draw."""
        clock = clock or Clock()
        async with Judging(
            self.sources, self.ranks, tasks_P, attempts=attempts, overlap=self.config.verify.overlap
        ) as judging:
            rollouts_PG, kept = await self.attempt(
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
        ], kept

    def _note_failed_display(self, text: str) -> None:
        """Note in log.txt, if there is one yet, that the observer failed; the run goes on."""
        if "folder" in vars(self) and (self.folder.path / "config.json").exists():
            self.folder.log(text)

    def _total(self) -> int:
        return total_steps(self.config, self.sources, batch=self.config.prompts_per_step)

    def _updating(self) -> RunConfig:
        """The settings of the update."""
        return self.config

    def _open_sources(self, *, closes_given: bool = True) -> Sources:
        return Sources.of(self.config, self._envs, host=self._host, closes_given=closes_given)

    async def _next_tasks(self, step: int, count: int) -> list[Task[Any]]:
        keys = train_keys(self.config, self.sources, self.position, count, self.curriculum.levels)
        self.position += count
        return await self.sources.tasks(keys, draw_number(self.config.seed, step))

    def _refuse_long_buffer(self) -> None:
        buffer = self.config.advantage.overlong_buffer
        for source in self.sources.trained:
            if buffer > (longest := self.budgets[source.name].longest):
                raise ConfigError(
                    f"advantage.overlong_buffer is {buffer}, but an attempt at {source.name!r} has only {longest} tokens; lower it, or "
                    "raise sampling.max_new_tokens"
                )

    def _plugin_host(self) -> PluginHost:
        self._host = self._host or PluginHost()
        return self._host

    def _watchers(self) -> Observers:
        """The plugins and trackers that watch this run; without any, no plugin is looked for."""
        found = trackers(self.config.log, self._plugin_host)
        if not found and not self.config.plugins:
            return Observers.none()
        return self._plugin_host().observers(
            self.config.plugins, more=found, report=self.observer.warn
        )

    def _offered(self, name: str) -> Any:
        """The function that a plugin offers under the name in the config; None for a bundled one, which has none of it."""
        return (
            self._plugin_host().load("algorithm", name.removeprefix(PLUGIN))
            if name.startswith(PLUGIN)
            else None
        )


def _to_load(
    stored: Mapping[str, Any], env: Environment[Any] | Mapping[str, Environment[Any]] | None
) -> dict[str, Any]:
    """Return a recorded config without the environments that the caller has made."""
    if isinstance(env, Environment):
        return {**stored, "environment": None, "env": {}}
    given = env or {}
    mixture = {
        name: member for name, member in (stored.get("mixture") or {}).items() if name not in given
    }
    return {
        **stored,
        "mixture": mixture,
        **({"environment": None, "env": {}} if stored.get("environment") in given else {}),
    }
