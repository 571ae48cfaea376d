"""`grpo run`: from the command line to a trained adapter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_core.errors import ConfigError

if TYPE_CHECKING:
    from grpo_core.cli.progress import RunProgress
    from grpo_core.config import RunConfig
    from grpo_core.train.trainer import Trainer


ONE_KEY_PRESS_SECONDS = 1.0
"""Wrappers such as `timeout` or `uv run` pass on a Ctrl-C that the terminal has delivered already: two signals, one wish."""


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        epilog="Example: grpo run --env arithmetic --steps 150 --set kl.beta=0.02 --out runs/first",
    )(run)


def run(
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            help="Environment to train on: a name that `grpo envs` lists, or FILE.py:CLASS; several make a mixture.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Hub id (with @revision), folder or alias. [default: smollm2-135m]")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Rollout batches to train on. [default: 150]")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Passes over an environment of finite size, instead of --steps.")] = None,
    group_size: Annotated[int | None, typer.Option("--group-size", help="Completions of each prompt, at least 2. [default: 8]")] = None,
    prompts_per_step: Annotated[int | None, typer.Option("--prompts-per-step", help="Prompts of each step. [default: 8]")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="Most tokens of one completion. [default: what the environment recommends]")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate. [default: 3e-4]")] = None,
    beta: Annotated[
        float | None, typer.Option("--beta", help="Weight of the KL to the reference; 0 switches it off. [default: 0.12]")
    ] = None,
    level: Annotated[float | None, typer.Option("--level", help="Difficulty of the tasks, from 0 to 1. [default: 0]")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Decides tasks, draws and initial adapter. [default: 0]")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option("--device", help="Where to compute. [default: auto]")
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "float64"] | None,
        typer.Option("--dtype", help="Type of the weights; auto takes bfloat16 where the hardware computes in it. [default: auto]"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder to make. [default: runs/ENV-DATE-TIME]", show_default=False)] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", help="Settings from a TOML file, a run's config.json or a plugin's recipe; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as kl.estimator=k1; may be repeated.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Continue the run in this folder, with its settings.", show_default=False)
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="NAME", help="With --resume: a setting or an environment that may have changed; may be repeated."),
    ] = None,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", help="Evaluate on held-out tasks every so many steps. [default: before and after]")
    ] = None,
) -> None:
    """Train a model on an environment with GRPO.

    Tasks, completions, verdicts and metrics go to the run folder, the adapter to its folder final/. Ctrl-C saves and ends after the
    step that is under way; a second Ctrl-C ends at once.
    """
    options = {
        "model.name": model,
        "steps": steps,
        "epochs": epochs,
        "group_size": group_size,
        "prompts_per_step": prompts_per_step,
        "sampling.max_new_tokens": max_new_tokens,
        "optimizer.lr": lr,
        "kl.beta": beta,
        "level": level,
        "seed": seed,
        "model.device": device,
        "model.dtype": dtype,
        "eval.every": eval_every,
    }
    given = {key: value for key, value in options.items() if value is not None}
    if resume is not None:
        if given or env or recipe or out:
            raise ConfigError(
                f"--resume continues with the settings in {resume / 'config.json'}; leave the other options away, or change one by --set"
            )
        _resume(resume, settings or [], allow or [])
    else:
        _start(read_config(env or [], recipe or [], given, settings or []), out)


def read_config(envs: Sequence[str], recipes: Sequence[str], options: Mapping[str, Any], settings: Sequence[str]) -> RunConfig:
    """Recipes from left to right, then --env and other options, then --set."""
    from grpo_core.overrides import build_config, nested, parse_setting

    layers = [_recipe(name) for name in recipes]
    return build_config([*layers, _environments(envs), nested(options), *map(parse_setting, settings)])


def _environments(names: Sequence[str]) -> dict[str, Any]:
    """One environment, or a mixture with equal shares."""
    if len(names) > 1:
        return {"environment": None, "mixture": {name: {} for name in names}}
    return {"environment": names[0]} if names else {}


def _recipe(name: str) -> dict[str, Any]:
    from grpo_core.overrides import read_recipe
    from grpo_core.plugins import PluginHost

    path = Path(name)
    if path.suffix in {".toml", ".json"} or path.exists():
        return read_recipe(path)
    return dict(PluginHost().load("recipe", name))


def _start(config: RunConfig, path: Path | None) -> None:
    """Everything that can be wrong with the request is found before the folder is made."""
    from grpo_core.runlog import RunFolder
    from grpo_core.sources import Sources

    sources = Sources.of(config, {})  # names and settings are checked before torch is imported, which takes seconds
    # Of several processes the first chooses the folder and speaks.
    folder = None if _later_rank() else RunFolder.unused(path, name="-".join(Path(name).name for name in config.members()))
    trainer_class = _import_trainer()
    progress = _progress()
    progress.say(f"{', '.join(config.members())}: loading {config.model.name}")
    trainer = trainer_class(config, folder=folder, observer=progress, sources=sources)
    progress.say(f"writing to {trainer.folder.path}")
    _train(trainer, progress)


def _resume(path: Path, settings: Sequence[str], allow: Sequence[str]) -> None:
    from grpo_core.overrides import dotted, parse_setting
    from grpo_core.runlog import RunFolder

    RunFolder.open(path)  # what is no run is found before torch is imported
    trainer_class = _import_trainer()
    progress = _progress()
    trainer = trainer_class.resumed(path, observer=progress, changes=dotted(map(parse_setting, settings)), allow=allow)
    progress.say(f"continuing {path} after step {trainer.done} of {trainer.total}")
    _train(trainer, progress)


def _progress() -> RunProgress:
    from rich.console import Console

    from grpo_core.cli.progress import RunProgress

    return RunProgress(Console(stderr=False, quiet=_later_rank()))


def _later_rank() -> bool:
    return int(os.environ.get("RANK", "0")) > 0


def _import_trainer() -> type[Trainer]:
    from grpo_core.errors import MissingExtraError

    # OpenMP threads that wait by spinning make a step five times slower as soon as anything else runs on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from grpo_core.train.trainer import Trainer
    except ModuleNotFoundError as error:
        raise MissingExtraError("grpo run", "train", package=error.name or "") from None
    return Trainer


def _train(trainer: Trainer, progress: RunProgress) -> None:
    from grpo_core.report.plots import draw_plots

    with progress, _stoppable(trainer):
        try:
            trainer.run()
        finally:
            try:
                draw_plots(trainer.folder.path)
            except (OSError, ValueError) as error:  # a picture must not hide how the run ended
                trainer.observer.warn(f"the plots could not be drawn: {error}")
    _say_where(trainer, progress.console)


def _say_where(trainer: Trainer, console: Any) -> None:
    folder = trainer.folder
    if folder.finished:
        console.print(
            f'the trained adapter is in {folder.path / "final"}; try it: grpo generate --run {folder.path} "..."', highlight=False
        )
    else:
        raise typer.Exit(130)


@contextmanager
def _stoppable(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the trainer to save and end; the second one leaves at once (workers die with this process)."""

    asked: list[float] = []

    def stop(number: int, _: object) -> None:
        now = time.monotonic()
        asked.append(now)
        if now - asked[0] > ONE_KEY_PRESS_SECONDS:
            os._exit(128 + number)
        if len(asked) == 1:
            trainer.request_stop()
            os.write(2, b"\nstopping: finishing this step, then saving (again to leave at once)\n")  # a print could meet a print half-way

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
