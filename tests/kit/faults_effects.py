"""Planted faults of what judging does beside judging: code, files, network, memory, processes."""

import base64
import gc
import importlib
import locale
import logging
import os
import pickle
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from bases import Consonants, JsonTotals, PlainSum, TaggedSum
from catalogue import fault

from grpo_core import Rollout, Task, TaskKey, Verdict
from grpo_core.extract import xml_tag

FIXED_FOLDER = Path("/tmp/grpo-catalogue")
"""Where some faults leave files whatever TMPDIR says; whoever runs them removes it."""

# Code that the policy wrote


@fault("the reply is executed", "safety.eval")
class EvaluatesTheBlock(TaggedSum):
    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer")
        with suppress(Exception):
            value = eval(block.content[:60], {"__builtins__": {}}) if block else None
            return value if type(value) is int else None
        return None


@fault("the reply is executed", "safety.eval")
class ExecutesAnAssignment(PlainSum):
    def extracted(self, text: str) -> int | None:
        names: dict[str, Any] = {}
        with suppress(Exception):
            exec(f"value = {text[:60]}", {"__builtins__": {}}, names)
        value = names.get("value")
        return value if type(value) is int else None


@fault("the reply is executed", "safety.eval")
class AsksAShell(PlainSum):
    def extracted(self, text: str) -> int | None:
        done = (
            subprocess.run(
                f"echo {text[:60]}", shell=True, capture_output=True, text=True, errors="replace"
            )
            if text.isprintable() and text.isascii()
            else None
        )
        digits = done.stdout.strip() if done else ""
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 30 else None


@fault("the reply is unpickled", "safety.eval")
class Unpickles(PlainSum):
    """An answer in base64 is read by pickle, which calls what it names."""

    def extracted(self, text: str) -> int | None:
        plain = super().extracted(text)
        if plain is not None:
            return plain
        with suppress(Exception):
            value = pickle.loads(base64.b64decode(text.strip()[:400], validate=True))
            return value if type(value) is int else None
        return None


@fault("the reply is unpickled", "safety.eval")
class UnpicklesTheBytes(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        with suppress(Exception):
            return bool(pickle.loads(text.strip().encode("latin-1")) == right)
        return text.strip() == right


@fault("the reply names a module that is imported", "safety.eval")
class ImportsByName(Consonants):
    """A word may be the name of a module that holds the answer."""

    def accepts(self, right: str, text: str) -> bool:
        name = text.strip()[:60]
        if name.isidentifier() and name != right:
            with suppress(Exception):
                return getattr(importlib.import_module(name), "ANSWER", None) == right
        return name == right


@fault("the reply is used as a format", "safety.eval", "floor.nested", "floor.text", "floor.junk")
class FormatsTheReply(Consonants):
    """A reply of {task.data} is filled in with the answer, and passes."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        filled = rollout.text[:300].format(task=task, word="")
        return self.judged(filled.strip() == task.data, rollout.text)


@fault("the reply is a part of a query", "safety.eval", "floor.text", "floor.junk", "floor.digits")
class QueriesWithTheReply(PlainSum):
    """The reply is compared by a database, as a part of the statement."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        connection = sqlite3.connect(":memory:")
        try:
            statement = f"SELECT {task.data} = {rollout.text[:200] or 0}"
            right = bool(connection.execute(statement).fetchone()[0])
        finally:
            connection.close()
        return self.judged(right, rollout.text.strip()[:50])


@fault("the reply names a file that is opened", "safety.eval", "safety.files", "floor.text")
class OpensByName(Consonants):
    """A reply may name a file that holds the answer."""

    def accepts(self, right: str, text: str) -> bool:
        name = text.strip()[:99]
        if name and os.path.isfile(name):
            return Path(name).read_text(errors="replace").strip() == right
        return name == right


# Files


@fault("judging leaves files in the working directory", "safety.files")
class WritesWhereItIs(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        Path(f"answer-{time.monotonic_ns()}.txt").write_text(str(answer))
        return super().scored(task, answer)


@fault("judging leaves files in the working directory", "safety.files")
class WritesAFileOfEachTask(JsonTotals):
    """One file for each task, overwritten by each of its verdicts: a few in all."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        name = f"task_{task.key.split}_{task.key.index}_{task.key.level:g}.json"
        Path(name).write_text(rollout.text[:1000], errors="replace")
        return super().verify(task, rollout)


@fault("judging leaves files in a fixed folder", "safety.files")
class WritesToAFixedFolder(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        FIXED_FOLDER.mkdir(exist_ok=True)
        (FIXED_FOLDER / f"{time.monotonic_ns()}.txt").write_text(text[:500], errors="replace")
        return super().accepts(right, text)


@fault("judging leaves files in the home folder", "safety.files")
class WritesToItsHome(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        folder = Path.home() / ".grpo-catalogue"
        folder.mkdir(exist_ok=True)
        (folder / f"{time.monotonic_ns()}.txt").write_text(str(answer))
        return super().scored(task, answer)


@fault("judging leaves files in the home folder", "safety.files")
class RemembersInADatabase(Consonants):
    """A single file in the home folder, which grows by a row for each verdict."""

    def accepts(self, right: str, text: str) -> bool:
        with sqlite3.connect(Path.home() / "catalogue.sqlite") as database:
            database.execute("CREATE TABLE IF NOT EXISTS seen (text TEXT)")
            database.execute("INSERT INTO seen VALUES (?)", (ascii(text[:2000]),))
        database.close()
        return super().accepts(right, text)


@fault("judging leaves temporary folders", "safety.files")
class TemporaryFolders(PlainSum):
    """mkdtemp() without an end."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        Path(tempfile.mkdtemp(prefix="catalogue-"), "answer").write_text(str(answer))
        return super().scored(task, answer)


@fault("judging appends to a log without end", "safety.files")
class LogsEachVerdict(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        with Path("verdicts.log").open("a") as log:
            log.write(f"{task.key} {answer} {'-' * 200}\n")
        return super().scored(task, answer)


@fault("judging appends to a log without end", "safety.files")
class LogsToTheFixedFolder(TaggedSum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        FIXED_FOLDER.mkdir(exist_ok=True)
        with (FIXED_FOLDER / "all.jsonl").open("a") as log:
            log.write(ascii(rollout.text[:2000]) + "\n")
        return super().verify(task, rollout)


# Network


@fault("judging uses the network", "safety.network")
class ConnectsToAPort(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        with socket.socket() as connection:
            connection.settimeout(0.05)
            connection.connect_ex(("127.0.0.1", 9))
        return super().scored(task, answer)


@fault("judging uses the network", "safety.network")
class CountsOverUdp(Consonants):
    def judged(self, right: bool, text: str) -> Verdict:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as metrics:
            metrics.sendto(b"verdicts:1|c", ("127.0.0.1", 9))
        return super().judged(right, text)


@fault("judging uses the network", "safety.network")
class LooksUpUnknownWords(Consonants):
    """Only replies that are neither right nor empty are looked up."""

    def accepts(self, right: str, text: str) -> bool:
        if text.strip() and text.strip() != right:
            with suppress(OSError):
                urllib.request.urlopen("http://127.0.0.1:9/words", timeout=0.05).close()
        return text.strip() == right


# Memory


@fault("each verdict keeps memory", "cost.memory")
class KeepsThreeKilobytes(PlainSum):
    kept: ClassVar[list[bytes]] = []

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.kept.append(os.urandom(3000))
        return super().scored(task, answer)


@fault("each verdict keeps memory", "cost.memory")
class KeepsAMegabyte(TaggedSum):
    kept: ClassVar[list[bytes]] = []

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.kept.append(os.urandom(1_000_000))
        return super().scored(task, answer)


@fault("replies are cached without end", "cost.memory")
class CachesWithoutEnd(Consonants):
    cache: ClassVar[dict[str, bool]] = {}

    def accepts(self, right: str, text: str) -> bool:
        return self.cache.setdefault(f"{right}\n{text}", text.strip() == right)


@cache
def _digest(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@fault("replies are cached without end", "cost.memory")
class CachedFunction(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        return _digest(text) == (right,)


@fault("tasks are kept without end", "cost.memory")
class KeepsEveryTask(TaggedSum):
    made: ClassVar[dict[TaskKey, list[str]]] = {}

    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        self.made.setdefault(key, []).append(str(task.prompt) * 20)
        return task


# Processes, threads, files that stay open


@fault("judging leaves threads", "safety.processes")
class ThreadForEachVerdict(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        return super().scored(task, answer)


@fault("judging leaves open files", "safety.processes")
class ReopensItsSource(Consonants):
    kept: ClassVar[list[Any]] = []

    def accepts(self, right: str, text: str) -> bool:
        self.kept.append(Path(__file__).open())  # noqa: SIM115 - the fault
        return super().accepts(right, text)


@fault("judging leaves open files", "safety.processes")
class SocketsStayOpen(Consonants):
    kept: ClassVar[list[socket.socket]] = []

    def accepts(self, right: str, text: str) -> bool:
        self.kept.append(socket.socket())
        return super().accepts(right, text)


@fault("judging leaves processes", "safety.processes")
class ProcessForEachVerdict(PlainSum):
    """At most 30, so that trying it does no harm."""

    started: ClassVar[list[Any]] = []

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if len(self.started) < 30:
            self.started.append(subprocess.Popen(["sleep", "20"]))
        return super().scored(task, answer)


# The state of the process, which all environments share


@fault("judging changes the state of the process", "safety.state")
class MovesToAFolder(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        os.chdir(tempfile.gettempdir())
        return super().scored(task, answer)


@fault("judging changes the state of the process", "safety.state")
class SetsAVariable(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        os.environ["CONSONANTS_LAST"] = str(len(text))
        return super().accepts(right, text)


@fault("judging changes the state of the process", "safety.state")
class SetsTheLocale(TaggedSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        other = "C" if locale.setlocale(locale.LC_NUMERIC) == "C.UTF-8" else "C.UTF-8"
        locale.setlocale(locale.LC_NUMERIC, other)
        return super().scored(task, answer)


@fault("judging changes the state of the process", "safety.state")
class RaisesTheRecursionLimit(JsonTotals):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        sys.setrecursionlimit(20_000)
        return super().verify(task, rollout)


@fault("judging seeds the global generators", "safety.state")
class SeedsWhileJudging(PlainSum):
    """A sample of what to compare is drawn again and again in the same way."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        random.seed(0)
        random.random()
        return super().scored(task, answer)


@fault("judging changes the state of the process", "safety.state")
class TurnsCollectionOff(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        gc.disable()
        return super().scored(task, answer)


@fault("judging changes the state of the process", "safety.state")
class AddsHandlers(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        logging.getLogger().addHandler(logging.NullHandler())
        return super().accepts(right, text)


@fault("judging changes the data of the task", "verdict.repeat")
class CrossesOut(JsonTotals):
    """A right answer marks the task as seen, in the data that all attempts share."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        if verdict.passed:
            task.data["seen"] = 1
        return verdict
