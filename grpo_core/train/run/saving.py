"""Save the state of a run in its folder.

That is: checkpoints, the best weights so far, and the last finished step after a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from filelock import FileLock

from grpo_core.calls.deadline import describe
from grpo_core.engine.models.disk import as_os_error
from grpo_core.engine.policy.memory_estimate import MB
from grpo_core.engine.policy.sharding import gather_full
from grpo_core.protocol.events import EvaluationEnded, Event, StepEnded
from grpo_core.runs.atomic import remove_folder, whole_folder, write_whole
from grpo_core.runs.documents import read_document
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.hold import hold
from grpo_core.runs.lines import JsonObject, Kind, finite, kind_of, writing
from grpo_core.runs.seal import write_manifest
from grpo_core.train.run.checkpoint import (
    RandomStates,
    checkpoints,
    record_settings,
    save_checkpoint,
)
from grpo_core.train.run.ending import EndKind, RunEnd
from grpo_core.train.run.journal import Journal
from grpo_core.train.run.method import Method
from grpo_core.train.run.rewind import Restart, later_checkpoints, marks_of
from grpo_core.train.run.stopping import Best, Stopping


class Saving:
    """Writes the state of a method to a run folder, in the one process that holds the folder.

    Args:
        method: has the weights.
        folder: where it is written.
        journal: tells what was saved.
        states: returns the states of listeners, as JSON data.
    """

    def __init__(
        self,
        method: Method,
        folder: RunFolder,
        journal: Journal,
        states: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._method, self._folder, self._journal = method, folder, journal
        actor = method.actor
        self._config, self._policy, self._ranks = actor.config, actor.policy, actor.ranks
        self._updater = method.updater
        self._listener_states = states
        self._step = 0
        self._progress: dict[str, Any] = {}
        self._states = RandomStates.now()
        self.lock: FileLock | None = None
        """The lock of the run's folder, once this process holds it."""
        self.best_folder = folder.path / "checkpoints" / "best"
        """The folder of the best weights; it may not exist."""

    def hold(self) -> None:
        """Lock the run's folder, in the process that writes it."""
        if self._ranks.first and self.lock is None:
            self.lock = hold(self._folder.path)

    def release(self) -> None:
        """Release the lock of the run's folder."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def note(self, step: int, pending: Mapping[str, Any] | None = None) -> None:
        """Record what a checkpoint of now has to hold: a step that fails later must not change it.

        Args:
            step: the last finished step.
            pending: the step's line of metrics.jsonl if it is not written yet: the disk may be
                full.
        """
        self._step = step
        self._states = RandomStates.now()
        self._progress = {
            "logs": self._folder.marks(),
            **self._method.stream.state(),
            "listeners": self._listener_states(),
            "pending": None if pending is None else finite(pending),
        }

    def on(self, event: Event) -> None:
        """Record a step once the log has its line."""
        if isinstance(event, StepEnded):
            self.note(event.step)

    def checkpoint(self) -> str:
        """Save the state after the last finished step, unless no step was finished.

        Returns:
            What was saved, in words; "" in a process that does not write.
        """
        if self._step == 0:
            return "no step was finished, so there is nothing to save"
        # All processes have to gather.
        weights = gather_full({name: tensor.detach() for name, tensor in self._policy.trainable()})
        optimizer = gather_full(self._updater.optimizer.state_dict())
        if not self._ranks.first:
            return ""
        self._folder.sync()  # a checkpoint must not outlive the log lines that it refers to
        path = save_checkpoint(
            self._folder.path / "checkpoints",
            step=self._step,
            weights=weights,
            optimizer=optimizer,
            policy=self._policy,
            updater=self._updater,
            states=self._states,
            more=self._extra(),
        )
        for old in checkpoints(path.parent)[: -self._config.checkpoint.keep]:
            remove_folder(old)
        if self._config.log.compress:
            self._folder.compress_logs(above_bytes=self._config.log.part_mb * MB)
        return f"saved {path.name}; continue with --resume {self._folder.shown}"

    def rewind(self, restart: Restart) -> None:
        """Remove what was written after the checkpoint from which the run resumes."""
        folder = self._folder
        if not self._ranks.first:
            return
        for path in later_checkpoints(folder, restart):
            remove_folder(path)
        if restart.drop_best:
            remove_folder(self.best_folder)
        if restart.repairs:
            # All logs must end at the same step: lines are kept by step, so an evaluation after
            # the last step is removed from them and repeated.
            for name in ("metrics.jsonl", "rollouts.jsonl", "alarms.jsonl"):
                dropped = folder.repair(name, lambda line: _is_before(line, restart.step))
                if name in restart.repairs:
                    self._journal.announce(
                        f"{name} was damaged ({restart.repairs[name]}): {dropped} lines could not "
                        "be read and were dropped"
                    )
        else:
            folder.cut(marks_of(restart.progress))
        if pending := restart.progress.get("pending"):
            folder.metrics(pending)  # it did not fit on the disk when the checkpoint was made

    def record_settings(self) -> None:
        """Record the present settings in the newest checkpoint, so that it can be resumed again."""
        paths = checkpoints(self._folder.path / "checkpoints")
        if paths and self._ranks.first:
            record_settings(paths[-1], updater=self._updater, more=self._extra())

    def _extra(self) -> dict[str, Any]:
        """Return what a checkpoint records of the run besides the weights."""
        stored = self._folder.config().items()
        settings = {key: value for key, value in stored if key != "provenance"}
        return {**self._progress, "config": settings}

    def save_best(self, best: Best) -> None:
        """Write checkpoints/best/: the weights with the highest held-out reward so far.

        transformers and peft can load them.
        """
        state = self._policy.state()
        if not self._ranks.first:
            return
        with writing(self.best_folder), as_os_error(), whole_folder(self.best_folder) as partial:
            self._policy.save(partial, state)
            content = json.dumps({"step": best.step, "reward": best.reward})
            write_whole(partial / "best.json", f"{content}\n")
            write_manifest(partial)

    def align_best(self, best: Best | None) -> None:
        """Make checkpoints/best/ agree with the log after a resume.

        Weights of a later step, which was cut, are no longer the best ones and are removed.

        Args:
            best: the best evaluation that the run still has in its log.
        """
        folder = self.best_folder
        is_outdated = folder.exists() and (best is None or self.best_step() != best.step)
        if not any(self._ranks.gather_values(is_outdated)):
            return
        if self._ranks.first:
            remove_folder(folder)
        if best is not None and best.step == self._step > 0:
            self.save_best(best)

    def best_step(self) -> int | None:
        """Return the step whose weights are in `best_folder`; None if there are none."""
        try:
            return int(read_document(self.best_folder / "best.json")["step"])
        # The file may be damaged in a folder of format 1, which has no digests.
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def end(self, end: RunEnd) -> RunEnd:
        """Note in log.txt how the run ended, and return the same with what was saved.

        A run that ended with an error keeps its last finished step, if the weights are still those
        after it. Nothing that fails here hides what ended the run.
        """
        # Without the lock, another process is writing the run, or nothing has begun.
        has_no_lock = self._ranks.first and self.lock is None
        if has_no_lock or not (self._folder.path / "config.json").exists():
            return end
        if end.kind in (EndKind.CANCELLED, EndKind.FAILED):
            end = replace(end, saved=self._save_last_step())
            self._journal.say(end.saved)
        try:
            self._folder.log(str(end))
        except Exception as error:  # noqa: BLE001 - the caller needs the cause of the end
            self._journal.say(f"log.txt could not be written: {describe(error)}")
        return end

    def _save_last_step(self) -> str:
        """Save the last finished step, if that is possible; say what was saved."""
        if self._policy.sharded:  # the other processes, whose parts are missing here, may be gone
            return "the weights are spread over several processes, so the older checkpoints count"
        if self._updater.steps:
            return "the unfinished step had changed weights, so the older checkpoints count"
        try:
            return self.checkpoint()
        except Exception as error:  # noqa: BLE001 - a full disk makes this fail, too
            return f"the last steps could not be saved: {describe(error)}"


class BestWeights:
    """Keep the weights of the evaluation with the highest held-out reward, as a listener.

    Args:
        saving: writes them.
        stopping: has heard of the evaluation before, and knows the best one.
        method: has the weights.
    """

    def __init__(self, saving: Saving, stopping: Stopping, method: Method) -> None:
        self._saving, self._stopping, self._actor = saving, stopping, method.actor

    async def on(self, event: Event) -> None:
        """Save the weights if this evaluation is the best one so far."""
        if not isinstance(event, EvaluationEnded):
            return
        best = self._stopping.best
        if event.step and self._actor.config.eval.every and best and best.step == event.step:
            async with self._actor.holding_weights():
                self._saving.save_best(best)


def _is_before(line: JsonObject, step: int) -> bool:
    """Return whether a line of a log was written before a checkpoint of `step`."""
    number, key = line.get("step"), line.get("key")
    if not isinstance(number, int):
        return False
    evaluation = kind_of(line) is Kind.EVALUATION or (
        isinstance(key, dict) and key.get("split") == "eval"
    )
    return number < step or (number == step and not evaluation)
