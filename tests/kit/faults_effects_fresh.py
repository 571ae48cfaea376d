"""Faults of what a verdict leaves behind: files, memory, threads, processes, connections, time."""

from __future__ import annotations

import asyncio
import csv
import http.client
import json
import os
import pickle
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from bases_fresh import Arrival, Basket, Binary, Initials, Shifted
from catalogue import fault

from grpo_core import Rollout, Task, Verdict

# Files


@fault("a temporary file is not removed", "safety.files")
class LeavesTheDraft(Shifted):
    """Hands the reply to a checker in a file, as its command line wants it."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        with tempfile.NamedTemporaryFile("wb", suffix=".txt", delete=False) as file:
            file.write(rollout.text.strip().encode(errors="replace"))
        right = Path(file.name).read_bytes() == task.data.encode()
        return self.paid(right, rollout.text)


@fault("a history is kept in the home folder", "safety.files")
class HistoryAtHome(Basket):
    def paid(self, right: bool, text: str) -> Verdict:
        folder = Path.home() / ".baskets"
        folder.mkdir(exist_ok=True)
        with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"text": text[:100], "right": right}) + "\n")
        return super().paid(right, text)


@fault("each verdict leaves a picture", "safety.files")
class DrawsEachReply(Binary):
    """Pictures for a report, drawn in `verify` instead of `render`."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        colour = "green" if verdict.passed else "red"
        Path("pictures").mkdir(exist_ok=True)
        name = f"{task.key.split}-{task.key.index}-{len(rollout.text)}.svg"
        svg = f'<svg xmlns="http://www.w3.org/2000/svg"><circle r="9" fill="{colour}"/></svg>'
        Path("pictures", name).write_text(svg, encoding="utf-8")
        return verdict


@fault("verdicts are cached on the disk", "safety.files")
class PicklesItsVerdicts(Arrival):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        path = Path(tempfile.gettempdir(), "arrival-verdicts.pickle")
        known = pickle.loads(path.read_bytes()) if path.exists() else {}
        question = (task.key, rollout.text)
        if question not in known:
            known[question] = super().verify(task, rollout)
            path.write_bytes(pickle.dumps(known))
        verdict: Verdict = known[question]
        return verdict


@fault("wrong replies are collected in a table", "safety.files")
class TableOfMistakes(Initials):
    folder = Path("/tmp/grpo-catalogue/initials")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        if not verdict.passed:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / "mistakes.csv"
            with path.open("a", newline="", encoding="utf-8", errors="replace") as file:
                csv.writer(file).writerow([task.key.index, task.data, rollout.text[:80]])
        return verdict


@fault("a work folder is left where the verdict fails", "safety.files")
class CleansUpWhenRight(Shifted):
    """Returns before it cleans up."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        folder = Path(tempfile.mkdtemp(prefix="shifted-"))
        (folder / "reply").write_bytes(rollout.text.strip().encode(errors="replace"))
        if (folder / "reply").read_bytes() != task.data.encode():
            return self.paid(False, rollout.text)
        shutil.rmtree(folder)
        return self.paid(True, rollout.text)


# Memory


@fault("each verdict is kept for statistics", "cost.memory")
class CountsEveryText(Basket):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.texts: Counter[str] = Counter()
        self.passes: dict[Any, list[bool]] = {}

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        self.texts[f"{time.monotonic():.6f} {task.prompt} {rollout.text}"] += 1
        self.passes.setdefault(task.key, []).append(verdict.passed)
        return verdict


@fault("attempts are kept for a replay", "cost.memory")
class ReplayBuffer(Arrival):
    """A buffer that was given no length."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        letters = list(f"{task.prompt} {rollout.text}"[:2000])
        _REPLAY.append((task, rollout, letters))
        return super().verify(task, rollout)


_REPLAY: list[Any] = []


@fault("exceptions are kept with their frames", "cost.memory")
class KeepsItsExceptions(Binary):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.errors: list[tuple[ValueError, str]] = []

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        bits = bytearray(4096)
        try:
            bits[0] = int(task.data) % 256
            raise ValueError(rollout.text)
        except ValueError as error:
            self.errors.append((error, traceback.format_exc()))
        return super().verify(task, rollout)


# Threads, processes, open files


@fault("a watchdog outlives its verdict", "safety.processes")
class WatchdogForEach(Shifted):
    """A timer against slow verdicts, which nobody cancels."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        timer = threading.Timer(30.0, print, ("a verdict was slow",))
        timer.daemon = True
        timer.start()
        return super().verify(task, rollout)


@fault("a pool of threads is not shut down", "safety.processes")
class PoolForEach(Basket):
    pools: list[ThreadPoolExecutor] = []  # noqa: RUF012

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.pools.append(ThreadPoolExecutor(max_workers=2))
        future: Future[Verdict] = self.pools[-1].submit(super().verify, task, rollout)
        return future.result()


@fault("an event loop is not closed", "safety.processes")
class LoopForEach(Arrival):
    loops: list[asyncio.AbstractEventLoop] = []  # noqa: RUF012

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.loops.append(asyncio.new_event_loop())
        return self.loops[-1].run_until_complete(self.later(task, rollout))

    async def later(self, task: Task[str], rollout: Rollout) -> Verdict:
        return super().verify(task, rollout)


@fault("a helper process is not waited for", "safety.processes")
class HelperForEach(Initials):
    """Starts a helper that would speak, if it was ever asked."""

    helpers: list[subprocess.Popen[bytes]] = []  # noqa: RUF012

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.helpers.append(subprocess.Popen(["sleep", "20"], stdin=subprocess.DEVNULL))
        return super().verify(task, rollout)


@fault("file descriptors are not closed", "safety.processes")
class OpensRandomness(Binary):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        handle = os.open("/dev/urandom", os.O_RDONLY)
        self.salt = os.read(handle, 8)
        return super().verify(task, rollout)


# The network


@fault("verdicts are reported over the network", "safety.network")
class ReportsToADashboard(Basket):
    def paid(self, right: bool, text: str) -> Verdict:
        with suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", 9, timeout=0.2)
            connection.request("POST", "/verdicts", body=json.dumps({"right": right}))
            connection.close()
        return super().paid(right, text)


@fault("a verdict asks for a host's address", "safety.network")
class ChecksThatItIsOnline(Arrival):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        with suppress(OSError):
            socket.getaddrinfo("licence.example", 443)
        return super().verify(task, rollout)


# Time and code


@fault("each verdict rebuilds a table", "cost.time")
class RebuildsItsTable(Binary):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        table = {f"{number:b}": str(number) for number in range(2**18)}
        return self.paid(
            table.get(f"{int(task.data):b}", task.data) == rollout.text.strip(), rollout.text
        )


@fault("each verdict waits to spare a service", "cost.time")
class WaitsItsTurn(Initials):
    """A limit of rate from the time when a service was asked."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        time.sleep(0.25)
        return super().verify(task, rollout)


@fault("a comparison takes long for a long reply", "floor.large", "cost.time")
class DistanceInPython(Shifted):
    """An edit distance with any reply, however long it is."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = rollout.text.strip()
        return self.paid(self.distance(said, task.data) == 0, said)

    def distance(self, one: str, two: str) -> int:
        above = list(range(len(one) + 1))
        for number, letter in enumerate(two, 1):
            row = [number]
            for place, other in enumerate(one, 1):
                change = above[place - 1] + (letter != other)
                row.append(min(above[place] + 1, row[-1] + 1, change))
            above = row
        return above[-1]


@fault("the reply is evaluated without builtins, which does not confine it", "safety.eval")
class EvaluatedWithoutBuiltins(Basket):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        value: object = None
        if len(rollout.text) < 200:
            with suppress(Exception):
                value = eval(rollout.text.strip(), {"__builtins__": {}}, {})
        right = type(value) is int and str(value) == task.data and rollout.text.strip().isdecimal()
        return self.paid(right, rollout.text)
