"""Print what a run measured itself, for `grpo eval --recorded`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from grpo_core.calls.console import PrintableConsole
from grpo_core.cli.output import print_json, print_line
from grpo_core.display.console import gains_table
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.gains import recorded_gains


def print_recorded(run: Path | None, *, as_json: bool) -> None:
    """Print the gains that a run recorded from its first to its last evaluation.

    Raises:
        ConfigError: no run is named, or it was evaluated less than twice.
    """
    if run is None:
        raise ConfigError(
            "--recorded prints what a run measured itself; name the run: --run FOLDER"
        )
    folder = RunFolder.open(run)
    name = folder.config()["model"]["name"]
    steps, gains = recorded_gains(folder)
    if len(steps) < 2:
        reason = (
            f"it was evaluated after step {steps[0]} only" if steps else "it was never evaluated"
        )
        raise ConfigError(
            f"the run {run} has recorded no gain: {reason}; "
            f"measure it now with grpo eval --run {run}"
        )
    if as_json:
        print_json(
            {
                "model": name,
                "steps": steps,
                "gains": {name: asdict(gain) for name, gain in gains.items()},
            }
        )
        return
    print_line(f"{name}, held-out tasks after step {steps[0]} and after step {steps[-1]}")
    PrintableConsole().print(gains_table(gains))
