"""A run with everything on: how it is started, watched and compared with the undisturbed one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zygote import Zygote

from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

HERE = Path(__file__).parent
HANG_SECONDS = 120.0
TIMED = ("time/", "verify/seconds/", "eval/verify/seconds/", "memory/", "eval/seconds")
CACHED = ("verify/cache_hit_rate", "eval/verify/cache_hit_rate")
"""What is judged again is found in the cache."""
STEPS, KEEP = 12, 4
SETTINGS = {
    "model.dtype": "float32",
    "prompts_per_step": "4",
    "group_size": "4",
    "steps": str(STEPS),
    "optimizer.lr": "0.01",
    "optimizer.name": "adamw8bit",
    "eval.tasks": "4",
    "eval.every": "3",
    "checkpoint.every": "2",
    "checkpoint.keep": str(KEEP),
    "curriculum.enabled": "true",
    "curriculum.attempts": "12",
    "curriculum.low": "0.0",
    "curriculum.high": "0.05",
    "sampling.refills": "2",
    "kl.target": "0.001",
    "kl.refresh_every": "5",
    "trainer.mu": "2",
    "advantage.whiten": "true",
    "verify.cache": "disk",
    "log.samples_every": "2",
    "log.part_mb": "0.01",
}


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

    def __init__(
        self,
        bench: Bench,
        arguments: Sequence[str],
        pid: int | subprocess.Popen[bytes],
        logs: tuple[Path, Path],
    ) -> None:
        self.arguments = list(arguments)
        self._bench, self._process = bench, pid
        self._logs = logs
        self._started = time.monotonic()
        self._status: int | None = None

    @property
    def pid(self) -> int:
        return self._process if isinstance(self._process, int) else self._process.pid

    def poll(self) -> int | None:
        """Return the status of a process that has ended."""
        if self._status is None:
            known = isinstance(self._process, int)
            self._status = self._bench.zygote.poll(self.pid) if known else self._process.poll()  # type: ignore[union-attr]
        return self._status

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, as a terminal does."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def told(self, *, within: float = HANG_SECONDS) -> Told:
        """Wait for the end; what hangs is killed."""
        limit, status = time.monotonic() + within, self.poll()
        while status is None and time.monotonic() < limit:
            time.sleep(0.01)
            status = self.poll()
        if status is None:
            self.signal(signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.01)
        out, err = (
            path.read_text(errors="replace") if path.is_file() else "" for path in self._logs
        )
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
    """Starts commands, by forks or as a user would, and knows what they have to lead to."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.chmod(0o755)
        self.zygote = Zygote()
        self.zygote.save_tiny(work / "tiny")
        for path in (work / "tiny").iterdir():
            path.chmod(0o644)  # for all users
        shutil.copy(HERE / "letters.py", work / "letters.py")
        self._children: list[Child] = []
        self._count = 0
        self.reference = self._refer()

    def start_arguments(self, out: Path) -> list[str]:
        """Return the command that begins the run."""
        settings = {"model.name": str(self.work / "tiny"), **SETTINGS}
        chosen = [f"--set={key}={value}" for key, value in settings.items()]
        return ["run", "--env", f"{self.work / 'letters.py'}:Letters", *chosen, "--out", str(out)]

    def start(
        self,
        place: Place,
        arguments: Sequence[str],
        *,
        out: int | None = None,
        err: int | None = None,
        uid: int | None = None,
        umask: int = 0o022,
        real: bool = False,
        plots: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Begin a command. out, err: descriptors instead of files; real: the executable instead of a fork; plots: with pictures."""
        self._count += 1
        names = [place.folder / f"{self._count:04d}.{stream}" for stream in ("out", "err")]
        fds = [
            os.open(names[i], os.O_CREAT | os.O_WRONLY | os.O_TRUNC) if given is None else given
            for i, given in enumerate((out, err))
        ]
        whole = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "GRPO_CACHE": str(place.cache),
            "XDG_STATE_HOME": str(self.work / "state"),
            **(env or {}),
        }
        process: int | subprocess.Popen[bytes]
        if real:
            program = [str(Path(sys.executable).with_name("grpo")), *arguments]
            process = subprocess.Popen(
                program, stdout=fds[0], stderr=fds[1], env=whole, cwd=place.folder, process_group=0
            )
        else:
            process = self.zygote.start(
                arguments,
                out=fds[0],
                err=fds[1],
                env=whole,
                cwd=place.folder,
                uid=uid,
                umask=umask,
                plots=plots,
            )
        for fd in fds:
            os.close(fd)
        child = Child(self, arguments, process, (names[0], names[1]))
        self._children.append(child)
        return child

    def close(self) -> None:
        """End every command that is still under way."""
        for child in self._children:
            with contextlib.suppress(RuntimeError, OSError):
                child.signal(signal.SIGKILL)
        self.zygote.close()

    def difference(self, run: Path, *, logs: bool = True) -> str:
        """Return how a finished run differs from the undisturbed one, or "" if it does not by a bit."""
        weights = Path("final") / "adapter_model.safetensors"
        if not (run / weights).is_file():
            return "there are no trained weights"
        if (run / weights).read_bytes() != (self.reference.folder / weights).read_bytes():
            return "the trained weights differ"
        for name, expected in self.reference.logs.items() if logs else ():
            found = lines(run, name)
            if found != expected:
                return f"{name} differs: {_first_difference(found, expected)}"
        best = Path("checkpoints") / "best" / "best.json"
        if logs and _text(run / best) != _text(self.reference.folder / best):
            return (
                f"best.json is {_text(run / best)!r}, not {_text(self.reference.folder / best)!r}"
            )
        return ""

    def _refer(self) -> Reference:
        folder = self.work / "reference"
        folder.mkdir()
        place = Place(folder, folder / "run", folder / "cache")
        told = self.start(place, self.start_arguments(place.run)).told()
        if told.status != 0:
            raise RuntimeError(
                f"the undisturbed run ended with status {told.status}: {told.out}{told.err}"
            )
        reference = Reference(place.run, told.seconds)
        for name in ("metrics.jsonl", "rollouts.jsonl"):
            reference.logs[name] = lines(place.run, name)
            reference.bytes += len("".join(json.dumps(line) for line in reference.logs[name]))
        for command in ("generate", "eval"):
            asked = self.start(place, asking(command, place.run)).told()
            if asked.status != 0:
                raise RuntimeError(f"{command} on the undisturbed run: {asked.out}{asked.err}")
            reference.answers[command] = answer(command, asked.out)
        self.reference = reference
        reference.stages = [self._stage(steps) for steps in (1, 3, 6, 11)]
        return reference

    def _stage(self, steps: int) -> Path:
        """Return the folder of a run that was killed once so many steps were in its log."""
        folder = self.work / f"stage-{steps}"
        folder.mkdir()
        place = Place(folder, folder / "run", folder / "cache")
        child = self.start(place, self.start_arguments(place.run))
        while child.poll() is None and _steps(place.run) < steps:
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
    if command == "generate":
        return out
    return json.loads(out[out.index("{") :])["results"]


def lines(run: Path, name: str) -> list[Any]:
    """Return a log with all its parts, without times and memory."""
    read = getattr(
        RunFolder(run), f"{'metric' if name.startswith('metrics') else 'rollout'}_lines", None
    )
    found: Iterator[dict[str, Any]] = read() if read is not None else read_lines(run / name)
    return [
        _untimed({key: value for key, value in line.items() if not key.startswith(TIMED + CACHED)})
        for line in found
    ]


def _untimed(line: dict[str, Any]) -> Any:
    return json.loads(
        json.dumps(line),
        object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"},
    )


def _first_difference(found: list[Any], expected: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(found, expected, strict=False), 1):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return f"line {number} has {key} = {one.get(key)!r}, not {other.get(key)!r}"
    return f"it has {len(found)} lines, not {len(expected)}"


def _steps(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"loss"') if path.exists() else 0


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""
