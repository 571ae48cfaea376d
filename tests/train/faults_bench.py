"""A run with everything on: how it is started, watched and compared with the undisturbed one."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from forks import forked, prepare, start

from grpo_core.runs.folder import RunFolder

HERE = Path(__file__).parent
HANG_SECONDS = 120.0
LEFT_OUT = ("time/", "verify/seconds/", "eval/verify/seconds/", "memory/", "eval/seconds")
LEFT_OUT += ("verify/cache_hit_rate", "eval/verify/cache_hit_rate")
"""Metrics of the clock, and of the cache, in which is found what is judged again."""
SETTINGS = (
    *("model.dtype=float32", "prompts_per_step=4", "group_size=4", "steps=12"),
    *("optimizer.lr=0.01", "optimizer.name=adamw8bit", "trainer.mu=2", "sampling.refills=2"),
    *("eval.tasks=4", "eval.every=3", "checkpoint.every=2", "checkpoint.keep=4"),
    *("curriculum.enabled=true", "curriculum.attempts=12"),
    *("curriculum.low=0.0", "curriculum.high=0.05", "advantage.whiten=true"),
    *("kl.target=0.001", "kl.refresh_every=5", "log.samples_every=2", "log.part_mb=0.01"),
    "verify.cache=disk",
)


@dataclass(frozen=True, slots=True)
class Told:
    """How a command ended. status: negative after a signal, None if it hung and was killed."""

    arguments: list[str]
    status: int | None
    out: str
    err: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The messages."""
        return [line for line in self.err.splitlines() if line.startswith("error:")]


@dataclass(slots=True)
class Place:
    """Where one fault happens.

    Attributes:
        folder: everything of it.
        run: the run folder.
        cache: the folder of the verdict cache.
        begun: whether a whole run folder was there before the fault, so that the user does not begin anew.
    """

    folder: Path
    run: Path
    cache: Path
    begun: bool = False


class Child:
    """A command that is under way in a process group of its own."""

    def __init__(self, arguments: list[str], pid: int, logs: list[Path]) -> None:
        self.arguments, self.pid, self._logs = arguments, pid, logs
        self._started = time.monotonic()
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the status of a process that has ended."""
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, as a terminal does."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def told(self) -> Told:
        """Wait for the end; what hangs is killed."""
        limit, status = time.monotonic() + HANG_SECONDS, self.poll()
        while status is None and time.monotonic() < limit:
            time.sleep(0.01)
            status = self.poll()
        if status is None:
            self.signal(signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.01)
        out, err = map(_text, self._logs)
        return Told(self.arguments, status, out, err, time.monotonic() - self._started)


@dataclass(slots=True)
class Reference:
    """The undisturbed run: its folder, what its commands print, and stages of it that were killed."""

    folder: Path
    seconds: float = 0.0
    bytes: int = 0
    logs: dict[str, list[Any]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    stages: list[Path] = field(default_factory=list)


class Bench:
    """Starts commands by forks, and knows what they have to lead to."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.chmod(0o755)
        prepare()
        os.waitpid(forked(lambda: import_module("tiny").save_tiny(work / "tiny")), 0)
        for path in (work / "tiny").iterdir():
            path.chmod(0o644)  # for all users
        shutil.copy(HERE / "letters.py", work / "letters.py")
        self._children: list[Child] = []
        self._count = 0
        self.reference = self._refer()
        self.reference.stages = [self._stage(steps) for steps in (1, 3, 6, 11)]

    def start_arguments(self, out: Path) -> list[str]:
        """Return the command that begins the run."""
        chosen = [f"--set={setting}" for setting in (f"model.name={self.work / 'tiny'}", *SETTINGS)]
        return ["run", "--env", f"{self.work / 'letters.py'}:Letters", *chosen, "--out", str(out)]

    def start(
        self,
        place: Place,
        arguments: Sequence[str],
        *,
        out: int | None = None,
        err: int | None = None,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Child:
        """Begin a command. out, err: descriptors instead of files; more: as for `forks.start`."""
        self._count += 1
        logs = [place.folder / f"{self._count:04d}.{stream}" for stream in ("out", "err")]
        mode = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        out = os.open(logs[0], mode) if out is None else out
        err = os.open(logs[1], mode) if err is None else err
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GRPO_CACHE": str(place.cache),
            "XDG_STATE_HOME": str(self.work / "state"),
            **(env or {}),
        }
        pid = start(
            arguments, out=out, err=err, env=variables, cwd=place.folder, **{"plots": False, **more}
        )
        os.close(out)
        os.close(err)
        self._children.append(Child(list(arguments), pid, logs))
        return self._children[-1]

    def close(self) -> None:
        """End every command that is still under way."""
        for child in self._children:
            child.signal(signal.SIGKILL)

    def difference(self, run: Path, *, logs: bool = True) -> str:
        """Return how a finished run differs from the undisturbed one, or "" if it does not by a bit."""
        weights = Path("final") / "adapter_model.safetensors"
        if not (run / weights).is_file():
            return "there are no trained weights"
        if (run / weights).read_bytes() != (self.reference.folder / weights).read_bytes():
            return "the trained weights differ"
        if not logs:
            return ""
        found_logs = read_logs(run)
        for name, expected in self.reference.logs.items():
            if found_logs[name] != expected:
                return f"{name} differs: {_first_difference(found_logs[name], expected)}"
        best = Path("checkpoints") / "best" / "best.json"
        found_text, expected_text = _text(run / best), _text(self.reference.folder / best)
        return "" if found_text == expected_text else f"{found_text!r} is not {expected_text!r}"

    def _refer(self) -> Reference:
        folder = self.work / "reference"
        folder.mkdir()
        place = Place(folder, folder / "run", folder / "cache")

        def done(arguments: Sequence[str]) -> Told:
            told = self.start(place, arguments).told()
            if told.status != 0:
                raise RuntimeError(f"{arguments} of the undisturbed run: {told.out}{told.err}")
            return told

        seconds, logs = done(self.start_arguments(place.run)).seconds, read_logs(place.run)
        size = sum(len(json.dumps(line)) for lines in logs.values() for line in lines)
        asked = ("generate", "eval")
        answers = {name: answer(name, done(asking(name, place.run)).out) for name in asked}
        return Reference(place.run, seconds, size, logs, answers)

    def _stage(self, steps: int) -> Path:
        """Return the folder of a run that was killed once so many steps were in its log."""
        folder = self.work / f"stage-{steps}"
        folder.mkdir()
        place = Place(folder, folder / "run", folder / "cache")
        child = self.start(place, self.start_arguments(place.run))
        while child.poll() is None and steps_done(place.run) < steps:
            time.sleep(0.003)
        child.signal(signal.SIGKILL)
        child.told()
        return folder


def asking(command: str, run: Path) -> list[str]:
    """Return a command that uses a finished run."""
    if command == "generate":
        return ["generate", "--run", str(run), "ab", "--max-new-tokens", "4"]
    return ["eval", "--run", str(run), "--tasks", "2", "--samples", "1", "--json"]


def answer(command: str, out: str) -> Any:
    """Return what such a command has found out, without times and paths."""
    return out if command == "generate" else json.loads(out[out.index("{") :])["results"]


def read_logs(run: Path) -> dict[str, list[Any]]:
    """Return both logs with all their parts, without what depends on the clock and the cache."""
    folder = RunFolder(run)
    logs = {"metrics.jsonl": folder.metric_lines(), "rollouts.jsonl": folder.rollout_lines()}
    return {name: [_untimed(line) for line in lines] for name, lines in logs.items()}


def _untimed(line: dict[str, Any]) -> Any:
    kept = {key: value for key, value in line.items() if not key.startswith(LEFT_OUT)}
    without_seconds = lambda item: {k: v for k, v in item.items() if k != "seconds"}  # noqa: E731
    return json.loads(json.dumps(kept), object_hook=without_seconds)


def _first_difference(found: list[Any], expected: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(found, expected, strict=False), 1):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return f"line {number} has {key} = {one.get(key)!r}, not {other.get(key)!r}"
    return f"it has {len(found)} lines, not {len(expected)}"


def steps_done(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"loss"') if path.exists() else 0


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""
