"""What `grpo run` and `grpo sft` share: from options to a config, and from a config to a finished run folder."""

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

from grpo_core.cli.output import BROKEN_PIPE, INTERRUPTED, console, fail
from grpo_core.protocol.errors import ConfigError, GrpoError

if TYPE_CHECKING:
    from grpo_core.cli.progress import RunProgress
    from grpo_core.config.config import RunConfig
    from grpo_core.train.trainer import Trainer


ONE_KEY_PRESS_SECONDS = 1.0
"""Wrappers such as `timeout` or `uv run` pass on a Ctrl-C that the terminal has delivered already: two signals, one wish."""


def read_config(
    envs: Sequence[str],
    recipes: Sequence[str],
    options: Mapping[str, Any],
    settings: Sequence[str],
    *,
    trust: bool = False,
) -> RunConfig:
    """Recipes from left to right, then --env and other options, then --set."""
    from grpo_core.config.overrides import build_config, full_name, nested, parse_setting

    layers = [_recipe(name) for name in recipes]
    if envs:  # only these, be they a recipe's or not
        asked = {full_name(name) for name in envs}
        for layer in layers:
            if isinstance(mixture := layer.get("mixture"), Mapping):
                kept = {
                    name: member for name, member in mixture.items() if full_name(name) in asked
                }
                layer["mixture"] = kept if len(envs) > 1 else {}
                if len(envs) == 1:  # what a recipe says of it is as good for it alone
                    layer.update(
                        {
                            key: value
                            for member in kept.values()
                            for key, value in member.items()
                            if key != "share"
                        }
                    )
    for name, layer in zip(recipes, layers, strict=True):
        if layer.get("provenance"):  # it is the record of a run, perhaps of somebody else's
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
    """Raise ConfigError if the config.json of a run names code that the command does not name."""
    from grpo_core.config.overrides import full_name, split_setting
    from grpo_core.runs.trust import require_trust

    used = {**record, "environment": None} if envs else record
    named = [*map(full_name, envs), *(split_setting(text)[0] for text in settings)]
    require_trust(path, record, used=used, named=named, trust=trust)


def environments(names: Sequence[str]) -> dict[str, Any]:
    """One environment, or a mixture with equal shares."""
    from grpo_core.config.overrides import full_name

    full = list(map(full_name, names))
    if twice := [name for number, name in enumerate(names) if full[number] in full[:number]]:
        raise ConfigError(
            f"--env {twice[0]} is given twice; name each environment once (mixture.NAME.share gives it more)"
        )
    if len(names) > 1:
        return {"environment": None, "mixture": {name: {} for name in names}}
    return {"environment": names[0]} if names else {}


def _recipe(name: str) -> dict[str, Any]:
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
    """options: by the settings that they stand for; None where they were not written."""
    given = {key: value for key, value in options.items() if value is not None}
    if resume is None:
        if allow:
            raise ConfigError(
                "--allow is for --resume: it names what may have changed since; remove it"
            )
        if start_from is not None:
            raise ConfigError(
                "--from is for --resume: it names the checkpoint to go on from; remove it"
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
            f"--resume continues with the settings in {resume / 'config.json'}; remove the other options, or change one by --set"
        )
    continue_run(resume, settings or [], allow or [], trust=trust, start_from=start_from)


def start(config: RunConfig, path: Path | None) -> None:
    """Everything that can be wrong with the request is found before the folder is made."""
    from grpo_core.runs.folder import RunFolder
    from grpo_core.verify.sources import Sources

    sources = Sources.of(
        config, {}
    )  # names and settings are checked before torch is imported, which takes seconds
    # Of several processes the first chooses the folder and speaks.
    folder = None if _later_rank() else RunFolder.unused(path, name=_name(config))
    trainer_class = import_trainer(config.method)
    progress = _progress()
    progress.say(f"{', '.join(config.members()) or config.sft.data}: loading {config.model.name}")
    trainer = trainer_class(config, folder=folder, observer=progress, sources=sources)
    progress.say(f"writing to {trainer.folder.shown}")
    _train(trainer, progress)


def _name(config: RunConfig) -> str:
    """The run's, for its folder."""
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
    from grpo_core.config.overrides import split_setting
    from grpo_core.runs.folder import RunFolder

    config = RunFolder.open(path).config()  # what is no run is found before torch is imported
    trainer_class = import_trainer(config.get("method", "grpo"))
    progress = _progress()
    changes = dict(map(split_setting, settings))
    trainer = trainer_class.resumed(
        path, observer=progress, changes=changes, allow=allow, trust=trust, start_from=start_from
    )
    progress.say(f"continuing {path} after step {trainer.done} of {trainer.total}")
    _train(trainer, progress)


def _progress() -> RunProgress:
    from grpo_core.cli.progress import RunProgress

    return RunProgress(console(quiet=_later_rank()))


def _later_rank() -> bool:
    return int(os.environ.get("RANK", "0")) > 0


def import_trainer(method: str, *, command: str | None = None) -> type[Trainer]:
    """Of the run's method, whichever command goes on with it. command: who asks, where it does not follow from the method."""
    from grpo_core.protocol.errors import MissingExtraError

    try:
        from grpo_core.train.sft import WarmStart
        from grpo_core.train.trainer import Trainer
    except ModuleNotFoundError as error:
        command = command or f"grpo {'run' if method == 'grpo' else method}"
        raise MissingExtraError(command, "train", package=error.name or "") from None
    return WarmStart if method == "sft" else Trainer


def _train(trainer: Trainer, progress: RunProgress) -> None:
    from grpo_core.report.plots import draw_plots
    from grpo_core.train.run.ending import EndKind

    with progress, stoppable(trainer, "finishing this step, then saving") as stop:
        progress.on_lost(
            lambda text: stop.ask(trainer, text, BROKEN_PIPE if progress.closed else 1)
        )
        try:
            trainer.run()
        finally:
            try:
                draw_plots(trainer.folder.path)
            except (
                OSError,
                ValueError,
                GrpoError,
            ) as error:  # a picture must not hide how the run ended
                trainer.observer.warn(f"the plots could not be drawn: {error}")
    end, folder = trainer.end, trainer.folder
    assert end is not None
    if end.kind is EndKind.STOPPED:
        if progress.lost and not progress.closed:
            fail(f"{progress.lost}; {end.saved}", status=stop.status)
        raise typer.Exit(stop.status)
    what = "adapter" if trainer.config.lora.enabled else "model"
    progress.say(
        f'the trained {what} is in {folder.shown / "final"}; try it: grpo generate --run {shlex.quote(str(folder.shown))} "..."'
    )
    if end.kind is EndKind.UNSCORED:
        fail(end.reason, status=1)


@dataclass(slots=True)
class _Stop:
    """Why a run was asked to stop: the exit status that tells so."""

    status: int = INTERRUPTED

    def ask(self, trainer: Trainer, reason: str, status: int) -> None:
        """Ask the trainer to end after this step; the first wish counts."""
        if not trainer.stop_requested:
            self.status = status
        trainer.request_stop(reason)


@contextmanager
def stoppable(trainer: Trainer, how: str) -> Iterator[_Stop]:
    """Let Ctrl-C, SIGTERM and SIGHUP ask the trainer to end, and say `how`.

    The second signal ends the process at once (workers die with it). A SIGHUP that is ignored, as
    under nohup, stays ignored.
    """

    asked: list[float] = []
    wish = _Stop()

    def stop(number: int, _: object) -> None:
        now = time.monotonic()
        asked.append(now)
        if now - asked[0] > ONE_KEY_PRESS_SECONDS:
            os._exit(128 + number)
        if len(asked) == 1:
            wish.ask(trainer, f"{signal.Signals(number).name} was received", 128 + number)
            with suppress(OSError):  # the terminal may be gone, which is what SIGHUP says
                os.write(
                    2, f"\nstopping: {how} (again to leave at once)\n".encode()
                )  # a print could meet a print half-way

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield wish
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
