"""Train from Python: `Trainer(config).run()`.

The trainer only puts the parts together: a `Run` knows a method (`grpo.py`, `sft.py`), the method
knows an `Actor`, and no dependency points the other way.

The parts, and torch with them, are imported when a trainer is made: a file with an environment and
a script that trains on it is loaded by every command that needs the environment alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from grpo_core.calls.deadline import wait_for
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, nested
from grpo_core.figures.gains import Gain
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Sampler
from grpo_core.protocol.types import Group, TaskKey
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.hold import hold
from grpo_core.runs.observer import Observer
from grpo_core.runs.trust import Layer, checked_config, is_consented
from grpo_core.train.rollout.tasks import counted_sources
from grpo_core.train.run.ending import RunEnd
from grpo_core.train.run.journal import Journal, LogText
from grpo_core.train.run.resume import (
    changed_processes,
    changed_settings,
    refuse_changed_environments,
    refuse_changed_settings,
    refuse_fewer_steps,
    refuse_finished,
)
from grpo_core.verify.held_out import eval_keys
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.engine.policy.causal import Policy


class Trainer:
    """Trains one run: `Trainer(config).run()`, or `Trainer(config, env).run()` with an environment
    of your own.

    Args:
        config: validated, as `grpo_core.build_config` makes it; its `method` says how to train.
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
        from grpo_core.train.build import (
            build_method,
            choose_observer,
            find_ranks,
        )
        from grpo_core.train.run.listeners import list_listeners, load_listeners
        from grpo_core.train.run.metrics import refuse_taken_names
        from grpo_core.train.run.opening import shared_run_folder
        from grpo_core.train.run.run import Run
        from grpo_core.train.run.stream import Stream

        ranks = find_ranks(config)
        self.observer = choose_observer(observer, ranks, lambda: getattr(self, "folder", None))
        host = host or PluginHost()
        self._open_sources = partial(Sources.of, config, _by_name(config, env), host=host)
        sources = sources or self._open_sources()
        text = LogText()
        stream = Stream([text, self.observer])
        self.journal = Journal(stream, text)
        for offer in (source.offer for source in sources if source.offer is not None):
            self.journal.keep(host.rivals(offer.plugin))
        refuse_taken_names({source.name: source.env.parts for source in sources})
        outside = load_listeners(config, host, ranks)
        self.folder = shared_run_folder(
            folder, ranks, name=next((source.name for source in sources), config.method)
        )
        self.method = build_method(
            config, sources, ranks=ranks, host=host, observer=self.journal, policy=policy,
            sampler=sampler,
        )  # fmt: skip
        self.actor = self.method.actor
        self.config = self.actor.config
        listeners = partial(
            list_listeners, self.method, self.folder, outside, text, self.journal, self.observer
        )
        self._run = Run(
            self.method, self.folder, journal=self.journal, stream=stream, list_listeners=listeners
        )

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
        """Return a trainer for the run in `folder`, with its settings, after its newest checkpoint.

        A finished run goes on if `changes` give it more steps; its final/ becomes final-STEP.

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
            ConfigError: the run has no steps left, or something differs that `allow` does not name.
        """
        from grpo_core.train.run.opening import fingerprints
        from grpo_core.train.run.rewind import choose_checkpoint

        run_folder = RunFolder.open(Path(folder))
        is_finished = refuse_finished(run_folder, changes)
        stored = run_folder.config()
        layers = [Layer(stored, run_folder.path), Layer(nested(changes))]
        config = checked_config(layers, trust=trust, given=_names(stored, env))
        if config.method != (method := stored.get("method", "grpo")):
            raise ConfigError(
                f"{folder} is a run of method {method} and cannot continue with {config.method}"
            )
        if int(os.environ.get("RANK", "0")) == 0:  # the processes of a run would refuse each other
            hold(run_folder.path).release()
        restart = choose_checkpoint(run_folder, name=start_from, allowed=allow)
        settings_before = restart.progress.get("config", stored)
        refuse_changed_settings(build_config([stored]), settings_before, allowed=[*changes, *allow])
        check_steps = partial(refuse_fewer_steps, restart, run_folder, is_finished=is_finished)
        check_steps(config.steps)  # before a model is loaded
        trainer = cls(config, env, folder=run_folder, **more)
        check_steps(trainer.method.total)
        refuse_changed_environments(
            stored["provenance"]["environments"],
            fingerprints(config, trainer.actor.sources),
            allowed=allow,
        )
        if is_finished and trainer.actor.ranks.first:
            run_folder.reopen(restart.step)
        trainer._run.is_own = env is None or is_consented(layers, config)
        trainer._run.resume(restart)
        size = trainer.actor.ranks.size
        recorded = stored["provenance"].get("processes", size)
        if text := changed_processes(recorded, size, config=trainer.config):
            trainer.journal.announce(text)
        if changes or allow:
            trainer._run.record_changes(changed_settings(trainer.config, settings_before))
        return trainer

    @property
    def done(self) -> int:
        """Return the last finished step."""
        return self._run.done

    @property
    def end(self) -> RunEnd | None:
        """Return how the run ended; None before its end."""
        return self._run.end

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
        if self.actor.sources.closed:
            self.actor.sources = self._open_sources()
        try:
            return await self._run.train()
        finally:
            # The request was fulfilled; one that comes before a run begins still counts.
            self.actor.stop.withdraw()

    def request_stop(self, reason: str = "a stop was requested") -> None:
        """Ask the run to finish the present step, save, and end; the first reason is reported."""
        self.actor.stop.make(reason)

    def resume(self) -> int:
        """Go back to the newest checkpoint, or to the start if there is none.

        What was logged after it is cut.

        Returns:
            The step of the checkpoint.
        """
        return self._run.resume()

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
            tasks: task keys, or the number of held-out tasks, of which those that cannot be asked
                are left out.
            attempts: rollouts per task; group_size if left out.
            temperature: that of the run if left out.
        """
        actor = self.actor
        if not len(actor.sources):
            raise ConfigError(
                "this run has no environment to take tasks from; give one (eval.also takes it "
                "for evaluations alone)"
            )
        keys = (
            eval_keys(counted_sources(actor.sources)[0], tasks)
            if isinstance(tasks, int)
            else list(tasks)
        )

        async def sampled() -> list[Group[Any]]:
            async with self._open_sources(closes_given=False) as sources, actor.sampling():
                asked = keys
                if isinstance(tasks, int):
                    asked, _ = await actor.askable.split(sources, keys)
                return await actor.sample(
                    await sources.tasks(asked),
                    attempts=attempts or self.config.group_size,
                    step=self.done,
                    params=self.config.sampling.params(temperature),
                    sources=sources,
                )

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


def _by_name(
    config: RunConfig, env: Environment[Any] | Mapping[str, Environment[Any]] | None
) -> dict[str, Environment[Any]]:
    """Return the environments that the caller has made, by their names in the config."""
    if not isinstance(env, Environment):
        return dict(env or {})
    names = list(config.members()) if config.environment is None else [config.environment]
    if len(names) != 1:
        raise ConfigError(
            f"this run has the environments {', '.join(names) or '(none)'}; give yours by name: "
            f"Trainer(config, {{{names[0] if names else 'NAME'!r}: env}})"
        )
    return {names[0]: env}


def _names(
    stored: Mapping[str, Any], env: Environment[Any] | Mapping[str, Environment[Any]] | None
) -> Collection[str]:
    """Return the names, in a recorded config, of the environments that the caller has made."""
    return [str(stored.get("environment"))] if isinstance(env, Environment) else [*(env or ())]
