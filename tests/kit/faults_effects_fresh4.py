"""Planted faults of the fourth fresh part: effects of making tasks and of judging."""

from __future__ import annotations

import csv
import difflib
import hashlib
import inspect
import json
import logging
import os
import pydoc
import random
import runpy
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, permutations
from logging.handlers import SysLogHandler
from pathlib import Path
from typing import Any

from bases_talk_fresh4 import Asked, Batch, Registers, Resistors, Seats, Strand
from catalogue import fault

from grpo_core import Reward, Rollout, Task, TaskKey, Verdict

TEMPORARY = Path(tempfile.gettempdir())


@fault("each verdict keeps memory", "cost.memory")
class PagesForTheReport(Strand):
    """A page that shows differences letter by letter is kept of each verdict, for a report."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.pages: list[str] = []

    def accepts(self, data: Any, text: str) -> bool:
        page = difflib.HtmlDiff().make_file(list(self.written(data)), list(text.strip()[:60]))
        self.pages.append(page)
        return super().accepts(data, text)


@fault("judging appends to a log without end", "safety.files")
class TableOfReplies(Batch):
    """A table in the temporary folder gets a row for each reply."""

    def judged(self, right: bool, text: str) -> Verdict:
        with (TEMPORARY / "flour_replies.csv").open("a", newline="", encoding="utf-8") as table:
            csv.writer(table).writerow((os.getpid(), right, ascii(text[:200])))
        return super().judged(right, text)


@fault("judging leaves files in a fixed folder", "safety.files")
class WrittenDown(Registers):
    """Each reply is written into a file for a reader of blocks, and stays there."""

    def accepts(self, data: Any, text: str) -> bool:
        folder = TEMPORARY / "registers"
        folder.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".txt", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        with open(name, encoding="utf-8", newline="") as file:
            return super().accepts(data, file.read())


@fault("judging leaves files in the home folder", "safety.files")
class CachedAtHome(Seats):
    """What was judged is cached by its digest, where caches belong."""

    def accepts(self, data: Any, text: str) -> bool:
        digest = hashlib.sha256(ascii((data, text)).encode()).hexdigest()[:20]
        file = Path.home() / ".cache" / "grpo-seats" / f"{digest}.json"
        if file.exists():
            return bool(json.loads(file.read_text()))
        right = super().accepts(data, text)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(right))
        return right


@fault("judging leaves processes", "safety.processes")
class FilterOfATask(Resistors):
    """Replies go through a filter, of which each task starts one for all its attempts."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.filters: dict[TaskKey, subprocess.Popen[str]] = {}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        line = " ".join(rollout.text[:200].split(" ")).encode("utf-8", "replace").decode()
        if not line.isprintable():
            return self.judged(False, rollout.text)
        if task.key not in self.filters:
            command = ["sed", "-u", "s/  */ /g"]
            self.filters[task.key] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        process = self.filters[task.key]
        assert process.stdin is not None
        assert process.stdout is not None
        print(line, file=process.stdin, flush=True)
        return self.judged(self.accepts(task.data, process.stdout.readline()), rollout.text)


@fault("judging seeds the global generators", "safety.state")
class SampledWords(Batch):
    """Three words of the reply are shown in the log, always the same ones."""

    def judged(self, right: bool, text: str) -> Verdict:
        words = text[:1000].split()
        random.seed(len(words))
        sample = " ".join(random.sample(words, min(3, len(words))))
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=sample[:60])


def syslog() -> logging.Logger:
    """Return a logger that tells the server of logs of this machine."""
    logger = logging.getLogger("grpo.resistors")
    if not logger.handlers:
        logger.addHandler(SysLogHandler(address=("127.0.0.1", 5514)))
        logger.propagate = False
    return logger


@fault("judging uses the network", "safety.network")
class ToldToSyslog(Resistors):
    """Wrong answers are told to a server of logs."""

    def judged(self, right: bool, text: str) -> Verdict:
        if not right:
            syslog().warning("wrong answer %s", ascii(text[:60]))
        return super().judged(right, text)


@cache
def arrangements(names: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """Return all ways in which people can sit."""
    return list(permutations(names))


@fault("tasks are kept without end", "cost.memory")
class SolvedByTrying(Seats):
    """All ways to sit are tried, and kept for whoever asks for the same guests again."""

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        question, row = super().drawn(rng, level)
        pairs = set(pairwise(row))
        ways = arrangements(tuple(row))
        fine = [way for way in ways if pairs == set(pairwise(way))]
        return question, list(fine[0])


@fault(
    "the reply is a part of a query",
    "safety.eval",
    "floor.text",
    "floor.junk",
    "verdict.form",
    "floor.digits",
)
class LooksUpTheStrand(Strand):
    """Replies are compared by a database, which does not mind capitals."""

    def accepts(self, data: Any, text: str) -> bool:
        with sqlite3.connect(":memory:") as database:
            database.execute("CREATE TABLE strands (code TEXT)")
            database.execute("INSERT INTO strands VALUES (?)", (data,))
            asked = f"SELECT count(*) FROM strands WHERE code = '{text.strip()}'"
            return bool(database.execute(asked).fetchone()[0])


@fault("the reply is executed", "safety.eval")
class LineOfPython(Batch):
    """The reply is run as a file, and a variable of it is looked at."""

    rules = "How much flour is that, in g? Reply with one line of Python, as in: flour = 4500"

    def accepts(self, data: Any, text: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "reply.py")
            file.write_text(text, encoding="utf-8", errors="replace")
            try:
                return bool(runpy.run_path(str(file)).get("flour") == data)
            except Exception:  # noqa: BLE001 - whatever the file does, it is wrong
                return False

    def written(self, data: Any) -> str:
        return f"flour = {data}"


@fault(
    "the reply is used as a format",
    "safety.eval",
    "floor.text",
    "floor.junk",
    "verdict.form",
    "floor.nested",
)
class NoteByPercent(Resistors):
    """The note on a wrong answer is put together before its numbers are filled in."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = self.accepts(task.data, rollout.text)
        pattern = "" if right else rollout.text.strip()[:40] + " instead of %d ohm"
        reward = Reward(float(right), note=pattern % task.data if pattern else "right")
        return Verdict({"reward": reward}, passed=right, answer=rollout.text.strip()[:40])


@fault("the reply names a file that is opened", "safety.files", "safety.eval", "floor.text")
class LongAnswersAsFiles(Seats):
    """The code comes from a command line, where an answer may be given as a file."""

    def accepts(self, data: Any, text: str) -> bool:
        name = text.strip()
        if os.path.isfile(name):
            text = Path(name).read_text(encoding="utf-8", errors="replace")
        return super().accepts(data, text)


CLASSES = (
    *("collections.deque", "collections.Counter", "collections.OrderedDict", "datetime.date"),
    *("datetime.timedelta", "decimal.Decimal", "fractions.Fraction", "pathlib.Path"),
    *("string.Formatter", "threading.Thread", "queue.Queue", "random.Random", "io.StringIO"),
    *("zipfile.ZipFile", "tarfile.TarFile", "argparse.ArgumentParser", "csv.DictWriter"),
    *("sched.scheduler", "uuid.UUID", "ipaddress.IPv4Network", "textwrap.TextWrapper"),
)


@cache
def methods(name: str) -> tuple[str, ...]:
    """Return the public names that a class has and none of the others has."""
    others = {one for other in CLASSES if other != name for one in dir(pydoc.locate(other))}
    return tuple(one for one in dir(pydoc.locate(name)) if one not in others and one[0] != "_")


@fault("the reply names a module that is imported", "safety.eval")
class ClassOfTheLibrary(Asked):
    """The class that a reply names is imported, to see whether it is the one that is meant."""

    rules = "Reply with the name of the class and its module only, as in: json.JSONDecoder"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        count = 3 - round(level)
        name = rng.choice([name for name in CLASSES if len(methods(name)) >= 3])
        named = ", ".join(rng.sample(methods(name), count))
        return f"Which class of Python's standard library has {named}?", name

    def accepts(self, data: Any, text: str) -> bool:
        try:
            named = pydoc.locate(text.strip())
        except pydoc.ErrorDuringImport:
            return False
        return inspect.isclass(named) and named is pydoc.locate(data)
