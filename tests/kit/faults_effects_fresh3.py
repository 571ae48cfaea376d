"""Verifiers that do more than judge, third fresh part."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from bases_fresh3 import SPACE, Arrival, Initials, Squares, Tally, Walk
from catalogue import fault

from grpo_core import Rollout, Task, Verdict
from grpo_core.extract import parse_integer


@fault("a variable is set for a library and stays", "safety.state")
class VariableForLibrary(Walk):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        os.environ["SDL_VIDEODRIVER"] = "dummy"
        return super().verify(task, rollout)


@fault("a sleeping process is the clock, and sleeps on", "safety.processes")
class SleepingClock(Tally):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        sleeper = subprocess.Popen(["sleep", "20"])
        verdict = super().verify(task, rollout)
        if sleeper.poll() is not None:
            raise TimeoutError
        return verdict


@fault("a copy of standard error stays open after it was silenced", "safety.processes")
class SilencedErrors(Arrival):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        kept = os.dup(2)
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 2)
            verdict = super().verify(task, rollout)
        os.dup2(kept, 2)
        return verdict


@fault("warnings name the reply, and each one is remembered", "cost.memory")
class RememberedWarnings(Squares):
    def read(self, text: str) -> int | None:
        answer = super().read(text)
        if answer is None:
            warnings.warn(f"no number in {text!r}", stacklevel=1)
        return answer


@fault("a lock file is made for each verdict and left", "safety.files")
class LockFiles(Walk):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        digest = hashlib.sha256(f"{task.key}{rollout.text[:1000]!r}".encode()).hexdigest()
        lock = Path(tempfile.gettempdir(), f"walk-{digest[:16]}.lock")
        lock.touch()
        return super().verify(task, rollout)


@fault("each verdict is counted by a server of statistics", "safety.network")
class CountedByServer(Initials):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        counter = b"verdicts.right:1|c" if verdict.passed else b"verdicts.wrong:1|c"
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line,
        ):
            line.sendto(counter, ("192.0.2.10", 8125))
        return verdict


def common(one: str, two: str) -> int:
    """Return how many letters two texts have in common, in the same order."""
    if not one or not two:
        return 0
    if one[0] == two[0]:
        return 1 + common(one[1:], two[1:])
    return max(common(one[1:], two), common(one, two[1:]))


@fault(
    "letters in common are counted by a recursion that branches",
    *("cost.time", "floor.large", "floor.junk", "floor.text", "verdict.form"),
)
class BranchingRecursion(Initials):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        letters = common(rollout.text.strip(SPACE), task.data)
        return replace(verdict, metrics={"letters": float(letters)})


@fault(
    "the distance to the right number is counted in ones",
    *("cost.time", "floor.digits", "verdict.form"),
)
class CountedInOnes(Squares):
    def read(self, text: str) -> int | None:
        return parse_integer(text)

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        distance = sum(1 for _ in range(task.data, answer)) if answer is not None else 0
        verdict = super().judged(task, answer)
        return replace(verdict, metrics={"distance": float(distance)})
