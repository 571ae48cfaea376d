"""Keep the attempts of an evaluation in a folder, from which it goes on after a kill.

Each attempt is a line of attempts.jsonl, on disk before the attempt counts as done. Of several
lines about one attempt the last one counts; only an attempt that failed, or that is judged with
others, has several. What the lines cost is the sum over all of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, TaskKey
from grpo_core.api.calls import in_thread
from grpo_core.api.protocol import DEFAULT_TAGS, Tags
from grpo_core.api.runs import (
    ATTEMPTS,
    FORMAT,
    DamagedError,
    JsonObject,
    LineLog,
    RunFolder,
    append_line,
    check_format,
    finite,
    hold,
    names_in,
    read_sealed,
    seal,
    sync_file,
    sync_folders,
    write_whole,
    writing,
)
from grpo_core.words import fit
from grpo_evals.attempts import EndpointAttempt
from grpo_evals.types import EndpointUsage

SETTINGS = "evaluation.json"
"""The file with the settings that decide what the attempts are."""
RESULTS = "results.json"
"""The file with the results, written at the end."""
_LEFTOVER = re.compile(r"\..*\.json.*\..*")


class EvalFolder:
    """Give access to the folder of one evaluation, which no other process may write meanwhile.

    Attributes:
        path: the folder.
        attempts: the last line about each attempt, by task and number.
        usage: what all lines cost together.
        damaged: number of lines that could not be read; they were removed.
    """

    def __init__(
        self,
        path: Path | None,
        settings: Mapping[str, Any],
        *,
        name: str,
        tags: Tags | None = DEFAULT_TAGS,
    ) -> None:
        """Create the folder, or open it if it holds an evaluation with the same settings.

        Args:
            path: the folder; None for runs/NAME-DATE-TIME.
            settings: what decides the attempts, as JSON data.
            name: the NAME of a new folder.
            tags: the texts that open and close thoughts, for the lines of an older version.

        Raises:
            ConfigError: the folder holds something else or an evaluation with other settings,
                another process writes it, or it cannot be written.
        """
        begun = path is not None and os.path.lexists(path / SETTINGS)
        self.shown = path if path is not None and begun else RunFolder.unused(path, name=name).shown
        """The path as it was given, for messages."""
        self.path = self.shown.absolute()
        self._then = f"give the same command again, with --out {self.shown}"
        self._file = self.path / ATTEMPTS
        self._lock, self._tags = hold(self.path), tags
        self.attempts: dict[tuple[TaskKey, int], EndpointAttempt] = {}
        self.usage = EndpointUsage()
        self.damaged = 0
        try:
            for name in names_in(self.path):
                if _LEFTOVER.fullmatch(name):  # of a write that a kill cut off
                    (self.path / name).unlink()
            if begun:
                self._check(settings)
                self._read()
            else:
                content = seal({"format": FORMAT, **settings})
                with writing(self.path, then=self._then):
                    write_whole(self.path / SETTINGS, json.dumps(content, indent=2) + "\n")
                    sync_folders(self.path)
        except BaseException:
            self._lock.release()
            raise

    async def record(self, attempt: EndpointAttempt, *, draw: int) -> None:
        """Write the line of an attempt, and return once it is on disk.

        Args:
            attempt: the attempt.
            draw: the draw of its task.

        Raises:
            RunStoppedError: it cannot be written.
        """
        line = json.dumps(finite(attempt.to_line(draw)), default=str)
        append_line(self._file, line, then=self._then)
        with writing(self._file, then=self._then):
            await in_thread(sync_file, self._file)
        self._note(attempt)

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the results of the attempts so far.

        Raises:
            RunStoppedError: they cannot be written.
        """
        with writing(self.path / RESULTS, then=self._then):
            write_whole(self.path / RESULTS, json.dumps(finite(results), indent=2) + "\n")

    def close(self) -> None:
        """Release the lock, so that other processes can write the folder."""
        self._lock.release()

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raise ConfigError if the folder's evaluation has other settings."""
        try:
            stored = read_sealed(self.path / SETTINGS)
        except DamagedError as error:
            raise ConfigError(f"{self.shown}: {error}; name another --out") from None
        check_format(self.path / SETTINGS, stored)
        own, its = dict(_flat(settings)), dict(_flat(stored))
        own["format"] = its.get("format")
        differences = [
            f"{name} was {_shown(its.get(name))} and is {_shown(own.get(name))}"
            for name in sorted(own.keys() | its.keys())
            if own.get(name) != its.get(name)
        ]
        if differences:
            raise ConfigError(
                f"{self.shown} holds an evaluation with other settings: {'; '.join(differences)}. "
                "Give the settings that it was begun with, or name another --out"
            )

    def _read(self) -> None:
        """Read all lines; remove those that cannot be read, such as one that a kill cut off."""
        log = LineLog(self._file)
        if not os.path.lexists(self._file):
            return

        def is_attempt(line: JsonObject) -> bool:
            try:
                self._note(EndpointAttempt.from_line(line, self._tags))
            except Exception:  # noqa: BLE001 - a damaged line may hold anything
                self.damaged += 1
                return False
            return True

        unreadable = log.keep(is_attempt)
        self.damaged += unreadable

    def _note(self, attempt: EndpointAttempt) -> None:
        self.attempts[attempt.key, attempt.number] = attempt
        self.usage += attempt.usage


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested JSON objects by their dotted names."""
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _flat(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.loads(json.dumps(item))


def _shown(value: Any) -> str:
    return "not set" if value is None else fit(json.dumps(value), 80)
