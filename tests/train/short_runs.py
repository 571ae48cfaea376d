"""Short runs: how they are cut off, what they say, what they log whatever the clock says, and commands about them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config, nested
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer

from .letters import Letters
from .runs import Heard as Heard
from .runs import small_settings
from .runs import untimed as untimed
from .tiny import save_tiny

LETTERS = f"{Path(__file__).parent / 'letters.py'}:Letters"
"""The environment of letters.py as a command names it."""


def tiny_settings(folder: Path) -> dict[str, Any]:
    """Return what the fixture `settings` is, with the model in `folder`."""
    return small_settings(save_tiny(folder / "tiny"))


QUICK: Mapping[str, Any] = {
    "eval.tasks": 0,
    "checkpoint.every": 0,
    "alarms.enabled": False,
    "trainer.memory_check": "off",
}
"""Settings of a run that does nothing but its steps."""


def make(
    settings: Mapping[str, Any],
    folder: Path | RunFolder,
    changes: Mapping[str, Any] | None = None,
    *,
    env: Any = None,
    **more: Any,
) -> Trainer:
    """Return a trainer of letters, or of other environments.

    Args:
        settings: by section and name.
        folder: that of the run.
        changes: settings by their dotted names, which come after the others.
        env: an environment, or several by name.
        more: of what the trainer is given beside these.
    """
    config = build_config([settings, nested(changes or {})])
    return Trainer(config, env or Letters(), folder=folder, **more)


def ran(
    settings: Mapping[str, Any],
    folder: Path | RunFolder,
    changes: Mapping[str, Any] | None = None,
    **more: Any,
) -> Trainer:
    """Return a trainer (see `make`) that has run to its end."""
    trainer = make(settings, folder, changes, **more)
    trainer.run()
    return trainer


def run_until(trainer: Trainer, step: int) -> Trainer:
    """Run a trainer that is asked to stop after a step, and return it; run again, it goes on to its end."""

    def stop(number: int, total: int, metrics: Any) -> None:
        if number == step and not trainer.end:
            trainer.request_stop()

    trainer.observer.step = stop  # type: ignore[method-assign]
    trainer.run()
    return trainer


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of the steps of a run."""
    return [line for line in read_lines(folder / "metrics.jsonl") if line["kind"] == "step"]


def grpo(*arguments: object, status: int = 0) -> Result:
    """Return what a command of this process wrote, which has to end with a status."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == status, done.output
    return done
