"""The environments of a run: one, or a mixture whose members are told apart by the name in a task's key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from grpo_core.config.config import RunConfig
from grpo_core.config.modelcache import cache_folder
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import Offer, PluginHost
from grpo_core.plugins.services import Lender
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, UnknownNameError
from grpo_core.protocol.types import Group, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.verify.cache import VerdictCache
from grpo_core.verify.engine import Verifier, VerifySettings, VerifyStats

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """One environment with the engine that asks it. share: its part of the prompts; 0 means that it is only evaluated. offer: the plugin
    that it comes from; None for a file, or one that was given."""

    name: str
    env: Environment[Any]
    verifier: Verifier
    share: float
    level: float
    offer: Offer | None = None


class Sources:
    """Every environment of a run behind one `tasks`, `verify` and `reply`; use it as `async with`, once.

    closed: whether it was used, and is over.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        lender: Lender | None = None,
        cache: VerdictCache | None = None,
    ) -> None:
        self._sources: dict[str, Source] = {}
        self._lender = lender
        self._cache = cache
        for source in sources:
            if source.name in self._sources:
                raise ConfigError(
                    f"two environments of the run are called {source.name!r}; rename a file or a class"
                )
            self._sources[source.name] = source
        self._open: contextlib.AsyncExitStack | None = None
        self.closed = False

    @classmethod
    def of(
        cls,
        config: RunConfig,
        envs: Mapping[str, Environment[Any]],
        *,
        host: PluginHost | None = None,
        closes_given: bool = True,
        lend: Callable[[type[Environment[Any]]], Services] | None = None,
    ) -> Sources:
        """The members of `config`. envs: those that are there already, by name (closes_given: and are closed at the end); the others
        are loaded by `host`. lend: gives a class what it needs; left out, that is opened as the config says."""
        if unknown := sorted(envs.keys() - config.members().keys()):
            raise UnknownNameError(
                "environment",
                unknown[0],
                config.members(),
                hint="Name it in environment, mixture or eval.also.",
            )
        found = []
        lender: Lender | None = None
        cache = _cache(config)
        names = {"workers", "timeout_seconds", "retries", "isolation", "worker_environment"}
        shared = VerifySettings(**config.verify.model_dump(include=names))
        for name, member in config.members().items():
            settings = replace(shared, weights=dict(member.weights))
            if name in envs:
                env, known, offer = envs[name], name, None
                verifier = Verifier(env, settings=settings, closes_env=closes_given, cache=cache)
            else:
                host = host or PluginHost()
                lender = lender or Lender(host, config.sandbox, config.judges)
                spec = host.get("environment", name)
                env, known = (
                    load_environment(host, name, member.env, lend=lend or lender.services),
                    spec.name,
                )
                plugin = host.plugins.get(known.partition("/")[0])
                offer = None if plugin is None else Offer(spec, plugin)
                verifier = Verifier(
                    env, spec=spec, overrides=member.env, settings=settings, cache=cache
                )
            found.append(Source(known, env, verifier, member.share, member.level or 0.0, offer))
        return cls(found, lender=lender, cache=cache)

    def __getitem__(self, name: str) -> Source:
        return self._sources[name]

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def trained(self) -> list[Source]:
        """Those that prompts are drawn from."""
        return [source for source in self if source.share > 0]

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            if self._cache is not None:
                stack.callback(self._cache.close)
            if self._lender is not None:
                stack.push_async_callback(
                    self._lender.close
                )  # after the environments, which borrow from it
            for source in self:
                await stack.enter_async_context(source.verifier)
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True
        if self._open is not None:
            await self._open.aclose()

    async def tasks(self, keys: Sequence[TaskKey], draws: int = 0) -> list[Task[Any]]:
        """The tasks of `keys`, in their order; raises GrpoError if one cannot be made."""
        found = await asyncio.gather(
            *(
                self[name].verifier.tasks([keys[i] for i in places], draws)
                for name, places in _by_name(keys)
            )
        )
        return _in_order(keys, found)

    async def references(self, tasks_P: Sequence[Task[Any]]) -> list[str | None]:
        """The environments' own answers; raises GrpoError if one cannot be had."""
        return list(
            await asyncio.gather(*(self[task.key.env].verifier.reference(task) for task in tasks_P))
        )

    async def verify(
        self, tasks_P: Sequence[Task[Any]], rollouts_PG: Sequence[Sequence[Rollout]]
    ) -> list[list[Verdict]]:
        """One verdict per attempt."""
        keys = [task.key for task in tasks_P]
        asked = [
            self[name].verifier.verify(
                [tasks_P[i] for i in places], [rollouts_PG[i] for i in places]
            )
            for name, places in _by_name(keys)
        ]
        return _in_order(keys, await asyncio.gather(*asked))

    async def audited(self, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """The same groups with the audits of those environments that have one (see `Verifier.audited`)."""
        return list(
            await asyncio.gather(
                *(self[group.task.key.env].verifier.audited(group) for group in groups)
            )
        )

    def forget_stats(self) -> None:
        """Count what is verified from here on."""
        for source in self:
            source.verifier.stats = VerifyStats()

    def cache_hit_rate(self) -> float | None:
        """Of the attempts since `forget_stats`, the share whose verdict was known; None if no cache was asked."""
        asked = sum(source.verifier.stats.asked for source in self)
        return sum(source.verifier.stats.cached for source in self) / asked if asked else None

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """The next turn of the environment that asked `task`; raises GrpoError if it fails."""
        return await self[task.key.env].verifier.reply(task, messages)


def _by_name(keys: Sequence[TaskKey]) -> list[tuple[str, list[int]]]:
    """The places of each environment's keys."""
    places: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key.env, []).append(i)
    return list(places.items())


def _in_order(keys: Sequence[TaskKey], found: Sequence[Sequence[T]]) -> list[T]:
    """What was found for each environment, back in the order of `keys`."""
    by_name = {name: iter(items) for (name, _), items in zip(_by_name(keys), found, strict=True)}
    return [next(by_name[key.env]) for key in keys]


def _cache(config: RunConfig) -> VerdictCache | None:
    verify = config.verify
    if verify.cache == "off":
        return None
    return VerdictCache(
        cache_folder() / "verdicts.sqlite" if verify.cache == "disk" else None,
        entries=verify.cache_entries,
    )
