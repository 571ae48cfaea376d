"""Choose the checkpoint from which a run resumes; refuse damaged files and name a remedy."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder, is_inner_folder
from grpo_core.runs.log import Mark
from grpo_core.runs.seal import DamagedError, check_manifest
from grpo_core.train.run.checkpoint import PREFIX, check_checkpoint, checkpoints

START = "start"
"""Value of `--from` for the start of a run."""
BEST = "checkpoints/best"
"""Value of `--allow` for the best weights."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Describes where a run resumes."""

    checkpoint: Path | None
    """Folder of the checkpoint; None: from the start."""
    progress: dict[str, Any]
    """What the checkpoint records of the run."""
    repairs: dict[str, str]
    """What is wrong with each log that the user allows to be damaged, by its name."""
    drop_best: bool = False
    """Whether the best weights are damaged, which the user allows."""

    @property
    def step(self) -> int:
        """Return the last finished step."""
        return int(self.progress["step"])


def choose_checkpoint(
    folder: RunFolder, *, name: str | None = None, allowed: Collection[str] = ()
) -> Restart:
    """Return where the run in `folder` resumes; everything that is needed there has been checked.

    Args:
        name: of a checkpoint, such as "step-20", or "start"; None takes the newest.
        allowed: names of logs ("metrics.jsonl") and of the best weights (BEST) that may be damaged.

    Raises:
        ConfigError: there is no such checkpoint, or it, a log or the best weights are damaged. A
            damaged checkpoint is never skipped silently.
    """
    paths = checkpoints(folder.path / "checkpoints")
    checkpoint = _select_checkpoint(name, paths, folder)
    drop_best = checkpoint is not None and _best_is_damaged(folder, allowed)
    if checkpoint is None:
        return Restart(None, {"step": 0, "logs": {}}, {})
    try:
        progress = check_checkpoint(checkpoint)
    except DamagedError as error:
        options = _intact_options(folder, [path for path in paths if path != checkpoint])
        raise ConfigError(
            f"the checkpoint {checkpoint} is damaged: {error}; restore it from a copy, or "
            f"continue from another one: {options}"
        ) from None
    problems = folder.check_logs(marks_of(progress))
    for log, problem in problems.items():
        if log not in allowed:
            options = _intact_options(folder, [path for path in paths if path != checkpoint])
            raise ConfigError(
                f"{folder.path / log} is not as {checkpoint.name} recorded it: {problem}; restore "
                f"it, or continue with the lines that are left: --allow {log}, or from another "
                f"checkpoint: {options}"
            )
    return Restart(checkpoint, progress, problems, drop_best)


def later_checkpoints(folder: RunFolder, restart: Restart) -> list[Path]:
    """Return the checkpoints that a run which resumes at `restart` gives up."""
    paths = checkpoints(folder.path / "checkpoints")
    return paths if restart.checkpoint is None else paths[paths.index(restart.checkpoint) + 1 :]


def marks_of(progress: dict[str, Any]) -> dict[str, Mark]:
    """Return the ends of the logs in a checkpoint of any format."""
    return progress.get("logs") or {
        name: {"bytes": size} for name, size in progress.get("sizes", {}).items()
    }


def _select_checkpoint(name: str | None, paths: list[Path], folder: RunFolder) -> Path | None:
    """Return the checkpoint of that name, or the newest; None for the start."""
    if name == START:
        return None
    if name is None:
        return paths[-1] if paths else None
    digits = name.removeprefix(PREFIX)
    for path in paths:
        if digits.isdecimal() and int(digits) == int(path.name.removeprefix(PREFIX)):
            return path
    names = ", ".join([*(path.name for path in paths), START])
    raise ConfigError(f"{folder.shown} has no checkpoint {name!r}; --from takes one of: {names}")


def _intact_options(folder: RunFolder, paths: list[Path]) -> str:
    """Return the option for the newest intact checkpoint, and the one for the start."""
    for path in reversed(paths):
        with suppress(DamagedError, ConfigError):
            if not folder.check_logs(marks_of(check_checkpoint(path))):
                return f"--from {path.name} (or --from {START})"
    return f"--from {START}"


def _best_is_damaged(folder: RunFolder, allowed: Collection[str]) -> bool:
    """Return whether the best weights are damaged; raise ConfigError if that is not allowed."""
    try:
        is_inner_folder(folder.path / BEST)  # a link is refused
        check_manifest(folder.path / BEST)
    except DamagedError as error:
        if BEST in allowed:
            return True
        raise ConfigError(
            f"the best weights so far, in {folder.path / BEST}, are damaged: {error}; restore "
            f"that folder from a copy, or continue without them: --allow {BEST}"
        ) from None
    return False
