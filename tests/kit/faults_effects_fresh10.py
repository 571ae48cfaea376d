"""Verifiers that change something around them, or that run what the reply says."""

import base64
import filecmp
import importlib
import json
import os
import pickle
import tempfile
import time
from pathlib import Path

from bases_g2_fresh10 import TileTurns
from bases_g3_fresh10 import FUNCTIONS, Flight, FunctionOfPython, LandingTimes
from bases_g_fresh10 import WHITE, IntervalNames, judged
from catalogue import fault

from grpo_core import Rollout, Task, Verdict
from grpo_core.extract import parse_json


@fault("judging changes the state of the process", "safety.state")
class LandingByTheClockThere(LandingTimes):
    """Lets the C library work out the time of the landing, in the zone where the plane lands."""

    def verify(self, task: Task[Flight], rollout: Rollout) -> Verdict:
        os.environ["TZ"] = f"THERE{-task.data.zone:+d}"
        time.tzset()
        landing = 86400 * 200 + 60 * (task.data.start + task.data.minutes)
        local = time.strftime("%H:%M", time.localtime(landing))
        given = self.given(rollout.text)
        return judged(given == local, given and given[:20])


@fault("judging leaves files in a fixed folder", "safety.files")
class IntervalsKeptForTheTeacher(IntervalNames):
    """Keeps the attempts at each pair of notes, so that a teacher can go through them later."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        folder = Path(tempfile.gettempdir()) / "ear_training_attempts"
        folder.mkdir(exist_ok=True)
        entry = {"question": task.prompt[-1].content, "answer": verdict.answer}
        name = f"{task.key.split}-{task.key.index}.jsonl"
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        return verdict


@fault("judging leaves temporary folders", "safety.files")
class TilesComparedAsFiles(TileTurns):
    """Writes both tiles as text files and compares these, as the old checker script did."""

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        folder = Path(tempfile.mkdtemp(prefix="tiles-"))
        expected, given = folder / "expected.txt", folder / "given.txt"
        found = parse_json(rollout.text.strip(WHITE), max_chars=400)
        expected.write_text(json.dumps(task.data), encoding="utf-8")
        given.write_text(json.dumps(found and found.value), encoding="utf-8")
        return judged(filecmp.cmp(expected, given, shallow=False), rollout.text[:100])


@fault("the reply is unpickled", "safety.eval")
class TilesOfTheOldClient(TileTurns):
    """Reads a JSON list, and also what the old client sent: a pickled list in base64."""

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        text = rollout.text[:4000].strip(WHITE)
        if verdict.passed or text.startswith("["):
            return verdict
        try:
            rows = pickle.loads(base64.b64decode(text, validate=True))
        except Exception:  # noqa: BLE001 - a wrong pickle raises anything
            return verdict
        return judged(isinstance(rows, list) and rows == task.data, text[:100])


@fault("the reply names a module that is imported", "safety.eval")
class FunctionUnderAnyName(FunctionOfPython):
    """Looks the function up by its name, as posixpath.basename is os.path.basename as well."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        given = rollout.text.strip(WHITE)[:60]
        module, _, name = given.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except (ImportError, ValueError, TypeError):
            found = None
        return judged(found is FUNCTIONS[task.data][0], given)
