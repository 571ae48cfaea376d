"""What a run leaves in its folder while it goes: checkpoints, the best weights so far, and the last finished step after a failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from grpo_core.calls.deadline import describe
from grpo_core.runs.atomic import remove_folder, whole_folder
from grpo_core.runs.lines import JsonObject, finite, writing
from grpo_core.runs.seal import write_manifest
from grpo_core.train.models.disk import as_os_error
from grpo_core.train.policy.memory import MB
from grpo_core.train.run.checkpoint import (
    Learned,
    RandomStates,
    agree,
    checkpoints,
    save_checkpoint,
)
from grpo_core.train.run.ending import EndKind, RunEnd
from grpo_core.train.run.hold import hold
from grpo_core.train.run.resume import settings_of
from grpo_core.train.run.rewind import Restart, later_checkpoints
from grpo_core.train.run.steps import Steps, tell
from grpo_core.train.run.stopping import Best


class Saving:
    """Writes the state of `trainer`, in the one process that holds the run's folder."""

    def __init__(self, trainer: Steps) -> None:
        self._trainer = trainer
        self._progress: dict[str, Any] = {}
        self._states = RandomStates.now()
        self._lock: FileLock | None = None

    def hold(self) -> None:
        """Be the one who writes the run's folder."""
        if self._trainer.ranks.first and self._lock is None:
            self._lock = hold(self._trainer.folder.path)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def note(self, pending: Mapping[str, Any] | None = None) -> None:
        """Note what a checkpoint of now has to hold: a step that fails later must not change it.

        Args:
            pending: the step's line of metrics.jsonl if it is not written yet: the disk may be full.
        """
        trainer = self._trainer
        self._states = RandomStates.now()
        self._progress = {
            "logs": trainer.folder.marks(),
            "curriculum": trainer.curriculum.state(),
            "position": trainer.position,
            "pending": None if pending is None else finite(pending),
        }

    def checkpoint(self) -> str:
        """Save the state after the last finished step, unless nothing was done yet; says what was saved."""
        trainer = self._trainer
        if trainer.done == 0:
            return "no step was finished, so there is nothing to save"
        path = trainer.folder.path / "checkpoints"
        learned = Learned.of(trainer.policy, trainer.updater)
        if trainer.ranks.first:
            trainer.folder.sync()  # a checkpoint must not outlive the lines that it speaks of
            path = save_checkpoint(
                path,
                learned,
                step=trainer.done,
                policy=trainer.policy,
                updater=trainer.updater,
                states=self._states,
                more=self._more(),
                keep=trainer.config.checkpoint.keep,
            )
            if trainer.config.log.compress:
                trainer.folder.compress_logs(above_bytes=trainer.config.log.part_mb * MB)
        return f"saved {path.name}; continue with --resume {trainer.folder.shown}"

    def rewind(self, restart: Restart) -> None:
        """Forget what was written after the checkpoint from which the run goes on."""
        trainer, folder = self._trainer, self._trainer.folder
        if not trainer.ranks.first:
            return
        for path in later_checkpoints(folder, restart):
            remove_folder(path)
        if restart.drop_best:
            remove_folder(self.best_folder)
        if not restart.repairs:
            folder.cut(restart.marks)
            self._write_pending(restart)
            return
        # Both logs end at the same place: where one is cut by steps, an evaluation after the last
        # step is left out in both and is done again.
        for name in ("metrics.jsonl", "rollouts.jsonl"):
            dropped = folder.repair(name, lambda line: _is_before(line, restart.step))
            if name in restart.repairs:
                tell(
                    trainer,
                    f"{name} was damaged ({restart.repairs[name]}): {dropped} lines could not be read and were dropped",
                )
        self._write_pending(restart)

    def agree(self) -> None:
        """The newest checkpoint is from here on one of a run with the present settings, so that it can be resumed again."""
        found = checkpoints(self._trainer.folder.path / "checkpoints")
        if found and self._trainer.ranks.first:
            agree(found[-1], updater=self._trainer.updater, more=self._more())

    def _more(self) -> dict[str, Any]:
        return {**self._progress, "config": settings_of(self._trainer.folder.config())}

    def _write_pending(self, restart: Restart) -> None:
        """Write the line of metrics.jsonl for which there was no room when the checkpoint was made."""
        if pending := restart.progress.get("pending"):
            self._trainer.folder.metrics(pending)

    def best(self, best: Best) -> None:
        """checkpoints/best/: the weights with the highest held-out reward so far, as transformers and peft load them."""
        state = self._trainer.policy.state()
        if not self._trainer.ranks.first:
            return
        with writing(self.best_folder), as_os_error(), whole_folder(self.best_folder) as partial:
            self._trainer.policy.save(partial, state)
            (partial / "best.json").write_text(
                json.dumps({"step": best.step, "reward": best.reward}) + "\n", encoding="utf-8"
            )
            write_manifest(partial)

    def best_again(self, best: Best | None) -> None:
        """After a resume. best: of what the run still knows. Weights of a later step, which was cut, are no longer its best ones."""
        trainer, folder = self._trainer, self.best_folder
        cut = folder.exists() and (best is None or self.best_step() != best.step)
        if not trainer.ranks.any(cut):
            return
        if trainer.ranks.first:
            remove_folder(folder)
        if best is not None and best.step == trainer.done > 0:
            self.best(best)

    @property
    def best_folder(self) -> Path:
        return self._trainer.folder.path / "checkpoints" / "best"

    def best_step(self) -> int | None:
        """Return the step whose weights are in `best_folder`; None if there are none."""
        try:
            return int(
                json.loads((self.best_folder / "best.json").read_text(encoding="utf-8"))["step"]
            )
        except (
            FileNotFoundError,
            ValueError,
            KeyError,
            TypeError,
        ):  # damaged in a folder of format 1, which has no digests
            return None

    def end(self, end: RunEnd) -> RunEnd:
        """Note in log.txt how the run ended, and return the same with what was saved.

        A run that ended on an error keeps its last finished step, if the weights still are those
        after it. Nothing that fails here hides what ended the run.
        """
        trainer = self._trainer
        if (
            trainer.ranks.first and self._lock is None
        ):  # the run is another process's, or nothing was begun
            return end
        if not (trainer.folder.path / "config.json").exists():
            return end
        if end.kind in (EndKind.CANCELLED, EndKind.FAILED):
            end = replace(end, saved=self._last_step())
            trainer.observer.say(end.saved)
        try:
            trainer.folder.log(str(end))
        except Exception as error:  # noqa: BLE001 - what ended the run is what the caller has to hear
            trainer.observer.say(f"log.txt could not be written: {describe(error)}")
        return end

    def _last_step(self) -> str:
        """Save the last finished step, if that is possible; say what was saved."""
        trainer = self._trainer
        if trainer.policy.sharded:  # the other processes, whose parts are missing here, may be gone
            return "the weights are shared out, so older checkpoints hold"
        if trainer.updater.steps:
            return "the step under way had changed weights, so older checkpoints hold"
        try:
            return self.checkpoint()
        except Exception as error:  # noqa: BLE001 - a disk that is full is full here, too
            return f"the last steps could not be saved: {describe(error)}"


def _is_before(line: JsonObject, step: int) -> bool:
    """Return whether a line of a log was written before a checkpoint of `step`, at the latest."""
    number, key = line.get("step"), line.get("key")
    if not isinstance(number, int):
        return False
    evaluation = "eval/reward/mean" in line or (
        isinstance(key, dict) and key.get("split") == "eval"
    )
    return number < step or (number == step and not evaluation)
