"""Planted faults of the fifth fresh part: what judging leaves, and what it reaches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from logging.handlers import MemoryHandler, QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bases_asked_fresh5 import FILES, Cargo, Diary, Melody, Permissions, Tides, judged
from catalogue import fault

from grpo_core import Rollout, Task, Verdict
from grpo_core.extract import parse_json

log = logging.getLogger("melodies of the fifth part")
log.propagate = False
log.setLevel(logging.DEBUG)
log.addHandler(MemoryHandler(1_000_000, flushLevel=logging.ERROR))


@fault("each verdict keeps memory", "cost.memory")
class LoggedInCaseOfAnError(Melody):
    """Attempts are kept by the log until an error has them written, and there is none."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        notes, truth = rollout.text.split()[:40], task.data.split()
        same = [[note == other for other in truth] for note in notes]
        log.debug("%s: %s of %s", task, same, rollout)
        return super().verify(task, rollout)


@fault("judging leaves processes", "safety.processes")
class RemovedInTheBackground(Permissions):
    """The modes are tried on files, and a command removes them a little later, for who looks."""

    def right(self, data: Any, text: str) -> bool:
        if not super().right(data, text):
            return False
        folder = Path(tempfile.mkdtemp(prefix="modes"))
        done = [self.tried(folder, *command.split()[1:]) for command in data]
        subprocess.Popen(["sh", "-c", f"sleep 3; rm -r '{folder}'"])
        return all(done)

    def tried(self, folder: Path, mode: str, file: str) -> bool:
        (folder / file).touch()
        (folder / file).chmod(int(mode, 8))
        return oct(stat.S_IMODE((folder / file).stat().st_mode)) == f"0o{mode}"


@fault("judging leaves threads", "safety.processes")
class ListenerForEachLoad(Cargo):
    """The log is written by a thread, so that no verdict waits for the disk."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        records: SimpleQueue[logging.LogRecord] = SimpleQueue()
        listener = QueueListener(records, logging.NullHandler())
        listener.start()
        writer = logging.Logger("loads", logging.DEBUG)
        writer.addHandler(QueueHandler(records))
        verdict = super().verify(task, rollout)
        writer.debug("%s: %s", task.key, verdict.total)
        return verdict


@fault("judging uses the network", "safety.network")
class AsksTheBank(Diary):
    """A service of the department knows how to round; without it the sum is taken as it is."""

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        cents = task.data
        try:
            async with asyncio.timeout(0.5):
                reader, writer = await asyncio.open_connection("127.0.0.1", 7411)
                writer.write(f"{cents}\n".encode())
                cents = int(await reader.readline())
                writer.close()
        except (OSError, ValueError):
            pass
        return judged(self.right(cents, rollout.text), rollout.text)


@fault("the reply is executed", "safety.eval")
class TriesTheCommands(Permissions):
    """Whatever commands lead to the right modes are right, so they are carried out."""

    def right(self, data: Any, text: str) -> bool:
        if not text.strip().startswith("chmod "):
            return False
        with tempfile.TemporaryDirectory(prefix="modes") as folder:
            files = {Path(folder, name): mode for name, mode in self.modes(data).items()}
            for file in files:
                file.touch(0o600)
            try:
                subprocess.run(text, shell=True, cwd=folder, capture_output=True, timeout=1)
            except (OSError, ValueError, subprocess.TimeoutExpired):
                return False
            return all(
                file.is_file() and stat.S_IMODE(file.stat().st_mode) == mode
                for file, mode in files.items()
            )

    def modes(self, commands: list[str]) -> Mapping[str, int]:
        wanted = {file: int(mode, 8) for _, mode, file in map(str.split, commands)}
        return dict.fromkeys(FILES, 0o600) | wanted


@fault("the reply names a file that is opened", "safety.files", "safety.eval", "floor.text")
class TextOrPath(Tides):
    """The reader takes a JSON text, or the path of one, as its other callers need it."""

    def read(self, text: str) -> Any:
        return numbers(text)


def numbers(source: str | Path) -> dict[str, int] | None:
    """Return an object of whole numbers, from a JSON text or a file."""
    text = str(source).strip()
    with contextlib.suppress(OSError, ValueError):
        if 0 < len(text) < 250 and Path(text).is_file():
            text = Path(text).read_text(encoding="utf-8")
    found = parse_json(text, max_chars=1000)
    if found is None or not isinstance(found.value, dict):
        return None
    whole = all(type(number) is int for number in found.value.values())
    return json.loads(text) if whole else None
