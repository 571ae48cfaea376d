"""A user after a fault: reads the one line that a command printed, does what it says, and tries again."""

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults_bench import Bench, Child, Place, Told, answer, asking

ROUNDS = 8
SAME = "same"
WAY_ON = "way on"
"""Refused, and what the message named worked."""

_NAMED = re.compile(r"--(from|allow) (?!KEY|NAME|step-N)([\w./-]*\w)")
_SETTING = re.compile(r"set ([a-z_]+\.[a-z_]+=\w+)")
_WRITABLE = re.compile(r"make room|make it (?:writable|readable)|check the disk")
_REMOVE = re.compile(r"(?:[Rr]emove|[Dd]elete) (?:it\b|that|the file)")
_RESTORE = re.compile(r"[Rr]estore|[Pp]ut (?:it|them) back")


class FailedError(Exception):
    """What a command did is not what a user can live with; the message says why."""


@dataclass(slots=True)
class User:
    """Goes on after a fault.

    Attributes:
        heal: makes the disk good again, if the fault was there.
        original: a copy of the place before the damage, from which files are restored.
        uid: as whom commands run; None: as this user.
        rounds: what was run, for the record.
    """

    bench: Bench
    place: Place
    rng: random.Random
    heal: Callable[[], None] | None = None
    original: Path | None = None
    uid: int | None = None
    umask: int = 0o022
    env: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    tried: set[tuple[str, str]] = field(default_factory=set)
    refused: bool = False
    weights_only: bool = False

    def finish(self) -> str:
        """Go on until the run is finished and as it should be; returns how that went."""
        options: list[str] = []
        for _ in range(ROUNDS):
            run = self.place.run
            begun = self.place.begun or (run / "config.json").exists()
            if begun and (run / "final").is_dir():
                # The end came before the fault, perhaps before the table of gains.
                told = self.do(["eval", "--run", str(run), "--recorded"])
                if told.status != 0:
                    raise FailedError(f"the gains cannot be shown: {self.judged(told)}")
                break
            start = ["run", "--resume", str(run)] if begun else self.bench.start_arguments(run)
            told = self.do([*start, *options])
            if told.status == 0:
                break
            kept = options if told.status == 2 else []
            options = [*kept, *self.follow(self.judged(told), begun=begun)]
        else:
            raise FailedError(f"the run is not finished after {ROUNDS} rounds")
        if difference := self.bench.difference(self.place.run, logs=not self.weights_only):
            raise FailedError(f"the finished run is another one: {difference}")
        return WAY_ON if self.refused else SAME

    def use(self, command: str) -> str:
        """Ask a finished run, following what is advised, until the answer is there."""
        options: list[str] = []
        for _ in range(ROUNDS):
            told = self.do([*asking(command, self.place.run), *options])
            if told.status == 0:
                found, expected = answer(command, told.out), self.bench.reference.answers[command]
                if found != expected:
                    raise FailedError(f"{command} answers {found!r} instead of {expected!r}")
                return WAY_ON if self.refused else SAME
            message = self.judged(told)
            options += self.follow(message, begun=True)
            if "--resume" in message and not (self.place.run / "final").is_dir():
                self.finish()
        raise FailedError(f"{command} did not work after {ROUNDS} rounds")

    def do(self, arguments: Sequence[str]) -> Told:
        """Run a command to its end and record it."""
        return self.record(self.start(arguments))

    def start(self, arguments: Sequence[str], **more: Any) -> Child:
        """Begin a command."""
        way = {"uid": self.uid, "umask": self.umask, "env": self.env, **more}
        return self.bench.start(self.place, arguments, plots=self.heal is not None, **way)

    def record(self, child: Child) -> Told:
        """Wait for the end of a command and note it; raises FailedError for what no command may do."""
        told = child.told()
        shown = [text if not text.startswith("--set=") else "..." for text in told.arguments]
        message = told.errors[0] if told.errors else "\n".join(told.err.splitlines()[-3:])[-500:]
        command, seconds = " ".join(dict.fromkeys(shown)), round(told.seconds, 2)
        ended = {"status": told.status, "message": message, "seconds": seconds}
        self.rounds.append({"command": command, **ended})
        if told.status is None:
            raise FailedError("the command hung")
        for text in (told.err, told.out):
            _, traceback, after = text.partition("Traceback (most recent call last)")
            if traceback:
                raise FailedError(f"a traceback: {after[-1500:]}")
        return told

    def judged(self, told: Told) -> str:
        """Return the message of a command that failed, if it is one clear line."""
        self.refused = True
        if told.status not in (1, 2):
            raise FailedError(f"status {told.status}; the last words: {told.err[-500:]}")
        if len(told.errors) != 1:
            last = (told.out + told.err)[-500:]
            raise FailedError(f"status {told.status} and {len(told.errors)} messages: {last}")
        last = [line for line in told.err.splitlines() if line.strip()][-1]
        if last != told.errors[0]:
            raise FailedError(f"the message has more than one line: {told.err[-500:]}")
        return told.errors[0]

    def follow(self, message: str, *, begun: bool) -> list[str]:
        """Do what a message advises; returns options for the next try."""
        if self.heal is not None and _WRITABLE.search(message):
            if ("heal", message) in self.tried:
                raise FailedError(f"the advice leads nowhere: the same message again: {message}")
            self.tried.add(("heal", message))
            self.heal()
            return []
        ways: dict[str, Callable[[], list[str]]] = {}
        for name, value in _NAMED.findall(message):
            ways[f"{name} {value}"] = lambda name=name, value=value: self._option(name, value)
        for setting in _SETTING.findall(message):
            ways[setting] = lambda setting=setting: [f"--set={setting}"]
        if "--trust" in message:
            ways["trust"] = lambda: ["--trust"]
        if _REMOVE.search(message) and (path := self._path_in(message)) is not None:
            ways["remove"] = lambda: self._remove(path)
        if not ways and self.original is not None and _RESTORE.search(message):
            ways["restore"] = lambda: self._restore(message)
        if not begun and "another --out" in message:
            ways["elsewhere"] = self._elsewhere
        if not ways and "--resume" in message:
            ways["again"] = list
        if not ways:
            raise FailedError(f"the message names no way on: {message}")
        untried = sorted(way for way in ways if (way, message) not in self.tried)
        if not untried:
            raise FailedError(f"the advice leads nowhere: the same message again: {message}")
        way = self.rng.choice(untried)
        self.tried.add((way, message))
        return ways[way]()

    def _elsewhere(self) -> list[str]:
        self.place.run = self.place.folder / f"elsewhere-{len(self.rounds)}"
        return []

    def _option(self, name: str, value: str) -> list[str]:
        if name == "allow":
            self.weights_only |= value.endswith(".jsonl") or value == "config.json"
        return [f"--{name}", value]

    def _path_in(self, message: str) -> Path | None:
        """Return the path in a message which is something that may be removed: the first one that exists."""
        for text in re.findall(re.escape(str(self.place.folder)) + r"[^\s:;,()]*", message):
            if (path := Path(text.rstrip("."))).exists() and path != self.place.run:
                return path
        return None

    def _remove(self, path: Path) -> list[str]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        return []

    def _restore(self, message: str) -> list[str]:
        """Put back from the copy what a message names, or else all that was damaged."""
        assert self.original is not None
        path = self._path_in(message) or self.place.run / "config.json"
        source = self.original / path.relative_to(self.place.folder)
        if not source.exists():
            raise FailedError(f"there is nothing to restore: {message}")
        if source.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(source, path)
        else:
            shutil.copy2(source, path)
        return []
