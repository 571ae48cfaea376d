"""Write and read the run folder: config.json, cards.json, metrics.jsonl, rollouts.jsonl, log.txt.

The folder can be read after a kill at any moment.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_core.calls.printable import printable
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Group
from grpo_core.runs.atomic import (
    remove_folder,
    restore_folder,
    sync,
    sync_folders,
    whole_folder,
    write_whole,
)
from grpo_core.runs.attempts import (
    Fields,
    TokenValues,
    attempt_line,
    group_line,
    line_text,
    token_fields,
    update_line,
    without_texts,
)
from grpo_core.runs.documents import CONFIG_BYTES, read_document
from grpo_core.runs.files import UnsafeFileError, is_folder, names_in
from grpo_core.runs.lines import (
    JsonObject,
    Kind,
    append_line,
    finite,
    kind_of,
    unreadable,
    writing,
)
from grpo_core.runs.log import LineLog, Mark
from grpo_core.runs.recorded import recorded_settings
from grpo_core.runs.seal import (
    FORMAT,
    SEAL,
    DamagedError,
    check_format,
    seal,
    unseal,
    write_manifest,
)
from grpo_core.runs.shapes import is_alarm, is_attempt, not_a_number

_LOG_LINE_LIMIT = 10_000
"""The most characters of a line of log.txt; a line that is cut says how long it was."""

_ALL_FIELDS = Fields()

_LEFTOVER = re.compile(r"\.lock|\.(config|evaluation)\.json\..*")
"""The names of files that may be left from what was killed before it started."""

_LOG_LINES = 1_000
"""The most lines of one entry of log.txt; all further lines are joined to the last one."""


class RunFolder:
    """Give access to the files of one run; it can be used in place of its path.

    Each line is written in a single call, so that a kill can at worst cut the last one. The data
    that a checkpoint refers to is on disk before the checkpoint is (see `sync`).
    """

    def __init__(self, path: Path) -> None:
        self.shown = path
        """The path as it was given, for messages."""
        self.path = path.absolute()
        """The absolute path: code that changes the working directory does not move the run."""
        self._logs = {
            name: LineLog(self.path / name)
            for name in ("metrics.jsonl", "rollouts.jsonl", "alarms.jsonl")
        }

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.path / name

    @classmethod
    def unused(cls, path: Path | str | None, *, name: str = "run") -> RunFolder:
        """Return the folder for a new run after checking that it is free; write nothing.

        Args:
            path: the folder; None for runs/NAME-DATE-TIME.
            name: the NAME in that path.

        Raises:
            ConfigError: the folder holds a run or something else, or cannot be created.
        """
        path = Path(
            f"runs/{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}-{datetime.now():%Y%m%d-%H%M%S}"
            if path is None
            else path
        )
        try:
            if os.path.lexists(path / "config.json"):
                raise ConfigError(
                    f"{path} already holds a run; continue it with --resume {path}, "
                    "or choose another --out"
                )
            foreign_names = (name for name in names_in(path) if not _LEFTOVER.fullmatch(name))
            if path.is_dir() and (some_names := sorted(itertools.islice(foreign_names, 100))):
                listed = printable(", ".join(some_names), lines=False, limit=100)
                raise ConfigError(
                    f"the folder {path} is not empty (it holds {listed}), "
                    "and a run needs one of its own; choose another --out"
                )
            existing = next(p for p in (path, *path.absolute().parents) if p.exists())
            # Only an attempt to write also detects read-only and special file systems.
            with tempfile.TemporaryDirectory(dir=existing):
                return cls(path)
        except OSError as error:
            raise ConfigError(
                f"the run folder {path} cannot be created: {error.strerror or error}; "
                "choose another --out"
            ) from None

    def start(self, config: Mapping[str, Any]) -> None:
        """Create the folder and its config.json, which holds a digest of its own content.

        Args:
            config: the settings and the provenance of the run.

        Raises:
            ConfigError: the folder cannot be written.
        """
        content = {**config, "provenance": {**config["provenance"], "format": FORMAT}}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / "config.json", json.dumps(seal(content), indent=2) + "\n")
            sync_folders(self.path)
        except OSError as error:
            raise ConfigError(
                f"the run folder {self.shown} cannot be written: {error.strerror}; "
                "choose another --out"
            ) from None

    def cards(self, cards: Mapping[str, Any]) -> None:
        """Write cards.json: the description of each environment of the run, by its name."""
        path = self.path / "cards.json"
        with writing(path):
            write_whole(path, json.dumps(finite(cards), indent=2, allow_nan=False) + "\n")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run.

        Raises:
            ConfigError: `path` holds no run, or cannot be read.
        """
        try:
            if not os.path.lexists(path / "config.json"):
                raise ConfigError(
                    f"{path} holds no run (there is no config.json in it); "
                    "give the folder that `grpo run --out` named"
                )
            restore_folder(path / "final")
        except OSError as error:
            raise ConfigError(unreadable(path, error)) from None
        return cls(path)

    def config(self) -> JsonObject:
        """Return the settings and the provenance that the run recorded in config.json.

        Raises:
            ConfigError: config.json is damaged, is not that of a run, or is from a newer version.
        """
        path = self.path / "config.json"
        try:  # an editor with which a user changed it may have written a byte order mark
            data: Any = read_document(path, most_bytes=CONFIG_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError(unreadable(path, error)) from None
        if not isinstance(data, dict) or not isinstance(data.get("provenance"), dict):
            raise ConfigError(
                f"{self.shown} holds no run (its config.json was not written by a run); "
                "give the folder that --out named"
            )
        check_format(path, data["provenance"])
        try:
            return recorded_settings(path, unseal(data))
        except DamagedError:
            raise ConfigError(
                f"{path} is not as the run wrote it; restore it, or, if you changed it on purpose, "
                f'remove its line "{SEAL}" '
                "(settings of a run can also be changed by --resume RUN --set KEY=VALUE)"
            ) from None

    @property
    def finished(self) -> bool:
        """Tell whether the run is finished.

        Raises:
            ConfigError: final is a link.
        """
        return is_inner_folder(self.path / "final")

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl; NaN (not measured) and infinities become null."""
        self._logs["metrics.jsonl"].append(json.dumps(finite(values), allow_nan=False))

    def rollouts(
        self,
        step: int,
        group: Group[Any],
        fields: Fields = _ALL_FIELDS,
    ) -> None:
        """Append the line of a group and those of its rollouts to rollouts.jsonl.

        Args:
            step: the training step.
            group: the rollouts of one task with their verdicts and, unless they are those of an
                evaluation, their advantages.
            fields: what the lines hold.
        """
        log, key, draw = self._logs["rollouts.jsonl"], group.task.key, group.task.draw
        if fields.texts:
            log.append(line_text({"step": step, **group_line(group, fields)}))
        pairs = zip(group.rollouts, group.verdicts, strict=True)
        for number, (rollout, verdict) in enumerate(pairs):
            line = attempt_line(key, draw, number, rollout, verdict)
            line = {
                "step": step,
                "group": fields.number,
                **(line if fields.texts else without_texts(line)),
                **(token_fields(rollout) if fields.tokens else {}),
                "advantage": None if group.advantages is None else group.advantages[number],
            }
            log.append(line_text(line))

    def updated(self, step: int, number: int, values: TokenValues) -> None:
        """Append to rollouts.jsonl what the update knows of the tokens of a group.

        Args:
            step: the training step.
            number: the number of the group in the step.
            values: ratios and entropies of the segments that were trained on.
        """
        line = {"step": step, **update_line(number, values)}
        self._logs["rollouts.jsonl"].append(line_text(line))

    def vocabulary(self) -> list[str] | None:
        """Return the text of each token id; None if the run logged no tokens.

        Raises:
            ConfigError: the file is damaged.
        """
        path = self.path / "vocabulary.json"
        try:
            return [str(text) for text in read_document(path)]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(unreadable(path, error)) from None

    def write_vocabulary(self, texts: Sequence[str]) -> None:
        """Write the text of each token id, for viewers that have no tokenizer."""
        path = self.path / "vocabulary.json"
        with writing(path):
            write_whole(path, json.dumps(list(texts)) + "\n")

    def alarm(self, values: Mapping[str, Any]) -> None:
        """Append one line to alarms.jsonl; NaN (not measured) and infinities become null."""
        self._logs["alarms.jsonl"].append(json.dumps(finite(values), allow_nan=False, default=str))

    def log(self, text: str) -> None:
        """Append an entry to log.txt in printable form.

        Lines after the first are indented, and long lines are cut.
        """
        first, *more = text.replace("\r\n", "\n").split("\n", _LOG_LINES)
        indented = [first, *(line if line.startswith("  ") else f"  {line}" for line in more)]
        append_line(
            self.path / "log.txt",
            "\n".join(printable(line, lines=False, limit=_LOG_LINE_LIMIT) for line in indented),
        )

    def metric_lines(self) -> Iterator[JsonObject]:
        """Yield the lines of metrics.jsonl.

        Raises:
            ConfigError: a line is damaged.
        """
        for line in self._logs["metrics.jsonl"].lines():
            if kind_of(line) is not Kind.OTHER and type(line.get("step")) is not int:
                raise ConfigError(
                    f"{self._logs['metrics.jsonl'].path} has a line whose step is "
                    f"{line.get('step')!r}, not a whole number; remove the line, or name another "
                    "run"
                )
            if kind_of(line) is not Kind.OTHER and (name := not_a_number(line)) is not None:
                raise ConfigError(
                    f"{self._logs['metrics.jsonl'].path} has a line of step {line['step']} whose "
                    f"{printable(name, limit=100)!r} is not a number up to 1e300; remove the line, "
                    "or name another run"
                )
            yield line

    def alarm_lines(self) -> Iterator[JsonObject]:
        """Yield the lines of alarms.jsonl, which runs without alarms and older runs do not have.

        Raises:
            ConfigError: a line is damaged.
        """
        for line in self._logs["alarms.jsonl"].lines():
            if not is_alarm(line):
                raise ConfigError(
                    f"{self._logs['alarms.jsonl'].path} has a damaged line of step "
                    f"{line.get('step')!r}: it is not that of an alarm; remove the line, or name "
                    "another run"
                )
            yield line

    def rollout_lines(self, steps: Sequence[int] | None = None) -> Iterator[JsonObject]:
        """Yield the lines of the rollouts in rollouts.jsonl and in its compressed parts.

        Args:
            steps: the steps whose lines are parsed; None for all.

        Raises:
            ConfigError: a line is damaged.
        """
        # A line can be chosen by its first bytes, because `rollouts` writes the step first.
        prefixes = [""] if steps is None else [f'{{"step": {step},' for step in steps]
        lines = self._logs["rollouts.jsonl"].lines(tuple(prefix.encode() for prefix in prefixes))
        return (self._checked(line) for line in lines if "attempt" in line)

    def _checked(self, line: JsonObject) -> JsonObject:
        """Return the line of a rollout.

        Raises:
            ConfigError: it lacks what each version has written, or has it in another form.
        """
        if not is_attempt(line):
            raise ConfigError(
                f"{self._logs['rollouts.jsonl'].path} has a damaged line of step "
                f"{line.get('step')!r}: it is not that of a rollout; remove the line, or name "
                "another run"
            )
        return line

    def finish(self, save: Callable[[Path], None], *, card: Callable[[Path], str]) -> None:
        """Write final/ atomically: if it exists, the run is finished and the folder is complete.

        Args:
            save: writes the adapter or model into the folder that it is given.
            card: returns the model card of what was saved in the folder that it is given.

        Raises:
            RunStoppedError: the folder cannot be written.
        """
        final = self.path / "final"
        self.sync()  # so that a finished run has the lines of its last evaluation
        is_inner_folder(final)  # a link is refused
        with writing(final), whole_folder(final) as folder:
            save(folder)
            write_whole(folder / "README.md", card(folder))
            write_manifest(folder)

    def reopen(self, step: int) -> None:
        """Make a finished run one that goes on: what it ended with is kept as final-STEP.

        Args:
            step: its last step.

        Raises:
            RunStoppedError: the folder cannot be written.
        """
        kept = self.path / f"final-{step}"
        with writing(self.path):
            if not is_inner_folder(kept):
                (self.path / "final").rename(kept)
            else:  # it went on from here before
                remove_folder(self.path / "final")
            sync(self.path)

    def marks(self) -> dict[str, Mark]:
        """Return the current end of each log: where a resume from this moment cuts it."""
        return {name: log.mark() for name, log in self._logs.items()}

    def sync(self) -> None:
        """Flush the logs and their directory entries to disk."""
        for log in self._logs.values():
            log.sync()
        with writing(self.path):
            sync(self.path)

    def check_logs(self, marks: Mapping[str, Mark]) -> dict[str, str]:
        """Compare each log with the position and digest that a checkpoint recorded.

        Returns:
            What is wrong with each damaged log, by its name; empty if all are intact.
        """
        problems = {}
        for name, mark in marks.items():
            try:
                if name not in self._logs or type(mark["bytes"]) is not int:
                    raise DamagedError("the checkpoint does not say where it ends")
                self._logs[name].check(mark)
            except DamagedError as error:
                problems[name] = str(error)
        return problems

    def cut(self, marks: Mapping[str, Mark]) -> None:
        """Remove the lines that were written after a checkpoint.

        A log that the checkpoint does not list did not exist yet, and is emptied.
        """
        for name, log in self._logs.items():
            log.cut(marks.get(name, {"bytes": 0}))

    def repair(self, name: str, wanted: Callable[[JsonObject], bool]) -> int:
        """Remove the lines of a log that cannot be read or are not wanted.

        Args:
            name: the log's file name.
            wanted: decides whether a line that can be read is kept.

        Returns:
            How many lines could not be read.
        """
        return self._logs[name].keep(wanted)

    def compress_logs(self, *, above_bytes: float) -> None:
        """Compress the content of rollouts.jsonl if it is larger than `above_bytes`."""
        self._logs["rollouts.jsonl"].compress(above_bytes=above_bytes)


class Unwritten(RunFolder):
    """Ignore every write, in a process that leaves writing the run folder to another process."""

    def _ignore(self, *arguments: Any, **named: Any) -> None: ...

    start = cards = metrics = rollouts = updated = alarm = log = finish = sync = cut = _ignore
    compress_logs = write_vocabulary = _ignore

    def marks(self) -> dict[str, Mark]:
        """Return no marks, because only the writing process knows the logs."""
        return {}

    def check_logs(self, marks: Mapping[str, Mark]) -> dict[str, str]:
        """Report no problem, because the writing process checks the logs."""
        return {}

    def repair(self, name: str, wanted: Callable[[JsonObject], bool]) -> int:
        """Leave the log to the writing process."""
        return 0


def write_attempts(path: Path, group: Group[Any]) -> None:
    """Append the rollouts of a group to a JSONL file, in the format of rollouts.jsonl."""
    key, draw = group.task.key, group.task.draw
    for number, pair in enumerate(zip(group.rollouts, group.verdicts, strict=True)):
        append_line(path, line_text(attempt_line(key, draw, number, *pair)))


def is_inner_folder(path: Path) -> bool:
    """Return whether there is a folder of this name in a run folder.

    Raises:
        ConfigError: there is a link. Whoever unpacks an archive owns the links in it, so nothing
            tells a link of the user from one that leads a stranger's run to another run's files.
    """
    try:
        return is_folder(path)
    except UnsafeFileError as error:
        raise ConfigError(f"{path} is not used: {error.strerror}; {error.advice}") from None


def newest_run(folder: Path) -> Path | None:
    """Return the run directly below `folder` that finished last, or None if none is finished."""
    runs = [
        run
        for run in folder.glob("*")
        if (run / "final").is_dir() and (run / "config.json").is_file()
    ]
    return max(runs, key=lambda run: (run / "final").stat().st_mtime, default=None)
