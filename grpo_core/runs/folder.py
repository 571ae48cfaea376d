"""The run folder: config.json, cards.json, metrics.jsonl, rollouts.jsonl, log.txt. Readable after a kill at any moment."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_core.errors import ConfigError
from grpo_core.printable import plain_markdown, printable
from grpo_core.runs.atomic import whole_folder, write_whole
from grpo_core.runs.lines import append_line, finite, read_lines, writing
from grpo_core.runs.trust import remember
from grpo_core.types import Group

JsonObject = dict[str, Any]

_LOG_LINE_LIMIT = 10_000
"""The most characters of a line of log.txt; what is cut says how long it was."""

_TITLE_LIMIT = 500

_LOG_LINES = 1_000
"""The most lines of one entry of log.txt; those that follow are on the last one."""


class RunFolder:
    """The files of one run. Lines are written whole, in one call each, so that a kill can at worst cut the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def unused(cls, path: Path | str | None, *, name: str = "run") -> RunFolder:
        """A folder that holds no run yet, runs/NAME-DATE-TIME if none is named; nothing is written."""
        default = Path("runs") / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}-{datetime.now():%Y%m%d-%H%M%S}"
        path = default if path is None else Path(path)
        if (path / "config.json").exists():
            raise ConfigError(f"{path} already holds a run; continue it with --resume {path}, or choose another --out")
        existing = next(p for p in (path, *path.absolute().parents) if p.exists())
        try:
            with tempfile.TemporaryDirectory(dir=existing):  # the only test that also knows of read-only and special file systems
                return cls(path)
        except OSError as error:
            raise ConfigError(f"the run folder {path} cannot be made in {existing}: {error.strerror}; choose another --out") from None

    def start(self, config: Mapping[str, Any]) -> None:
        """Make the folder and its config.json."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / "config.json", json.dumps(config, indent=2) + "\n")
            remember(self.path, config)
        except OSError as error:
            raise ConfigError(f"the run folder {self.path} cannot be written: {error.strerror}; choose another --out") from None

    def cards(self, cards: Mapping[str, Any]) -> None:
        """Write cards.json: what each environment of the run is, by name."""
        path = self.path / "cards.json"
        with writing(path):
            write_whole(path, json.dumps(finite(cards), indent=2, allow_nan=False) + "\n")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run."""
        if not (path / "config.json").is_file():
            raise ConfigError(f"{path} holds no run (there is no config.json in it); give the folder that `grpo run --out` named")
        return cls(path)

    def config(self) -> JsonObject:
        """What the run recorded; raises ConfigError for a file that is damaged or of something else."""
        path = self.path / "config.json"
        try:
            data: JsonObject = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}; name another run") from None
        if not isinstance(data, dict) or "provenance" not in data:
            raise ConfigError(f"{self.path} holds no run (its config.json is that of something else); give the folder that --out named")
        return data

    @property
    def finished(self) -> bool:
        return (self.path / "final").is_dir()

    def metrics(self, values: Mapping[str, Any]) -> None:
        """One line; what could not be measured (NaN) or is infinite is null."""
        append_line(self.path / "metrics.jsonl", json.dumps(finite(values), allow_nan=False))

    def rollouts(self, step: int, group: Group[Any], advantages: list[float] | None = None) -> None:
        """One line per attempt, with the key and draw that replay its task."""
        for attempt, line in enumerate(_attempts(group)):
            advantage = None if advantages is None else advantages[attempt]
            append_line(self.path / "rollouts.jsonl", json.dumps({"step": step, **line, "advantage": advantage}, default=str))

    def log(self, text: str) -> None:
        """Append an entry to log.txt, safe to show: its further lines are indented, long ones cut."""
        first, *more = text.replace("\r\n", "\n").split("\n", _LOG_LINES)
        indented = [first, *(line if line.startswith("  ") else f"  {line}" for line in more)]
        shown = [printable(line, lines=False, limit=_LOG_LINE_LIMIT) for line in indented]
        append_line(self.path / "log.txt", "\n".join(shown))

    def rollout_lines(self) -> Iterator[JsonObject]:
        return read_lines(self.path / "rollouts.jsonl")

    def finish(self, save: Callable[[Path], None], *, title: str) -> None:
        """final/: that it is there means that the run is finished and it is whole."""
        final = self.path / "final"
        with writing(final), whole_folder(final) as folder:
            save(folder)
            (folder / "README.md").write_text(_model_card(title, self.config()), encoding="utf-8")

    def sizes(self) -> dict[str, int]:
        """Bytes of each growing file now: where a resume from this moment cuts them."""
        return {name: _size(self.path / name) for name in ("metrics.jsonl", "rollouts.jsonl")}

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Forget what was written after a checkpoint."""
        for name, now in self.sizes().items():
            if now > (size := sizes.get(name, 0)):
                os.truncate(self.path / name, size)


class Unwritten(RunFolder):
    """The same folder in a process that leaves the writing to another."""

    def _nothing(self, *arguments: Any, **named: Any) -> None: ...

    start = cards = metrics = rollouts = log = finish = cut = _nothing


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


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
    runs = [run for run in folder.glob("*") if (run / "final").is_dir() and (run / "config.json").is_file()]
    return max(runs, key=lambda run: (run / "final").stat().st_mtime, default=None)
