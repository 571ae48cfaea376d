"""Combine the environments of a run: one, or a mixture.

The members of a mixture are distinguished by the environment's name in a task's key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from grpo_core.config.config import RunConfig
from grpo_core.config.modelcache import cache_folder
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import Offer, PluginHost
from grpo_core.plugins.services import Lender, lacks_endpoint, open_executor
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, UnknownNameError
from grpo_core.protocol.executor import Executor
from grpo_core.protocol.spec import names_file
from grpo_core.protocol.types import Group, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.conversation import Conversation
from grpo_core.verify.judge.cache import VerdictCache
from grpo_core.verify.workers.hosts import Placement
from grpo_core.verify.workers.local import LocalExecutor

LOCAL = "local"
"""The name of the executor that verifies on this machine."""


@dataclass(frozen=True, slots=True)
class Source:
    """Hold one environment of a run with the verifier that calls it."""

    name: str
    """Name of the environment, as in its task keys."""
    env: Environment[Any]
    verifier: Verifier
    share: float
    """Its share of the prompts, relative to the other shares; 0: it is only evaluated."""
    level: float
    """Difficulty of its tasks, from 0 to 1."""
    offer: Offer | None = None
    """The plugin that it comes from; None: from a file, or created by the caller."""


class Sources:
    """Get tasks and verdicts from all environments of a run.

    Use it as `async with`, only once.

    Attributes:
        closed: whether it was used and has been closed.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        lender: Lender | None = None,
        cache: VerdictCache | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Combine some environments.

        Args:
            sources: the environments.
            lender: their services, which are closed with the sources.
            cache: their verdict cache, which is closed with the sources.
            executor: where they verify, which is closed with the sources.

        Raises:
            ConfigError: two environments have the same name.
        """
        self._sources: dict[str, Source] = {}
        self._lender = lender
        self._cache = cache
        self._executor = executor
        for source in sources:
            if source.name in self._sources:
                raise ConfigError(
                    f"two environments of the run are called {source.name!r}; "
                    "rename a file or a class"
                )
            self._sources[source.name] = source
        self._exit_stack = contextlib.AsyncExitStack()
        self.closed = False

    @classmethod
    def of(
        cls,
        config: RunConfig,
        envs: Mapping[str, Environment[Any]],
        *,
        host: PluginHost | None = None,
        closes_given: bool = True,
        lend: Callable[[type[Environment[Any]], Any], Services] | None = None,
        placement: Placement | None = None,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> Sources:
        """Return the environments that a config names.

        Args:
            config: the run's config.
            envs: environments that exist already, by name; the others are loaded.
            host: the installed plugins; None: they are searched when an environment is loaded.
            closes_given: whether the environments in `envs` are closed at the end.
            lend: returns the services that an environment's class needs with its settings; None:
                services are opened as the config says.
            placement: where the environments verify; None: as the config says.
            names: names in task keys that differ from those of the environments, by the latter.

        Raises:
            UnknownNameError: `envs` has a name that the config does not have, or an environment is
                not installed.
        """
        if unknown_names := sorted(envs.keys() - config.members().keys()):
            raise UnknownNameError(
                "environment",
                unknown_names[0],
                config.members(),
                hint="Name it in environment, mixture or eval.also.",
            )
        cache_path = cache_folder() / "verdicts.sqlite" if config.verify.cache == "disk" else None
        cache = (
            VerdictCache(cache_path, entries=config.verify.cache_entries)
            if config.verify.cache != "off"
            else None
        )
        placement = placement or choose_placement(config, host)
        make_verifier = partial(Verifier, settings=config.verify, cache=cache, placement=placement)
        lender: Lender | None = None
        sources = []
        for name, member in config.members().items():
            if name in envs:
                env, source_name, offer = envs[name], name, None
                if lacks_endpoint(env):
                    host = host or PluginHost()
                    lender = lender or _lender(host, config)
                    lender.complete(env)
                verifier = make_verifier(env, weights=member.weights, closes_env=closes_given)
            else:
                host = host or PluginHost()
                lender = lender or _lender(host, config)
                spec = host.get("environment", name)
                env = load_environment(host, name, member.env, lend=lend or lender.services)
                source_name = names.get(spec.name, spec.name)
                offer = None if names_file(name) else host.find("environment", name)
                verifier = make_verifier(
                    env, weights=member.weights, spec=spec, overrides=member.env
                )
            sources.append(
                Source(source_name, env, verifier, member.share, member.level or 0.0, offer)
            )
        return cls(sources, lender=lender, cache=cache, executor=placement.executor)

    def __getitem__(self, name: str) -> Source:
        return self._sources[name]

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def trained(self) -> list[Source]:
        """Return the environments that the policy is trained on."""
        return [source for source in self if source.share > 0]

    @property
    def with_agents(self) -> frozenset[str]:
        """Return the names of the environments whose attempts are made by agents."""
        return frozenset(source.name for source in self if source.verifier.has_agents)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            if self._cache is not None:
                stack.callback(self._cache.close)
            if self._lender is not None:
                # Closed after the environments, which use its services.
                stack.push_async_callback(self._lender.close)
            if self._executor is not None:
                stack.push_async_callback(self._executor.close)
            for source in self:
                await stack.enter_async_context(source.verifier)
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.closed = True
        await self._exit_stack.aclose()

    async def tasks(self, keys: Sequence[TaskKey], draws: int = 0) -> list[Task[Any]]:
        """Return the tasks of `keys`, in their order, with one draw for all of them.

        Raises:
            GrpoError: a task cannot be created.
        """
        return list(
            await asyncio.gather(*(self[key.env].verifier.task(key, draws) for key in keys))
        )

    async def references(self, tasks_P: Sequence[Task[Any]]) -> list[str | tuple[str, ...] | None]:
        """Return the environments' reference answers; None for a task that has none.

        An answer is the text of one turn, or the texts of several.

        Raises:
            GrpoError: an environment fails to give one.
        """
        return list(
            await asyncio.gather(*(self[task.key.env].verifier.reference(task) for task in tasks_P))
        )

    async def verify(
        self, tasks_P: Sequence[Task[Any]], rollouts_PG: Sequence[Sequence[Rollout]]
    ) -> list[list[Verdict]]:
        """Return one verdict per rollout. Each environment is asked once, for all its tasks.

        Args:
            tasks_P: the tasks.
            rollouts_PG: the rollouts of each task.
        """
        indices_by_env: dict[str, list[int]] = {}
        for index, task in enumerate(tasks_P):
            indices_by_env.setdefault(task.key.env, []).append(index)
        verdicts = await asyncio.gather(
            *(
                self[name].verifier.verify(
                    [tasks_P[index] for index in indices],
                    [rollouts_PG[index] for index in indices],
                )
                for name, indices in indices_by_env.items()
            )
        )
        verdicts_by_env = dict(zip(indices_by_env, map(iter, verdicts), strict=True))
        return [next(verdicts_by_env[task.key.env]) for task in tasks_P]

    async def audited(self, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """Return the groups with the audits of those environments that have one.

        See `Verifier.audited`.
        """
        return list(
            await asyncio.gather(
                *(self[group.task.key.env].verifier.audited(group) for group in groups)
            )
        )

    def forget_stats(self) -> None:
        """Set the counts of all verifiers to 0."""
        for source in self:
            source.verifier.stats.reset()

    def cache_hit_rate(self) -> float | None:
        """Return the share of cache lookups since `forget_stats` that were hits.

        None if there were no lookups.
        """
        lookups = sum(source.verifier.stats.cache_lookups for source in self)
        hits = sum(source.verifier.stats.cache_hits for source in self)
        return hits / lookups if lookups else None

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation about a task; see `Verifier.conversation`."""
        return self[task.key.env].verifier.conversation(task)

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the next turn of the task's environment; None if it ends the dialogue.

        Raises:
            GrpoError: the environment fails.
        """
        return await self[task.key.env].verifier.reply(task, messages)


def _lender(host: PluginHost, config: RunConfig) -> Lender:
    return Lender(host, config.sandbox, config.judges, config.endpoint)


def choose_placement(config: RunConfig, host: PluginHost | None) -> Placement:
    """Return where the config says that environments verify; a plugin is loaded at once.

    Args:
        config: the run's config.
        host: the installed plugins; None: they are searched.

    Raises:
        UserError: there is no such executor, or a setting of it is not valid.
    """
    chosen = config.verify.executor
    executor: Executor = (
        LocalExecutor() if chosen.name == LOCAL else open_executor(host or PluginHost(), chosen)
    )
    return Placement(executor, chosen.name, config.sandbox, config.judges)
