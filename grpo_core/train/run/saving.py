"""What a run leaves in its folder while it goes: checkpoints, the best weights so far, and the last finished step after a failure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock

from grpo_core.errors import GrpoError
from grpo_core.runs.atomic import whole_folder
from grpo_core.runs.lines import writing
from grpo_core.train.run.checkpoint import Learned, agree, checkpoints, save_checkpoint
from grpo_core.train.run.hold import hold
from grpo_core.train.run.resume import settings_of
from grpo_core.train.run.steps import Steps
from grpo_core.train.run.stopping import Best


class Saving:
    """Writes the state of `trainer`, in the one process that holds the run's folder."""

    def __init__(self, trainer: Steps) -> None:
        self._trainer = trainer
        self._progress: dict[str, Any] = {}
        self._lock: FileLock | None = None

    def hold(self) -> None:
        """Be the one who writes the run's folder."""
        if self._trainer.ranks.first and self._lock is None:
            self._lock = hold(self._trainer.folder.path)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def note(self) -> None:
        """What a checkpoint of now has to hold: a step that fails later must not change it."""
        trainer = self._trainer
        self._progress = {"sizes": trainer.folder.sizes(), "curriculum": trainer.curriculum.state(), "position": trainer.position}

    def checkpoint(self) -> str:
        """Save the state after the last finished step, unless nothing was done yet; says what was saved."""
        trainer = self._trainer
        if trainer.done == 0:
            return "no step was finished, so there is nothing to save"
        path = trainer.folder.path / "checkpoints"
        learned = Learned.of(trainer.policy, trainer.updater)
        if trainer.ranks.first:
            path = save_checkpoint(
                path,
                learned,
                step=trainer.done,
                policy=trainer.policy,
                updater=trainer.updater,
                more=self._more(),
                keep=trainer.config.checkpoint.keep,
            )
        return f"saved {path}; continue with --resume {trainer.folder.path}"

    def agree(self) -> None:
        """The newest checkpoint is from here on one of a run with the present settings, so that it can be resumed again."""
        found = checkpoints(self._trainer.folder.path / "checkpoints")
        if found and self._trainer.ranks.first:
            agree(found[-1], updater=self._trainer.updater, more=self._more())

    def _more(self) -> dict[str, Any]:
        return {**self._progress, "config": settings_of(self._trainer.folder.config())}

    def best(self, best: Best) -> None:
        """checkpoints/best/: the weights with the highest held-out reward so far, as transformers and peft load them."""
        state = self._trainer.policy.state()
        if not self._trainer.ranks.first:
            return
        with writing(self.best_folder), whole_folder(self.best_folder) as partial:
            self._trainer.policy.save(partial, state)
            (partial / "best.json").write_text(json.dumps({"step": best.step, "reward": best.reward}) + "\n", encoding="utf-8")

    def best_again(self, best: Best | None) -> None:
        """After a resume. best: of what the run still knows. Weights of a later step, which was cut, are no longer its best ones."""
        trainer, folder = self._trainer, self.best_folder
        cut = folder.exists() and (best is None or self.best_step() != best.step)
        if not trainer.ranks.any(cut):
            return
        if trainer.ranks.first:
            shutil.rmtree(folder, ignore_errors=True)
        if best is not None and best.step == trainer.done > 0:
            self.best(best)

    @property
    def best_folder(self) -> Path:
        return self._trainer.folder.path / "checkpoints" / "best"

    def best_step(self) -> int | None:
        """After which the weights in `best_folder` were the policy's; None if there are none."""
        try:
            return int(json.loads((self.best_folder / "best.json").read_text(encoding="utf-8"))["step"])
        except FileNotFoundError:
            return None

    def after_failure(self, reason: str) -> None:
        """A run that ended on an error keeps its last finished step, if the weights still are those after it."""
        trainer, saved = self._trainer, ""
        if reason in ("finished", "interrupted", "failed") or not (trainer.folder.path / "config.json").exists():
            return
        if trainer.ranks.first and self._lock is None:  # it is the run of another process
            return
        if trainer.policy.sharded:  # the other processes, whose parts are missing here, may be gone
            saved = "the weights are shared out, so older checkpoints hold"
        elif trainer.updater.steps:
            saved = "the step under way had changed weights, so older checkpoints hold"
        try:
            saved = saved or self.checkpoint()
            trainer.folder.log(f"stopped after step {trainer.done}: {reason}; {saved}")
        except GrpoError as error:  # a disk that is full is full here, too; what ended the run is what the caller has to hear
            saved = f"the last steps could not be saved: {error}"
        trainer.observer.say(saved)
