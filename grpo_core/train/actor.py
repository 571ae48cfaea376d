"""Sample rollouts of environments' tasks from a policy, and get their verdicts.

An `Actor` is all that `grpo eval`, `grpo env probe` and `grpo generate` build; a run adds a method
that learns from what the actor did.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from grpo_core.calls.deadline import describe, within
from grpo_core.calls.phases import phase
from grpo_core.calls.stopping import StopRequest
from grpo_core.config.config import RunConfig
from grpo_core.config.sizes import with_defaults
from grpo_core.engine.compute.tuning import with_sizes
from grpo_core.engine.models.adapter import base_weights, ineffective_settings
from grpo_core.engine.models.device import pick_device, pick_dtype
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import MakeSampler, builtin_sampler, load_policy
from grpo_core.engine.policy.memory import Footprint
from grpo_core.engine.policy.weights import PolicyWeights
from grpo_core.engine.ranks import Ranks
from grpo_core.protocol.sampler import Sampler, SamplingParams
from grpo_core.protocol.types import Group, Message, Task, TaskKey
from grpo_core.runs.observer import Observer
from grpo_core.train.rollout.agents import AgentAttempt
from grpo_core.train.rollout.askable import Askable
from grpo_core.train.rollout.attempt import Attempt, start_attempts
from grpo_core.train.rollout.budget import Budget, budget_of
from grpo_core.train.rollout.dialogue import Dialogues
from grpo_core.train.rollout.draws import Draws
from grpo_core.train.rollout.judging import Judging
from grpo_core.verify.sources import Source, Sources

TIS_CAP = 2.0
"""Default of loss.tis_cap for samplers that draw for themselves."""
GATHER_MS = 5.0
"""Default of sampling.gather_ms where agents make the attempts, in milliseconds."""
WAIT = "sampler_wait"
"""Name of the phase in which rollouts wait for their turn to be sampled."""
CLOSE_SECONDS = 30.0
"""Timeout for closing a sampler."""


class Actor:
    """Hold a policy, its sampler and the environments that it acts in.

    Args:
        config: the configuration of the run.
        sources: the environments; whoever uses the actor opens and closes them.
        policy: the policy.
        sampler: draws its completions.
        footprint: what the policy needs in memory, measured before it was sharded; None: it is not
            trained.
        ranks: the processes that share the work.
        load_seconds: how long it took to load all of this.
        defaults: which settings the model's size and the device have decided, in words; "" for
            none.
        warn: receives a warning about tasks that cannot be asked.
    """

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        *,
        policy: Policy,
        sampler: Sampler,
        footprint: Footprint | None,
        ranks: Ranks,
        load_seconds: float = 0.0,
        defaults: str = "",
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config = config
        self.defaults = defaults
        self.sources = sources
        self.policy = policy
        self.sampler = sampler
        self.footprint = footprint
        self.ranks = ranks
        self.load_seconds = load_seconds
        self.budgets: Mapping[str, Budget] = {
            source.name: budget_of(source.env, policy, config.sampling) for source in sources
        }
        """Limits of a rollout, by environment."""
        self.askable = Askable(policy, self.budgets, warn)
        """Tells which tasks can be asked."""
        self.stop = StopRequest()
        self.version = 0
        """Number of the step after which the policy's weights are the present ones."""
        self._synced_version: int | None = None
        self._make_locks()

    def _make_locks(self) -> None:
        """Make the locks of the present event loop."""
        self._sampler_in_use = asyncio.Lock()
        """Held while rollouts are sampled: the weights of the sampler do not change meanwhile."""
        self._weights_in_use = asyncio.Lock()
        """Held while the weights of the policy are changed or given to the sampler."""

    @property
    def overlaps(self) -> bool:
        """Return whether the sampler goes on while the policy is trained."""
        return self.config.pipeline.max_staleness > 0 and self.sampler.samples_during_updates

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Close the sampler at the end; whoever samples does so inside."""
        self._make_locks()
        try:
            yield
        finally:
            self._synced_version = None
            try:
                await within(self.sampler.close(), CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - what was computed matters more
                logging.getLogger(__name__).warning(
                    "the sampler could not be closed: %s", describe(error)
                )

    def updated(self, version: int) -> None:
        """Note that the policy has other weights: those after the step `version`."""
        self.version, self._synced_version = version, None

    @asynccontextmanager
    async def holding_weights(self) -> AsyncIterator[None]:
        """Keep the policy's weights and their owner from everybody else in the block.

        A sampler that cannot go on meanwhile first ends the rollouts that it has begun.
        """
        async with nullcontext() if self.overlaps else self._sampler_in_use, self._weights_in_use:
            yield

    @asynccontextmanager
    async def changing_weights(self, version: int) -> AsyncIterator[None]:
        """Lock the weights for an update in the block; then they are those after step `version`.

        A sampler that cannot go on meanwhile leaves the device to the policy.
        """
        async with self.holding_weights():
            if not self.overlaps:
                await self.sampler.rest()
            yield
            self.updated(version)

    async def sync(self, *, oldest: int | None = None) -> None:
        """Give the sampler the present weights, if it does not have them.

        Args:
            oldest: a version that suffices while the weights are being changed, so that nobody has
                to wait for that.
        """
        synced_version = self._synced_version
        if synced_version == self.version:
            return
        suffices = oldest is not None and synced_version is not None and synced_version >= oldest
        if suffices and self._weights_in_use.locked():
            return
        async with self._weights_in_use:
            await self.sampler.sync(PolicyWeights(self.policy), self.version)
            self._synced_version = self.version

    def stops(self) -> bool:
        """Return whether a stop was requested in any process, and share the request with all.

        All processes have to ask at the same place.
        """
        requests = self.ranks.gather_values((self.stop.is_made, self.stop.reason))
        for is_made, reason in requests:
            if is_made:
                self.stop.make(reason)
        # Not what this process knows by now: the others do not know it yet, and would go on.
        return any(is_made for is_made, _ in requests)

    async def sample(
        self,
        tasks_P: Sequence[Task[Any]],
        *,
        attempts: int,
        step: int,
        params: SamplingParams,
        sources: Sources,
    ) -> list[Group[Any]]:
        """Sample `attempts` rollouts of each task, without verdicts.

        Args:
            step: fixes the random numbers, with the run's seed.
            params: how tokens are drawn.
            sources: reply in dialogues.
        """
        await self.sync()
        started, _ = await self._play(
            tasks_P, attempts, step=step, params=params, sources=sources, dealt=Counter()
        )
        rollouts = self.ranks.gather([attempt.rollout() for attempt in started])
        return [
            Group(task, rollouts[i * attempts : (i + 1) * attempts])
            for i, task in enumerate(tasks_P)
        ]

    async def sample_and_verify(
        self,
        tasks_P: Sequence[Task[Any]],
        *,
        attempts: int,
        step: int = 0,
        params: SamplingParams | None = None,
        dealt: Counter[TaskKey] | None = None,
        oldest: int | None = None,
        lap: Callable[[str], None] = lambda phase: None,
    ) -> tuple[list[Group[Any]], float]:
        """Sample `attempts` rollouts of each task and judge them.

        Args:
            step: fixes the random numbers, with the run's seed.
            params: how tokens are drawn; as configured if left out.
            dealt: as for `start_attempts`.
            oldest: as for `sync`.
            lap: is called at the end of each phase, with its name.

        Returns:
            A judged group for each task, and the least probability mass that top-p, top-k and min-p
            kept in any draw.
        """
        overlap = self.config.verify.overlap
        async with aclosing(Judging(self.sources, self.ranks, overlap=overlap)) as judging:
            async with self._turn_at_the_sampler(lap):
                await self.sync(oldest=oldest)
                lap("sync")
                started, kept_mass = await self._play(
                    tasks_P,
                    attempts,
                    step=step,
                    params=params or self.config.sampling.params(),
                    sources=self.sources,
                    dealt=Counter() if dealt is None else dealt,
                    judging=judging,
                )
            lap("rollout")
            groups = await judging.groups(tasks_P, started)
            lap("verify")
        return groups, kept_mass

    async def evaluate(
        self,
        key_lists: Sequence[Sequence[TaskKey]],
        *,
        samples: int,
        params: SamplingParams,
        chunk: int,
        progress: Callable[[int, int], None],
        audit: bool = True,
        on_group: Callable[[Group[Any]], None] = lambda group: None,
    ) -> list[list[Group[Any]]]:
        """Return judged groups for each list of task keys; the caller has opened the sources.

        After a requested stop the lists are shorter, or empty.

        Args:
            key_lists: the tasks, in lists that are returned separately.
            samples: rollouts per task.
            params: how tokens are drawn.
            chunk: rollouts between two checks for a requested stop.
            progress: is called with the number of tasks done and their total.
            audit: also ask the audit judge of those environments that have one; each process
                audits its share.
            on_group: is called with each group.
        """
        total, done, groups_per_list = sum(map(len, key_lists)), 0, []
        tasks_per_chunk = max(1, chunk // samples)
        for keys in key_lists:
            groups: list[Group[Any]] = []
            for start in range(0, len(keys), tasks_per_chunk):
                if self.stops():
                    break
                progress(done, total)
                tasks_P = await self.sources.tasks(keys[start : start + tasks_per_chunk])
                judged, _ = await self.sample_and_verify(tasks_P, attempts=samples, params=params)
                if audit:
                    judged = await self.audited(judged)
                for group in judged:
                    on_group(group)
                groups += judged
                done += len(tasks_P)
            groups_per_list.append(groups)
        if done:
            progress(done, total)
        return groups_per_list

    async def audited(self, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """Return the groups with the audits of their attempts; each process audits its share."""
        own_groups = await self.sources.audited(self.ranks.share(groups))
        verdicts_PG = self.ranks.gather([list(group.verdicts) for group in own_groups])
        return [
            replace(group, verdicts=verdicts_G)
            for group, verdicts_G in zip(groups, verdicts_PG, strict=True)
        ]

    @asynccontextmanager
    async def _turn_at_the_sampler(self, lap: Callable[[str], None]) -> AsyncIterator[None]:
        """Wait until nobody else samples, which is a phase of its own, and sample in the block."""
        had_to_wait = self._sampler_in_use.locked()
        async with self._sampler_in_use:
            if had_to_wait:
                lap(WAIT)
            yield

    def overlaps_turns(self, source: Source) -> bool:
        """Return whether the turns of an environment's attempts overlap, as the config says."""
        overlap = self.config.rollout.overlap_turns
        return source.verifier.has_episodes if overlap is None else overlap

    async def _play(
        self,
        tasks_P: Sequence[Task[Any]],
        attempts: int,
        *,
        step: int,
        params: SamplingParams,
        sources: Sources,
        dealt: Counter[TaskKey],
        judging: Judging | None = None,
    ) -> tuple[list[Attempt | AgentAttempt], float]:
        """Play this process's share of the attempts to their ends.

        All weights are gathered meanwhile.

        Returns:
            The attempts, and the least probability mass that was kept in any draw of any process.
        """
        started = start_attempts(
            tasks_P,
            attempts,
            policy=self.policy,
            budgets=self.budgets,
            dealt=dealt,
            seed=self.config.seed,
            step=step,
            places=set(self.ranks.share(range(len(tasks_P) * attempts))),
        )
        dialogues = Dialogues(
            self.policy,
            self.sampler,
            params,
            environments=sources,
            overlap=lambda task: self.overlaps_turns(sources[task.key.env]),
        )
        with self.policy.whole():
            async with aclosing(dialogues.finished(started)) as finished:
                async for place in finished:
                    if judging is None or not judging.begin(place, started[place]):
                        await started[place].close()
            await self.ranks.arrive()
        kept_mass = min((attempt.kept_mass for attempt in started), default=1.0)
        return started, min(self.ranks.gather_values(kept_mass))


async def answer(
    actor: Actor,
    prompt: str | tuple[Message, ...],
    *,
    budget: int,
    params: SamplingParams,
    seed: int,
) -> str:
    """Return the policy's answer to a prompt that belongs to no environment.

    Args:
        budget: most tokens of the answer.
        params: how they are drawn.
        seed: fixes the random numbers.
    """
    policy = actor.policy
    if policy.fills and not isinstance(prompt, str):  # it takes plain text, no chat
        prompt = prompt[-1].content
    prompt_ids = policy.encode_checked(prompt, max_new_tokens=budget)
    draws = Draws(TaskKey("generate", "eval", 0, seed), seed, step=0)
    request = draws.request(prompt_ids, params, budget)
    await actor.sync()
    completion = await actor.sampler.generate(request)
    return policy.completion_text(prompt_ids, completion.token_ids)


def _with_dtype(config: RunConfig, ranks: Ranks) -> RunConfig:
    """Return the config with the type that the first process picks, where each would pick one."""
    if ranks.size == 1 or config.model.dtype != "auto":
        return config
    picked = str(pick_dtype("auto", pick_device(config.model.device))).removeprefix("torch.")
    model = config.model.model_copy(update={"dtype": ranks.gather_values(picked)[0]})
    return config.model_copy(update={"model": model})


def build_actor(
    config: RunConfig,
    sources: Sources,
    *,
    ranks: Ranks,
    observer: Observer,
    trains: bool = False,
    need_reference: bool = False,
    policy: Policy | None = None,
    make_sampler: MakeSampler | None = None,
) -> Actor:
    """Load the model and return the actor.

    Its config has a number for each setting that was left to the model's size or to the device.

    Args:
        trains: whether it is to be trained, so that the memory of a step is measured.
        need_reference: whether the frozen reference is needed.
        observer: hears what takes long, and warnings about the model and unprotected verifiers.
        policy: instead of the one that the config names.
        make_sampler: makes the sampler of the policy; the built-in one if left out.

    Raises:
        UserError: the model cannot be loaded, or the environments need what it cannot do.
    """
    started = time.perf_counter()
    for exposure in sorted({source.verifier.exposure for source in sources} - {""}):
        observer.warn(exposure)
    typed, say = _with_dtype(config, ranks), observer.say
    policy = policy or load_policy(typed, need_reference=need_reference, say=say)
    _warn_of_ineffective(policy, config, observer)
    if need_reference and config.kl.refresh_every is not None:
        policy.reference.follow()
    config, defaults = with_defaults(config, base_weights(policy.model))
    config, sizes = with_sizes(config, policy.tuning)
    config = _with_gathering(config, sources)
    footprint = None
    if trains:
        with phase("measuring the memory of a training step", say):
            footprint = Footprint(policy)
    sampler = (
        builtin_sampler(policy, config.sampling)
        if make_sampler is None
        else make_sampler(policy, config)
    )
    config, truncation = _with_truncation(config, sampler)
    if config.trainer.shard and ranks.size > 1:
        policy.shard()
    return Actor(
        config,
        sources,
        policy=policy,
        sampler=sampler,
        footprint=footprint,
        ranks=ranks,
        load_seconds=time.perf_counter() - started,
        defaults="; ".join(filter(None, (defaults, sizes, truncation))),
        warn=observer.warn,
    )


def _warn_of_ineffective(policy: Policy, config: RunConfig, observer: Observer) -> None:
    """Warn of settings of a fresh adapter where the model brings one."""
    if ignored := ineffective_settings(policy.model, config.lora):
        observer.warn(
            "the model brings an adapter, which is trained further as it is, so these "
            f"settings have no effect: {', '.join(ignored)}"
        )


def _with_gathering(config: RunConfig, sources: Sources) -> RunConfig:
    """Return the config with a number for sampling.gather_ms: agents send requests of their own."""
    if config.sampling.gather_ms is not None:
        return config
    has_agents = any(source.verifier.has_agents for source in sources)
    gather_ms = GATHER_MS if has_agents else 0.0
    sampling = config.sampling.model_copy(update={"gather_ms": gather_ms})
    return config.model_copy(update={"sampling": sampling})


def _with_truncation(config: RunConfig, sampler: Sampler) -> tuple[RunConfig, str]:
    """Return the config with a number for loss.tis_cap, and a line about it; "" for none."""
    staleness = config.pipeline.max_staleness
    if config.loss.tis_cap is not None or config.method != "grpo":
        return config, ""
    if not sampler.uses_uniforms:
        reason = (
            f"the sampler {config.sampler.name!r} has probabilities of its own, and draws that a "
            "replay does not repeat"
        )
    elif staleness:
        reason = f"with pipeline.max_staleness={staleness} older weights sample than are trained"
    else:
        return config, ""
    loss = config.loss.model_copy(update={"tis_cap": TIS_CAP})
    return config.model_copy(update={"loss": loss}), f"loss.tis_cap={TIS_CAP:g}: {reason}"
