"""The run folder: config.json, cards.json, metrics.jsonl, rollouts.jsonl, log.txt. Readable after a kill at any moment."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_core.calls.printable import plain_markdown, printable
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Group
from grpo_core.runs.atomic import restore_folder, sync, sync_folders, whole_folder, write_whole
from grpo_core.runs.lines import append_line, finite, writing
from grpo_core.runs.log import LineLog, Mark
from grpo_core.runs.seal import (
    FORMAT,
    SEAL,
    DamagedError,
    check_format,
    seal,
    unseal,
    write_manifest,
)
from grpo_core.runs.trust import remember

JsonObject = dict[str, Any]

_LOG_LINE_LIMIT = 10_000
"""The most characters of a line of log.txt; what is cut says how long it was."""

_TITLE_LIMIT = 500

_LOG_LINES = 1_000
"""The most lines of one entry of log.txt; those that follow are on the last one."""


class RunFolder:
    """The files of one run.

    Lines are written whole, in one call each, so that a kill can at worst cut the last one. What a
    checkpoint needs is on disk before the checkpoint is (see `sync`).

    Attributes:
        path: absolute, so that code which changes the working directory does not move the run.
        shown: the path as it was given, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.shown = path
        self.path = path.absolute()
        self._logs = {
            name: LineLog(self.path / name) for name in ("metrics.jsonl", "rollouts.jsonl")
        }

    @classmethod
    def unused(cls, path: Path | str | None, *, name: str = "run") -> RunFolder:
        """Return a folder that holds nothing yet; nothing is written.

        Args:
            path: the folder; runs/NAME-DATE-TIME if it is None.
            name: NAME.

        Raises:
            ConfigError: the folder holds a run or something else, or cannot be made.
        """
        default = (
            Path("runs") / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}-{datetime.now():%Y%m%d-%H%M%S}"
        )
        path = default if path is None else Path(path)
        try:
            if (path / "config.json").exists():
                raise ConfigError(
                    f"{path} already holds a run; continue it with --resume {path}, or choose another --out"
                )
            if path.is_dir() and (
                others := sorted(p.name for p in path.iterdir() if not _is_leftover(p.name))
            ):
                raise ConfigError(
                    f"the folder {path} is not empty (it holds {printable(', '.join(others), lines=False, limit=100)}), "
                    "and a run needs one of its own; choose another --out"
                )
            existing = next(p for p in (path, *path.absolute().parents) if p.exists())
            with tempfile.TemporaryDirectory(
                dir=existing
            ):  # the only test that also knows of read-only and special file systems
                return cls(path)
        except OSError as error:
            raise ConfigError(
                f"the run folder {path} cannot be made: {error.strerror or error}; choose another --out"
            ) from None

    def start(self, config: Mapping[str, Any]) -> None:
        """Make the folder and its config.json, which holds a digest of itself."""
        provenance = {**config["provenance"], "format": FORMAT}
        content = {**config, "provenance": provenance}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / "config.json", json.dumps(seal(content), indent=2) + "\n")
            sync_folders(self.path)
            remember(self.path, content)
        except OSError as error:
            raise ConfigError(
                f"the run folder {self.shown} cannot be written: {error.strerror}; choose another --out"
            ) from None

    def cards(self, cards: Mapping[str, Any]) -> None:
        """Write cards.json: what each environment of the run is, by name."""
        path = self.path / "cards.json"
        with writing(path):
            write_whole(path, json.dumps(finite(cards), indent=2, allow_nan=False) + "\n")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of a run; raise ConfigError if there is none in `path`."""
        try:
            if not (path / "config.json").is_file():
                raise ConfigError(
                    f"{path} holds no run (there is no config.json in it); give the folder that `grpo run --out` named"
                )
            restore_folder(path / "final")
        except OSError as error:
            raise ConfigError(_unreadable(path, error)) from None
        return cls(path)

    def config(self) -> JsonObject:
        """Return what the run recorded.

        Raises:
            ConfigError: config.json is damaged, of something else, or of a newer version.
        """
        path = self.path / "config.json"
        try:
            data: Any = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(_unreadable(path, error)) from None
        except ValueError as error:
            raise ConfigError(
                f"{path} cannot be read: {error}; restore it, or name another run"
            ) from None
        if not isinstance(data, dict) or not isinstance(data.get("provenance"), dict):
            raise ConfigError(
                f"{self.shown} holds no run (its config.json is that of something else); give the folder that --out named"
            )
        check_format(path, data["provenance"])
        try:
            return unseal(data)
        except DamagedError:
            raise ConfigError(
                f'{path} is not as the run wrote it; restore it, or, if you changed it on purpose, remove its line "{SEAL}" '
                "(settings of a run can also be changed by --resume RUN --set KEY=VALUE)"
            ) from None

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "final").is_dir()

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Append one line; what could not be measured (NaN) or is infinite is null."""
        self._logs["metrics.jsonl"].append(json.dumps(finite(values), allow_nan=False))

    def rollouts(self, step: int, group: Group[Any], advantages: list[float] | None = None) -> None:
        """Append one line per attempt, with the key and draw that replay its task."""
        for attempt, line in enumerate(_attempts(group)):
            advantage = None if advantages is None else advantages[attempt]
            self._logs["rollouts.jsonl"].append(
                json.dumps({"step": step, **line, "advantage": advantage}, default=str)
            )

    def log(self, text: str) -> None:
        """Append an entry to log.txt, safe to show: its further lines are indented, long ones cut."""
        first, *more = text.replace("\r\n", "\n").split("\n", _LOG_LINES)
        indented = [first, *(line if line.startswith("  ") else f"  {line}" for line in more)]
        shown = [printable(line, lines=False, limit=_LOG_LINE_LIMIT) for line in indented]
        append_line(self.path / "log.txt", "\n".join(shown))

    def metric_lines(self) -> Iterator[JsonObject]:
        """Yield the lines of metrics.jsonl; raise ConfigError for a damaged one."""
        return self._logs["metrics.jsonl"].lines()

    def rollout_lines(self, steps: Sequence[int] | None = None) -> Iterator[JsonObject]:
        """Yield the lines of rollouts.jsonl and its compressed parts; raise ConfigError for a damaged one.

        Args:
            steps: only the lines of these steps are parsed; None: all.
        """
        if steps is None:
            return self._logs["rollouts.jsonl"].lines()
        # `rollouts` writes the step first.
        return self._logs["rollouts.jsonl"].lines(
            tuple(f'{{"step": {step},'.encode() for step in steps)
        )

    def finish(self, save: Callable[[Path], None], *, title: str) -> None:
        """Write final/: that it is there means that the run is finished and it is whole."""
        final = self.path / "final"
        self.sync()  # a finished run has the lines of its last evaluation
        with writing(final), whole_folder(final) as folder:
            save(folder)
            (folder / "README.md").write_text(_model_card(title, self.config()), encoding="utf-8")
            write_manifest(folder)

    def marks(self) -> dict[str, Mark]:
        """Return the end of each log now: where a resume from this moment cuts it."""
        return {name: log.mark() for name, log in self._logs.items()}

    def sync(self) -> None:
        """Wait until the logs are on disk, also their names in the folder."""
        for log in self._logs.values():
            log.sync()
        with writing(self.path):
            sync(self.path)

    def check_logs(self, marks: Mapping[str, Mark]) -> dict[str, str]:
        """Return what is wrong with each log that is not as a checkpoint recorded it."""
        problems = {}
        for name, mark in marks.items():
            try:
                self._logs[name].check(mark)
            except DamagedError as error:
                problems[name] = str(error)
        return problems

    def cut(self, marks: Mapping[str, Mark]) -> None:
        """Forget what was written after a checkpoint; what it does not name was not there yet."""
        for name, log in self._logs.items():
            log.cut(marks.get(name, {"bytes": 0}))

    def repair(self, name: str, wanted: Callable[[JsonObject], bool]) -> int:
        """Keep the lines of a log that can be read and are wanted; return how many could not be read."""
        return self._logs[name].keep(wanted)

    def compress_logs(self, *, above_bytes: float) -> None:
        """Compress what rollouts.jsonl holds if that is more than `above_bytes`."""
        self._logs["rollouts.jsonl"].compress(above_bytes=above_bytes)


class Unwritten(RunFolder):
    """The same folder in a process that leaves the writing to another."""

    def _nothing(self, *arguments: Any, **named: Any) -> None: ...

    start = cards = metrics = rollouts = log = finish = sync = cut = compress_logs = _nothing

    def marks(self) -> dict[str, Mark]:
        """Return nothing: the writing process knows the logs."""
        return {}

    def check_logs(self, marks: Mapping[str, Mark]) -> dict[str, str]:
        """Return nothing: the writing process looks."""
        return {}

    def repair(self, name: str, wanted: Callable[[JsonObject], bool]) -> int:
        """Leave the log to the writing process."""
        return 0


def _is_leftover(name: str) -> bool:
    """Return whether a file is what a run leaves that was killed before it began."""
    return name == ".lock" or name.startswith(".config.json.")


def _unreadable(path: Path, error: OSError) -> str:
    advice = (
        "make it readable for this user" if isinstance(error, PermissionError) else "restore it"
    )
    return f"{path} cannot be read: {error.strerror or error}; {advice}, or name another run"


def write_attempts(path: Path, group: Group[Any]) -> None:
    """Add the attempts of a group to a JSONL file, in the form of rollouts.jsonl."""
    for line in _attempts(group):
        append_line(path, json.dumps(line, default=str))


def _attempts(group: Group[Any]) -> Iterator[JsonObject]:
    for attempt, (rollout, verdict) in enumerate(zip(group.rollouts, group.verdicts, strict=True)):
        yield {
            "key": asdict(group.task.key),
            "draw": group.task.draw,
            "attempt": attempt,
            "messages": [asdict(m) for m in rollout.messages],
            "finish": rollout.finish,
            "tokens": len(rollout.token_ids),
            "verdict": verdict.to_json(),
        }


def _model_card(title: str, config: JsonObject) -> str:
    library = "peft" if config["lora"]["enabled"] else "transformers"
    header = f"---\nlibrary_name: {library}\ntags: [grpo, grpo-core]\n---\n"
    heading = plain_markdown(title, limit=_TITLE_LIMIT)
    return f"{header}\n# {heading}\n\nTrained with grpo-core. All settings:\n\n```json\n{json.dumps(config, indent=2)}\n```\n"


def newest_run(folder: Path) -> Path | None:
    """The finished run below `folder` that was finished last."""
    runs = [
        run
        for run in folder.glob("*")
        if (run / "final").is_dir() and (run / "config.json").is_file()
    ]
    return max(runs, key=lambda run: (run / "final").stat().st_mtime, default=None)
