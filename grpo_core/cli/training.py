"""Share code of `grpo run` and `grpo sft`: begin or continue a run, and train it to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.stoppable import stoppable
from grpo_core.cli.given import settings_of
from grpo_core.cli.imports import needs_training
from grpo_core.cli.launching import is_later_rank, launch, processes_to_start
from grpo_core.cli.output import BROKEN_PIPE, fail, remark
from grpo_core.cli.rows import with_rows
from grpo_core.cli.run_config import read_config
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import split_setting
from grpo_core.display.console import RunProgress
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.starting import ended_starts
from grpo_core.train.run.ending import EndKind
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.train.trainer import Trainer


class TrainingOptions(Protocol):
    """The options that every command has that trains; others stand for settings, by `Sets`."""

    @property
    def env(self) -> list[str] | None: ...
    @property
    def recipe(self) -> list[str] | None: ...
    @property
    def settings(self) -> list[str] | None: ...
    @property
    def out(self) -> Path | None: ...
    @property
    def resume(self) -> Path | None: ...
    @property
    def allow(self) -> list[str] | None: ...
    @property
    def start_from(self) -> str | None: ...
    @property
    def processes(self) -> int | None: ...
    @property
    def trust(self) -> bool: ...


def begin_or_continue(
    method: str, options: TrainingOptions, *, data: str | None = None, rewards: Sequence[str] = ()
) -> None:
    """Start a new run, or continue the one that --resume names.

    Args:
        method: the value of the setting `method`.
        options: the options of the command.
        data: the value of --data, where it names rows.
        rewards: the values of --reward.

    Raises:
        ConfigError: the options exclude each other, or a setting is wrong.
    """
    for text in () if is_later_rank() else ended_starts():
        remark(text)
    to_start = processes_to_start(options.processes)
    chosen = settings_of(options)
    envs, settings = with_rows(options.env or [], data, rewards, options.settings or [])
    if (run := options.resume) is not None:
        if envs or rewards or options.recipe or options.out:
            raise ConfigError(
                f"--resume continues the run in {run} with its environments and settings; remove "
                "--env, --data, --reward, --recipe and --out"
            )
        if to_start:
            launch(to_start, folder=run)
        continue_run(
            run,
            chosen | dict(map(split_setting, settings)),
            options.allow or [],
            trust=options.trust,
            start_from=options.start_from,
        )
        return
    _refuse_options_of_resume(options)
    chosen["method"] = method
    config = read_config(envs, options.recipe or [], chosen, settings, trust=options.trust)
    if to_start:
        folder = _unused_folder(config, options.out).path
        launch(to_start, folder=folder, more=[] if options.out else ["--out", str(folder)])
    start(config, options.out)


def _refuse_options_of_resume(options: TrainingOptions) -> None:
    if options.allow:
        raise ConfigError(
            "--allow is for --resume: it names what may have changed since; remove it"
        )
    if options.start_from is not None:
        raise ConfigError(
            "--from is for --resume: it names the checkpoint to continue from; remove it"
        )


def start(config: RunConfig, path: Path | None) -> None:
    """Train a new run. The request is checked completely before the run folder is created.

    Args:
        config: the settings.
        path: the run folder; None for the default.
    """
    # Checks names and settings before torch is imported, which takes seconds.
    sources = Sources.of(config, {})
    # With several processes, rank 0 chooses the folder and prints.
    folder = None if is_later_rank() else _unused_folder(config, path)
    progress = RunProgress(PrintableConsole(quiet=is_later_rank()))
    trainer_class = import_trainer(config.method, progress.say, adapter=config.lora.enabled)
    trainer = trainer_class(config, folder=folder, observer=progress, sources=sources)
    _train(trainer, progress)


def continue_run(
    path: Path,
    changes: Mapping[str, Any],
    allow: Sequence[str],
    *,
    trust: bool = False,
    start_from: str | None = None,
) -> None:
    """Continue the run in the folder `path`.

    Args:
        path: the run folder.
        changes: the settings that differ from here on, by their dotted names.
        allow: the names of what may have changed since, or may be damaged.
        trust: whether the command line has --trust (see `checked_config`).
        start_from: the name of an older checkpoint, or "start"; None for the newest checkpoint.
    """
    config = RunFolder.open(path).config()  # reports a wrong folder before torch is imported
    progress = RunProgress(PrintableConsole(quiet=is_later_rank()))
    trainer_class = import_trainer(config.get("method", "grpo"), progress.say)
    trainer = trainer_class.resumed(
        path,
        observer=progress,
        changes=changes,
        allow=allow,
        trust=trust,
        start_from=start_from,
    )
    _train(trainer, progress)


def _unused_folder(config: RunConfig, path: Path | None) -> RunFolder:
    """Return the folder of a new run: `path`, or one that is named after the environments."""
    names = [Path(name).name for name in config.members()] + (
        ["sft"] if config.method == "sft" else []
    )
    return RunFolder.unused(path, name="-".join(names))


def import_trainer(
    method: str, say: Callable[[str], object], *, adapter: bool = False
) -> type[Trainer]:
    """Return the trainer.

    Args:
        method: "grpo" or "sft", for the message.
        say: is told if the import takes long.
        adapter: whether an adapter is trained, whose package is then imported with the others,
            which is faster than later.

    Raises:
        MissingExtraError: a package of the extra "train" is not installed.
    """
    with needs_training(f"grpo {'run' if method == 'grpo' else method}", say=say):
        import_module("grpo_core.train.build")  # a trainer imports it when it is made
        if adapter:
            import_module("peft")
    from grpo_core.train.trainer import Trainer

    return Trainer


def _train(trainer: Trainer, progress: RunProgress) -> None:
    """Train to the end, and print how the run ended.

    Raises:
        typer.Exit: the run was stopped, or no held-out task could be scored.
    """
    with progress, stoppable(trainer.actor.stop, "finishing this step, then saving") as stop:
        progress.on_lost(
            lambda text: stop.ask(trainer.actor.stop, text, BROKEN_PIPE if progress.closed else 1)
        )
        trainer.run()
    end = trainer.end
    assert end is not None
    if end.kind is EndKind.STOPPED:
        if progress.lost and not progress.closed:
            fail(f"{progress.lost}; {end.saved}", status=stop.status)
        raise typer.Exit(stop.status)
    if end.kind is EndKind.UNSCORED:
        fail(end.reason, status=1)
