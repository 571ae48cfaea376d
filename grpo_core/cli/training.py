"""Share code of `grpo run` and `grpo sft`: from options to a config, from it to a finished run."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from grpo_core.cli.output import BROKEN_PIPE, INTERRUPTED, console, fail, needs_training
from grpo_core.protocol.errors import ConfigError, GrpoError

if TYPE_CHECKING:
    from grpo_core.cli.progress import RunProgress
    from grpo_core.config.config import RunConfig
    from grpo_core.train.actor import StopRequest
    from grpo_core.train.trainer import Trainer


ONE_KEY_PRESS_SECONDS = 1.0
"""The time in seconds within which repeated signals count as one.

Wrappers such as `timeout` or `uv run` forward a Ctrl-C that the terminal has already delivered, so
one key press can arrive as two signals.
"""


def read_config(
    envs: Sequence[str],
    recipes: Sequence[str],
    options: Mapping[str, Any],
    settings: Sequence[str],
    *,
    trust: bool = False,
) -> RunConfig:
    """Return the config of a run. Later sources override earlier ones.

    The order is: recipes from left to right, then --env and other options, then --set.

    Args:
        envs: the values of --env. If there are any, the environments of the recipes that are not
            among them are removed.
        recipes: the values of --recipe.
        options: the other options, by the dotted name of the setting that each stands for.
        settings: the values of --set, KEY=VALUE.
        trust: whether the command line has --trust.

    Raises:
        ConfigError: a setting is wrong, or a recipe is the config.json of an untrusted run.
    """
    from grpo_core.config.overrides import build_config, full_name, nested, parse_setting

    layers = [_read_recipe(name) for name in recipes]
    if envs:
        requested = {full_name(name) for name in envs}
        for layer in layers:
            if isinstance(mixture := layer.get("mixture"), Mapping):
                kept = {
                    name: member for name, member in mixture.items() if full_name(name) in requested
                }
                layer["mixture"] = kept if len(envs) > 1 else {}
                # A recipe's settings of a mixture member also hold if it is the only environment.
                if len(envs) == 1:
                    layer.update(
                        {
                            key: value
                            for member in kept.values()
                            for key, value in member.items()
                            if key != "share"
                        }
                    )
    for name, layer in zip(recipes, layers, strict=True):
        if layer.get("provenance"):  # a run wrote this file, possibly a run of somebody else
            _require_trust_in_record(Path(name), layer, envs, settings, trust=trust)
    return build_config(
        [*layers, environments(envs), nested(options), *map(parse_setting, settings)]
    )


def _require_trust_in_record(
    path: Path,
    record: Mapping[str, Any],
    envs: Sequence[str],
    settings: Sequence[str],
    *,
    trust: bool,
) -> None:
    """Refuse the config.json of a run if it names code that the command line does not name.

    Raises:
        ConfigError: the user has not consented to that code (see `require_trust`).
    """
    from grpo_core.config.overrides import full_name, split_setting
    from grpo_core.runs.trust import require_trust

    used = {**record, "environment": None} if envs else record
    named = [*map(full_name, envs), *(split_setting(text)[0] for text in settings)]
    require_trust(path, record, used=used, named=named, trust=trust)


def environments(names: Sequence[str]) -> dict[str, Any]:
    """Return the settings for the values of --env: one environment, or a mixture of equal shares.

    Raises:
        ConfigError: an environment is named twice.
    """
    from grpo_core.config.overrides import full_name

    full_names = list(map(full_name, names))
    if repeated := [
        name for index, name in enumerate(names) if full_names[index] in full_names[:index]
    ]:
        raise ConfigError(
            f"--env {repeated[0]} is given twice; name each environment once "
            "(mixture.NAME.share sets its share)"
        )
    if len(names) > 1:
        return {"environment": None, "mixture": {name: {} for name in names}}
    return {"environment": names[0]} if names else {}


def _read_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a recipe: a .toml or .json file, or a plugin's recipe by its name."""
    from grpo_core.config.overrides import read_recipe
    from grpo_core.plugins.host import PluginHost

    path = Path(name)
    if path.suffix in {".toml", ".json"} or path.is_file():
        return read_recipe(path)
    return dict(PluginHost().load("recipe", name))


def begin_or_continue(
    method: str,
    options: Mapping[str, Any],
    *,
    env: Sequence[str] | None,
    recipe: Sequence[str] | None,
    settings: Sequence[str] | None,
    out: Path | None,
    resume: Path | None,
    allow: Sequence[str] | None,
    trust: bool = False,
    start_from: str | None = None,
) -> None:
    """Start a new run, or continue the one that --resume names.

    Args:
        method: the value of the setting `method`.
        options: the options that stand for settings, by the setting's dotted name; None for an
            option that the command line does not have.
        env: the values of --env.
        recipe: the values of --recipe.
        settings: the values of --set.
        out: the value of --out.
        resume: the value of --resume.
        allow: the values of --allow.
        trust: whether the command line has --trust.
        start_from: the value of --from.

    Raises:
        ConfigError: the options exclude each other, or a setting is wrong.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if resume is None:
        if allow:
            raise ConfigError(
                "--allow is for --resume: it names what may have changed since; remove it"
            )
        if start_from is not None:
            raise ConfigError(
                "--from is for --resume: it names the checkpoint to continue from; remove it"
            )
        start(
            read_config(
                env or [], recipe or [], {**given, "method": method}, settings or [], trust=trust
            ),
            out,
        )
        return
    if given or env or recipe or out:
        raise ConfigError(
            f"--resume continues with the settings in {resume / 'config.json'}; "
            "remove the other options, or change one by --set"
        )
    continue_run(resume, settings or [], allow or [], trust=trust, start_from=start_from)


def start(config: RunConfig, path: Path | None) -> None:
    """Train a new run. The request is checked completely before the run folder is created.

    Args:
        config: the settings.
        path: the run folder; None for the default.
    """
    from grpo_core.runs.folder import RunFolder
    from grpo_core.verify.sources import Sources

    # Checks names and settings before torch is imported, which takes seconds.
    sources = Sources.of(config, {})
    # With several processes, rank 0 chooses the folder and prints.
    folder = None if _is_later_rank() else RunFolder.unused(path, name=_run_name(config))
    trainer_class = import_trainer(config.method)
    progress = _make_progress()
    progress.say(f"{', '.join(config.members()) or config.sft.data}: loading {config.model.name}")
    trainer = trainer_class(config, folder=folder, observer=progress, sources=sources)
    progress.say(f"writing to {trainer.folder.shown}")
    _train(trainer, progress)


def _run_name(config: RunConfig) -> str:
    """Return the name of the run for its default folder."""
    parts = [Path(name).name for name in config.members()] + (
        ["sft"] if config.method == "sft" else []
    )
    return "-".join(parts)


def continue_run(
    path: Path,
    settings: Sequence[str],
    allow: Sequence[str],
    *,
    trust: bool = False,
    start_from: str | None = None,
) -> None:
    """Continue the run in the folder `path`.

    Args:
        path: the run folder.
        settings: the values of --set.
        allow: the names of what may have changed since, or may be damaged.
        trust: whether the folder is trusted although it names code (see `require_trust`).
        start_from: the name of an older checkpoint, or "start"; None for the newest checkpoint.
    """
    from grpo_core.config.overrides import split_setting
    from grpo_core.runs.folder import RunFolder

    config = RunFolder.open(path).config()  # reports a wrong folder before torch is imported
    trainer_class = import_trainer(config.get("method", "grpo"))
    progress = _make_progress()
    changes = dict(map(split_setting, settings))
    trainer = trainer_class.resumed(
        path, observer=progress, changes=changes, allow=allow, trust=trust, start_from=start_from
    )
    progress.say(f"continuing {path} after step {trainer.done} of {trainer.method.total}")
    _train(trainer, progress)


def _make_progress() -> RunProgress:
    from grpo_core.cli.progress import RunProgress

    return RunProgress(console(quiet=_is_later_rank()))


def _is_later_rank() -> bool:
    """Tell whether this process is not the first of a distributed run."""
    return int(os.environ.get("RANK", "0")) > 0


def import_trainer(method: str) -> type[Trainer]:
    """Return the trainer.

    Args:
        method: "grpo" or "sft", for the message.

    Raises:
        MissingExtraError: a package of the extra "train" is not installed.
    """
    with needs_training(f"grpo {'run' if method == 'grpo' else method}"):
        from grpo_core.train.trainer import Trainer
    return Trainer


def _train(trainer: Trainer, progress: RunProgress) -> None:
    """Train to the end, draw the plots, and print how the run ended.

    Raises:
        typer.Exit: the run was stopped, or no held-out task could be scored.
    """
    from grpo_core.report.plots import draw_plots
    from grpo_core.train.run.ending import EndKind

    with progress, stoppable(trainer.actor.stop, "finishing this step, then saving") as stop:
        progress.on_lost(
            lambda text: stop.ask(trainer.actor.stop, text, BROKEN_PIPE if progress.closed else 1)
        )
        try:
            trainer.run()
        finally:
            try:
                draw_plots(trainer.folder.path)
            # A failed plot must not hide how the run ended.
            except (OSError, ValueError, GrpoError) as error:
                trainer.observer.warn(f"the plots could not be drawn: {error}")
    end, folder = trainer.end, trainer.folder
    assert end is not None
    if end.kind is EndKind.STOPPED:
        if progress.lost and not progress.closed:
            fail(f"{progress.lost}; {end.saved}", status=stop.status)
        raise typer.Exit(stop.status)
    product = "adapter" if trainer.config.lora.enabled else "model"
    run_argument = shlex.quote(str(folder.shown))
    progress.say(
        f"the trained {product} is in {folder.shown / 'final'}; "
        f'try it: grpo generate --run {run_argument} "..."'
    )
    if end.kind is EndKind.UNSCORED:
        fail(end.reason, status=1)


@dataclass(slots=True)
class _Stop:
    """Record why a run was asked to stop."""

    status: int = INTERRUPTED
    """The exit status that tells the reason."""

    def ask(self, request: StopRequest, reason: str, status: int) -> None:
        """Make the request to stop; the first one decides the exit status."""
        if not request.is_made:
            self.status = status
        request.make(reason)


@contextmanager
def stoppable(request: StopRequest, how: str) -> Iterator[_Stop]:
    """Make Ctrl-C, SIGTERM and SIGHUP request a stop during the block.

    A second signal ends the process at once, and its workers with it. A SIGHUP that is ignored, as
    under nohup, stays ignored.

    Args:
        request: the request to stop that is made.
        how: how the work will end, for the message.
    """

    signal_times: list[float] = []
    stop = _Stop()

    def handle_signal(number: int, _: object) -> None:
        now = time.monotonic()
        signal_times.append(now)
        if now - signal_times[0] > ONE_KEY_PRESS_SECONDS:
            os._exit(128 + number)
        if len(signal_times) == 1:
            stop.ask(request, f"{signal.Signals(number).name} was received", 128 + number)
            # After SIGHUP the terminal may no longer exist. os.write, because a signal can arrive
            # in the middle of a print, which is not reentrant.
            with suppress(OSError):
                os.write(2, f"\nstopping: {how} (again to leave at once)\n".encode())

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, handle_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
