"""Planted faults in what judging leaves behind, or does with a reply."""

from __future__ import annotations

import base64
import csv
import importlib
import pickle
import random
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bases_c2_fresh8 import (
    WHITE,
    CurveThrough,
    LibraryOwners,
    ReleaseSort,
    RotaTable,
    ServerSettings,
    StampGaps,
    StockCount,
    lines_of,
)
from bases_c_fresh8 import PenPlotter, marked, walked
from catalogue import fault

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.extract import xml_tag

SIDE = 512


@fault("each verdict keeps memory", "cost.memory")
class PlotterKeepsSheets(PenPlotter):
    """Draws each reply for a gallery of pictures, and keeps every sheet of 256 KB."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.gallery: list[bytearray] = []

    def verify(self, task: Task[list[tuple[str, int]]], rollout: Rollout) -> Verdict:
        moves, sheet = self.moves(rollout.text), bytearray(b"." * (SIDE * SIDE))
        for x, y in walked(moves):
            sheet[(y % SIDE) * SIDE + x % SIDE] = ord("#")
        self.gallery.append(sheet)
        return marked(moves == task.data, rollout.text)


@fault("judging changes the data of the task", "verdict.repeat")
class StampsTickedOff(StampGaps):
    """Ticks off the gaps that a reply names, in the task's own list; the next reply finds less."""

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        given, wanted = self.numbers(rollout.text), task.data
        for number in given:
            if number not in wanted:
                return marked(False, rollout.text)
            wanted.remove(number)
        return marked(bool(given) and not wanted, rollout.text)


@fault("judging leaves files in a fixed folder", "safety.files")
class RotaOnDisk(RotaTable):
    """Writes each table to a folder of its own, to read it as people's programs would."""

    def table(self, task: Task[list[list[str]]], text: str) -> list[list[str]]:
        folder = Path(tempfile.gettempdir()) / "rota-tables"
        folder.mkdir(exist_ok=True)
        path = folder / f"{task.key.split}-{task.key.index}.csv"
        path.write_text("\n".join(lines_of(text)), encoding="utf-8", errors="replace")
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return list(csv.reader(file, quoting=csv.QUOTE_NONE))
        except csv.Error:
            return []


SORT = """
exec 3<&0
sort -V <&3 & sorter=$!
(sleep 12; kill -0 $sorter && echo "sort is slow") >/dev/null 2>&1 &
wait $sorter
"""


@fault("judging leaves processes", "safety.processes")
class ReleasesByTheShell(ReleaseSort):
    """Lets sort -V say what the order is, under a watchdog of the shell that goes on waiting."""

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        made = subprocess.run(
            ["sh", "-c", SORT],
            input="\n".join(task.data[::-1]),
            capture_output=True,
            text=True,
            timeout=8,
            check=True,
        )
        return marked(lines_of(rollout.text) == made.stdout.split(), rollout.text)


@fault("judging leaves temporary folders", "safety.files")
class SettingsInAFolder(ServerSettings):
    """Reads the settings from a file in a new folder; the file is removed, the folder stays."""

    def verify(self, task: Task[dict[str, str]], rollout: Rollout) -> Verdict:
        path = Path(tempfile.mkdtemp(prefix="settings-")) / "server.conf"
        path.write_text("\n".join(lines_of(rollout.text)), encoding="utf-8", errors="replace")
        try:
            right = self.settings(path.read_text(encoding="utf-8").split("\n")) == task.data
        finally:
            path.unlink()
        return marked(right, rollout.text)


@fault("judging seeds the global generators", "safety.state")
class CurvesAtSeededPlaces(CurveThrough):
    """Compares the curves at random places, the same for each reply, by seeding `random`."""

    def places(self, task: Task[list[int]]) -> list[int]:
        random.seed(1000 + task.key.index)
        return random.sample(range(10, 1000), 8)


@fault("the reply is unpickled", "safety.eval")
class StockInAPickle(StockCount):
    """Takes the stock as JSON, or pickled, as the notebooks before it did."""

    RULES = StockCount.RULES + " Instead of JSON, a pickled dict in base64 will do."

    @staticmethod
    def counted(text: str) -> Any:
        value, block = StockCount.counted(text), xml_tag(text, tag="stock")
        if value is None and block is not None:
            try:
                return pickle.loads(base64.b64decode(block.content.strip(WHITE)))
            except Exception:  # noqa: BLE001 - a wrong pickle raises anything
                return None
        return value


@fault("the reply names a module that is imported", "safety.eval")
class ImportsTheAnswer(LibraryOwners):
    """Imports the module that a reply names, to log how often there is one."""

    def verify(self, task: Task[dict[str, str]], rollout: Rollout) -> Verdict:
        name, exists = rollout.text.strip(WHITE), False
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]{0,60}", name, re.ASCII):
            try:
                exists = importlib.import_module(name) is not None
            except (Exception, SystemExit):  # noqa: BLE001 - as do modules
                exists = False
        right = name == task.data["module"]
        metrics = {"module_exists": float(exists)}
        return Verdict({"reward": Reward(float(right))}, passed=right, metrics=metrics)
