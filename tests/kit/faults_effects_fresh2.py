"""Planted faults: what judging does besides judging (the second fresh half)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import io
import locale
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal, getcontext
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, ClassVar

from bases_fresh2 import (
    FIELDS,
    ColumnName,
    DayAfter,
    FractionSum,
    Invoice,
    KilnSwing,
    MostCoins,
    NetworkOf,
    OrdersQuery,
    PrimeFactors,
    Seconds,
)
from catalogue import fault

from grpo_core import Rollout, Task, TaskKey, Verdict


@fault("the reply is a part of a shell command", "safety.eval", "safety.files", "safety.processes")
class ShellColumn(ColumnName):
    def read(self, text: str) -> str | None:
        if "\0" in text or len(text) > 200:
            return None
        line = f"printf '%s' {text.strip()} | tr -d ' '"
        run = subprocess.run(line, shell=True, capture_output=True, timeout=1, check=False)
        return run.stdout.decode(errors="replace") if run.returncode == 0 else None

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth)


@fault(
    "the reply is a part of a program",
    "safety.eval",
    "floor.code",
    "floor.digits",
    "cost.time",
    "safety.files",
)
class ProgramFraction(FractionSum):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        if not text.isascii() or "\0" in text or len(text) > 200:
            return self.judged(task, None)
        program = f"print({text} == {task.data})"
        line = [sys.executable, "-S", "-c", program]
        run = subprocess.run(line, capture_output=True, timeout=1.5, check=False, text=True)
        same = run.stdout.strip() == "True" and self.read(text) == task.data
        return self.judged(task, task.data if same else None)


@fault("a query may write, and attach files", "safety.eval", "safety.files")
class ScriptedOrders(OrdersQuery):
    def result(self, query: str, rows: list[tuple[int, ...]]) -> int | None:
        with closing(sqlite3.connect(":memory:")) as base:
            base.execute(f"CREATE TABLE orders ({', '.join(FIELDS)})")
            base.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
            *before, last = query.strip().rstrip(";").split(";")
            try:
                base.executescript(";".join(before))
                found = base.execute(last).fetchone()
            except (sqlite3.Error, sqlite3.Warning, ValueError):
                return None
        return found[0] if found and isinstance(found[0], int) else None


@fault("a link in the reply is opened", "safety.network")
class LinkedDay(DayAfter):
    def read(self, text: str) -> str | None:
        if text.strip().startswith(("http://", "https://")):
            with contextlib.suppress(OSError, ValueError):
                link = urllib.request.urlopen(text.strip(), timeout=0.5)
                text = link.read(100).decode(errors="replace")
        return super().read(text)


@fault("an address is checked by the resolver", "safety.network", "cost.time")
class ResolvedNetwork(NetworkOf):
    def read(self, text: str) -> str | None:
        try:
            return socket.gethostbyname(text.strip())
        except (OSError, UnicodeError, ValueError):
            return None

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth)


@fault("a port for looking on stays open", "safety.network", "safety.processes", "cost.memory")
class ListeningCoins(MostCoins):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        watched = socket.socket()
        watched.bind(("127.0.0.1", 0))
        watched.listen()
        PORTS.append(watched)
        return super().judged(task, answer)


PORTS: list[socket.socket] = []


@fault(
    "each verdict adds a handler to the log",
    "safety.files",
    "safety.processes",
    "safety.state",
    "cost.memory",
)
class LoggedSwing(KilnSwing):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        log = logging.getLogger("kiln")
        path = Path(tempfile.gettempdir()) / "kiln-verdicts.log"
        log.addHandler(logging.FileHandler(path, errors="replace"))
        log.warning("task %s: %s", task.key.index, answer)
        return super().judged(task, answer)


@fault("shared memory is not given back", "safety.files", "safety.processes", "cost.memory")
class SharedFactors(PrimeFactors):
    def accepts(self, truth: Any, answer: Any) -> bool:
        block = shared_memory.SharedMemory(create=True, size=4096)
        block.close()
        return super().accepts(truth, answer)


@fault("something is registered for the end of the process", "cost.memory", "safety.state")
class AtExitInvoice(Invoice):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        buffer = io.StringIO(f"{task.prompt} {rollout.text}" * 20)
        atexit.register(buffer.close)
        return super().verify(task, rollout)


@fault("the garbage collector is switched off for speed", "safety.state", "cost.memory")
class NoCollector(FractionSum):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        gc.disable()
        steps: list[Any] = [list(range(2000))]
        steps.append(steps)
        return super().verify(task, rollout)


@fault("a failure to read is tried again after a pause", "cost.time")
class PatientDay(DayAfter):
    def read(self, text: str) -> str | None:
        for _ in range(3):
            found = super().read(text)
            if found is not None:
                return found
            time.sleep(0.15)
        return None


@fault("averify blocks the loop", "cost.time")
class BlockingNetwork(NetworkOf):
    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        time.sleep(0.3)  # noqa: ASYNC251
        return self.judged(task, self.read(rollout.text))


@fault(
    "hard tasks take longer to judge than the limit",
    "cost.time",
    "verdict.reference",
    "verdict.form",
)
class SlowFactors(PrimeFactors):
    timeout_seconds = 0.5

    def accepts(self, truth: Any, answer: Any) -> bool:
        if not super().accepts(truth, answer):
            return False
        number = 1
        for prime in truth:
            number *= prime
        return sum(number % divisor == 0 for divisor in range(1, min(number // 10, 30_000_000))) > 0


@fault("days are counted one by one from the year 1", "cost.time")
class CountedDay(DayAfter):
    timeout_seconds = 5.0

    def read(self, text: str) -> str | None:
        found = super().read(text)
        days = [date.fromordinal(number).isoformat() for number in range(1, 800_000)]
        return found if found in days else None


@fault("an unfinished task of the event loop is left", "safety.processes", "cost.memory")
class PendingColumn(ColumnName):
    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        WAITING.append(asyncio.create_task(asyncio.sleep(3600)))
        return self.judged(task, self.read(rollout.text))


WAITING: list[asyncio.Task[None]] = []


@fault("the handler of a signal is replaced", "safety.state")
class AlarmedInvoice(Invoice):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        if threading.current_thread() is not threading.main_thread():
            return super().verify(task, rollout)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            return super().verify(task, rollout)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


@fault("a tracer stays on", "safety.state", "cost.time")
class TracedCoins(MostCoins):
    calls: ClassVar[dict[str, int]] = {}

    def accepts(self, truth: Any, answer: Any) -> bool:
        sys.setprofile(self.count)
        return super().accepts(truth, answer)

    def count(self, frame: Any, event: str, value: Any) -> None:
        self.calls[event] = self.calls.get(event, 0) + 1


@fault("the time zone is set and not set back", "safety.state")
class ZonedSeconds(Seconds):
    def accepts(self, truth: Any, answer: Any) -> bool:
        os.environ["TZ"] = "Asia/Tokyo"
        time.tzset()
        start = datetime(2031, 5, 1).timestamp()
        return answer is not None and start + truth == start + answer


@fault("the working directory stays changed where a reply cannot be read", "safety.state")
class LostFolder(PrimeFactors):
    def read(self, text: str) -> Any:
        before = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            value = super().read(text)
            os.chdir(before if isinstance(value, list) else "/")
        return value


@fault("the precision of decimals is set for all that follows", "safety.state", "verdict.repeat")
class PreciseSwing(KilnSwing):
    def accepts(self, truth: Any, answer: Any) -> bool:
        getcontext().prec = 6
        return answer is not None and Decimal(answer) - truth == 0


@fault("the module path grows", "safety.state", "cost.memory")
class PathedColumn(ColumnName):
    def accepts(self, truth: Any, answer: Any) -> bool:
        sys.path.insert(0, str(Path(__file__).parent))
        return super().accepts(truth, answer)


@fault("the locale is set for reading numbers", "safety.state")
class LocalSeconds(Seconds):
    def read(self, text: str) -> int | None:
        locale.setlocale(locale.LC_ALL, "C.utf8")
        return super().read(locale.delocalize(text))


@fault("the verdict is noted in the task's data", "safety.state", "verdict.repeat")
class NotedInvoice(Invoice):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        fields = {name: task.data[name] for name in ("net", "tax", "total")}
        verdict = super().judged(replace(task, data=fields), answer)
        task.data["attempts"] = task.data.get("attempts", 0) + 1
        return verdict

    def reference(self, task: Task[Any]) -> str:
        return super().reference(
            replace(task, data={n: v for n, v in task.data.items() if n != "attempts"})
        )


@fault("standard output stays redirected", "safety.state")
class QuietFraction(FractionSum):
    def read(self, text: str) -> str | None:
        sys.stdout = io.StringIO()
        found = super().read(text)
        if found is not None:
            sys.stdout = sys.__stdout__
        return found


@fault("each verdict keeps a copy of its prompt", "cost.memory")
class RememberedCoins(MostCoins):
    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.asked_for: list[tuple[TaskKey, str, str]] = []

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        self.asked_for.append((task.key, str(task.prompt) * 40, "".join([rollout.text, " "])))
        return super().verify(task, rollout)
