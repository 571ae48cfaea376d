"""Train from Python: `Trainer("arithmetic", steps=20).run()`.

The trainer only puts the parts together: a `Run` knows a method (`grpo.py`, `sft.py`), the method
knows an `Actor`, and no dependency points the other way.

The parts, and torch with them, are imported when a trainer is made: a file with an environment and
a script that trains on it is loaded by every command that needs the environment alone.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from grpo_core.calls.deadline import wait_for
from grpo_core.calls.stoppable import stoppable, tell_stderr
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, nested
from grpo_core.config.short import Given, by_name, config_of, names_given
from grpo_core.display.choose import default_display
from grpo_core.display.notebook import NotebookProgress
from grpo_core.figures.gains import Gain
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Sampler
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.hold import hold
from grpo_core.runs.observer import Observer
from grpo_core.runs.starting import starting
from grpo_core.runs.trust import Layer, checked_config, is_consented
from grpo_core.train.looking import Looks
from grpo_core.train.run.ending import EndKind, RunEnd
from grpo_core.train.run.journal import Journal, LogText
from grpo_core.train.run.resume import (
    changed_processes,
    changed_settings,
    refuse_changed_environments,
    refuse_changed_settings,
    refuse_fewer_steps,
    refuse_finished,
)
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.engine.policy.causal import Policy


class Trainer(Looks):
    """Trains one run, as `grpo run` and `grpo sft` do.

        Trainer("arithmetic", model="smollm2-135m", steps=20).run()
        Trainer(MyEnvironment(), steps=20, settings={"sampling.temperature": 0.9}).run()
        Trainer("rows.jsonl", reward=my_function, steps=20).run()
        Trainer(config, env).run()

    Progress is shown as the command shows it: in a notebook as a bar and a table, elsewhere as
    lines on stderr, or as a bar on a terminal.

    Args:
        config: an environment, as an object, a class or a name; a file of rows; or all settings, as
            `grpo_core.build_config` makes them. Their `method` says how to train.
        env: with a config, its environment, or several by their names in the config; those that are
            not given are loaded by their names.
        folder: where everything is written; runs/ENV-DATE-TIME if left out. Nothing is written
            before the first step.
        quiet: show nothing. The run folder holds it all the same.
        host: the plugins to load from.
        sources: the environments, if they were loaded already.
        policy: built from the config if left out.
        sampler: built for the policy if left out.
        observer: receives the progress of the run instead of the display.
        options: with an environment or rows, settings by the names of the options of `grpo run`
            (model, steps, lr, ...; see `short.OPTIONS`); `settings`, a mapping of any others by
            their dotted names; and for rows `reward`, a name, a function or several of them.

    Raises:
        UserError: something that the user can fix is wrong; nothing has been written then.
    """

    def __init__(
        self,
        config: Given,
        env: Environment[Any] | Mapping[str, Environment[Any]] | None = None,
        *,
        folder: RunFolder | Path | str | None = None,
        quiet: bool = False,
        host: PluginHost | None = None,
        sources: Sources | None = None,
        policy: Policy | None = None,
        sampler: Sampler | None = None,
        observer: Observer | None = None,
        **options: Any,
    ) -> None:
        from grpo_core.train.build import build_method, choose_observer, find_ranks
        from grpo_core.train.run.listeners import list_listeners, load_listeners
        from grpo_core.train.run.metrics import refuse_taken_names
        from grpo_core.train.run.opening import shared_run_folder
        from grpo_core.train.run.run import Run
        from grpo_core.train.run.stream import Stream

        config, own_env = config_of(config, options)
        env = env if own_env is None else own_env
        ranks = find_ranks(config)
        own_display = default_display() if observer is None and not quiet and ranks.first else None
        self._display = own_display or nullcontext()
        self.observer = choose_observer(
            own_display or observer, ranks, lambda: getattr(self, "folder", None)
        )
        host = host or PluginHost()
        self._open_sources = partial(Sources.of, config, by_name(config, env), host=host)
        sources = sources or self._open_sources()
        text = LogText()
        stream = Stream([text, self.observer])
        self.journal = Journal(stream, text)
        for offer in (source.offer for source in sources if source.offer is not None):
            self.journal.keep(host.rivals(offer.plugin))
        self._tell_beginning(config, sources)
        refuse_taken_names({source.name: source.env.parts for source in sources})
        outside = load_listeners(config, host, ranks)
        self.folder = shared_run_folder(
            folder, ranks, name=next((source.name for source in sources), config.method)
        )
        is_noted = ranks.first and policy is None
        with starting(self.folder.shown, "loading the model") if is_noted else nullcontext():
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
        if not (self.folder / "config.json").exists():
            self.journal.say(f"writing to {self.folder.shown}")

    def _tell_beginning(self, config: RunConfig, sources: Sources) -> None:
        """Say what is loaded, and what is judged in this process."""
        for source in sources:
            if source.verifier.settings.isolation != config.verify.isolation:
                self.journal.announce(
                    f"{source.name} is judged in this process, as its class is in a notebook or "
                    "script: if verify() hangs, so does the run; a class in a module is judged in "
                    "processes of its own"
                )
        self.journal.say(
            f"{', '.join(config.members()) or config.sft.data}: loading {config.model.name}"
        )

    @classmethod
    def resumed(
        cls,
        folder: RunFolder | Path | str,
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
        config = checked_config(layers, trust=trust, given=names_given(stored, env))
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
        trainer.journal.say(
            f"continuing {run_folder.shown} after step {trainer.done} of {trainer.method.total}"
        )
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

        Ctrl-C, the interrupt of a notebook's kernel, SIGTERM and SIGHUP finish the present step and
        save it; a second one leaves at once. Handlers of signals that somebody else has set stay.
        After a stop the run may be called again, to continue. An environment that was given to the
        constructor has been closed then, as at the end of every run.

        Returns:
            The gains on held-out tasks, by environment.

        Raises:
            KeyboardInterrupt: the run was interrupted, and saved; so that nothing goes on with an
                unfinished model.
            SystemExit: the same after SIGTERM and SIGHUP.
        """
        tell = self._display.warn if isinstance(self._display, NotebookProgress) else tell_stderr
        how = "finishing this step, then saving"
        with stoppable(self.actor.stop, how, again=_leave, tell=tell, replaces=False) as stop:
            gains = wait_for(self.arun())
        if stop.signal is None or self.end is None or self.end.kind is not EndKind.STOPPED:
            return gains
        if stop.signal != signal.SIGINT:
            raise SystemExit(stop.status)
        raise KeyboardInterrupt(
            f"{self.end}. Call run() again to go on, or later "
            f"Trainer.resumed({str(self.folder)!r}).run()"
        )

    async def arun(self) -> dict[str, Gain]:
        """Do the same as `run`, for code that has an event loop of its own."""
        if self.actor.sources.closed:
            self.actor.sources = self._open_sources()
        with self._display:
            try:
                gains = await self._run.train()
            finally:
                # The request was fulfilled; one that comes before a run begins still counts.
                self.actor.stop.withdraw()
            self._tell_next()
            return gains

    def _tell_next(self) -> None:
        """Say where what was trained is, and what can be done with it."""
        if self.end is None or self.end.kind not in (EndKind.FINISHED, EndKind.UNSCORED):
            return
        product = "adapter" if self.config.lora.enabled else "model"
        run = shlex.quote(str(self.folder.shown))
        self.journal.say(
            f"the trained {product} is in {self.folder.shown / 'final'}; "
            f'try it: grpo generate --run {run} "..."'
        )
        self.journal.say(f"its curves and rollouts: grpo report {run}")

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


def _leave(number: int) -> None:
    """Leave at once, as a second signal asks for.

    Raises:
        KeyboardInterrupt: after Ctrl-C.
        SystemExit: after another signal.
    """
    if number == signal.SIGINT:
        raise KeyboardInterrupt("the run was left at once; its newest checkpoint is kept")
    raise SystemExit(128 + number)
