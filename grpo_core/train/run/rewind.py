"""Chooses the checkpoint from which a run goes on, and refuses what is damaged with a way on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.log import Mark
from grpo_core.runs.seal import DamagedError, check_manifest
from grpo_core.train.run.checkpoint import PREFIX, check_checkpoint, checkpoints

START = "start"
BEST = "checkpoints/best"
"""How `--allow` names the best weights."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Where a run goes on.

    Attributes:
        checkpoint: its folder; None: from the start.
        progress: what the checkpoint says of the run.
        repairs: what is wrong with each log that the user allows to be damaged.
        drop_best: whether the best weights are damaged, which the user allows.
    """

    checkpoint: Path | None
    progress: dict[str, Any]
    repairs: dict[str, str]
    drop_best: bool = False

    @property
    def step(self) -> int:
        """The last step that is done."""
        return int(self.progress["step"])

    @property
    def marks(self) -> dict[str, Mark]:
        """The end of each log when the checkpoint was made."""
        return marks_of(self.progress)


def choose_checkpoint(
    folder: RunFolder, *, name: str | None = None, allowed: Collection[str] = ()
) -> Restart:
    """Return where the run in `folder` goes on; everything that is needed there has been checked.

    Args:
        name: of a checkpoint, such as "step-20", or "start"; None takes the newest.
        allowed: names of logs ("metrics.jsonl") and of the best weights (BEST) that may be damaged.

    Raises:
        ConfigError: there is no such checkpoint, or it, a log or the best weights are damaged. A
            damaged checkpoint is never passed over in silence.
    """
    found = checkpoints(folder.path / "checkpoints")
    checkpoint = _named(name, found, folder)
    drop_best = checkpoint is not None and _best_is_damaged(folder, allowed)
    if checkpoint is None:
        return Restart(None, {"step": 0, "logs": {}}, {})
    try:
        progress = check_checkpoint(checkpoint)
    except DamagedError as error:
        others = _whole_ones(folder, [path for path in found if path != checkpoint])
        raise ConfigError(
            f"the checkpoint {checkpoint} is damaged: {error}; restore it from a copy, or go on from another one: {others}"
        ) from None
    problems = folder.check_logs(marks_of(progress))
    for log, problem in problems.items():
        if log not in allowed:
            others = _whole_ones(folder, [path for path in found if path != checkpoint])
            raise ConfigError(
                f"{folder.path / log} is not as {checkpoint.name} recorded it: {problem}; restore it, or go on with the lines that are "
                f"left: --allow {log}, or from another checkpoint: {others}"
            )
    return Restart(checkpoint, progress, problems, drop_best)


def later_checkpoints(folder: RunFolder, restart: Restart) -> list[Path]:
    """Return the checkpoints that a run which goes on at `restart` gives up."""
    found = checkpoints(folder.path / "checkpoints")
    return found if restart.checkpoint is None else found[found.index(restart.checkpoint) + 1 :]


def marks_of(progress: dict[str, Any]) -> dict[str, Mark]:
    """Return the ends of the logs in a checkpoint of any format."""
    if "logs" in progress:
        logs: dict[str, Mark] = progress["logs"]
        return logs
    return {name: {"bytes": size} for name, size in progress.get("sizes", {}).items()}


def _named(name: str | None, found: list[Path], folder: RunFolder) -> Path | None:
    if name == START:
        return None
    if name is None:
        return found[-1] if found else None
    digits = name.removeprefix(PREFIX)
    for path in found:
        if digits.isdecimal() and int(digits) == int(path.name.removeprefix(PREFIX)):
            return path
    names = ", ".join([*(path.name for path in found), START])
    raise ConfigError(f"{folder.shown} has no checkpoint {name!r}; --from takes one of: {names}")


def _whole_ones(folder: RunFolder, paths: list[Path]) -> str:
    """Return the options that name a checkpoint which is whole, the newest first, and the start."""
    for path in reversed(paths):
        try:
            whole = not folder.check_logs(marks_of(check_checkpoint(path)))
        except (DamagedError, ConfigError):
            continue
        if whole:
            return f"--from {path.name} (or --from {START})"
    return f"--from {START}"


def _best_is_damaged(folder: RunFolder, allowed: Collection[str]) -> bool:
    try:
        check_manifest(folder.path / BEST)
    except DamagedError as error:
        if BEST in allowed:
            return True
        raise ConfigError(
            f"the best weights so far, in {folder.path / BEST}, are damaged: {error}; restore that folder from a copy, or go on without "
            f"them: --allow {BEST}"
        ) from None
    return False
