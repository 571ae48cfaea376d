"""Folders as a stranger may plant them, given to the commands: nothing runs, nothing outside changes, each call ends soon.

Each kind of fault for itself is the subject of test_strangers.py, and what a config.json names that of test_trust_attacks.py.

A longer storm: GRPO_STORM=2000 pytest -m heavy -n 0 tests/train/test_folder_storm.py
"""

import contextlib
import functools
import hashlib
import os
import random
import resource
import shutil
import signal
import stat
import struct
import sys
import traceback
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config, nested
from grpo_core.train.trainer import Trainer

from ..deadlines import ends_within
from .short_runs import QUICK
from .storm_folders import Planter
from .test_strangers import COMMANDS

MOST_SECONDS, MOST_WAITED = 20, 120
"""Of the processor, and by the clock, for a call."""
MOST_MB = 500
BOMB_MB = 1000
SEEDS = (0, 5, 24)
"""Whose folders are planted in each of the ways that there are."""
USER_FILES = ("notes.txt", "data.jsonl", "folder/a.json", "pages/report.html")


@pytest.fixture
def planter(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planter:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    run = {**QUICK, "environment": "arithmetic", "steps": 2, "eval.tasks": 2, "checkpoint.every": 1}
    few = {"prompts_per_step": 2, "group_size": 3, "sampling.max_new_tokens": 3}
    config = build_config([settings, nested({**run, **few})])
    Trainer(config, folder=tmp_path / "base").run()
    restore(tmp_path / "user")
    return Planter(tmp_path / "base", tmp_path / "user", bomb())


def bomb() -> bytes:
    """Return one stream of gzip that unpacks to BOMB_MB: the same block again and again."""
    megabyte, checksum = b"a" * 1_000_000, 0
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(megabyte) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(BOMB_MB):
        checksum = zlib.crc32(megabyte, checksum)
    size = BOMB_MB * len(megabyte)
    header = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return header + block * BOMB_MB + b"\x03\x00" + struct.pack("<II", checksum, size)


def commands(folder: Path, base: Path, out: Path, chance: random.Random) -> list[list[str]]:
    """Return two calls that only read a folder, and in a third of the cases one that uses its model."""
    reading = [
        COMMANDS[name] for name in ("report", "plot", "compare", "rescore", "export", "inspect")
    ]
    reading += [
        ["report", "BASE", "RUN", "--out", "OUT/page.html"],
        ["compare", "RUN", "BASE", "--json"],
        ["rescore", "RUN", "--out", "OUT/verdicts.jsonl"],
    ]
    using = [COMMANDS[name] for name in ("eval", "generate", "resume")]
    using += [
        ["run", "--resume", "RUN", "--steps", "3"],
        ["run", "--recipe", "RUN/config.json", "--out", "OUT/new", "--steps", "1"],
        ["export", "RUN", "--weights", "OUT/weights"],
    ]
    chosen = chance.sample(reading, k=2)
    if chance.random() < 0.35:
        chosen.append(chance.choice(using))
    places = {"UNFINISHED": folder, "RUN": folder, "BASE": base, "OUT": out}
    return [
        [
            functools.reduce(lambda text, name: text.replace(name, str(places[name])), places, word)
            for word in command
        ]
        for command in chosen
    ]


@pytest.mark.slow
def test_no_planted_folder_runs_code_changes_a_file_hangs_or_fills_memory(planter, tmp_path):
    storm(planter, tmp_path, SEEDS)


@pytest.mark.heavy
def test_a_long_storm_of_planted_folders_changes_nothing_either(planter, tmp_path):
    first = int(os.environ.get("GRPO_STORM_FIRST", "1000"))
    storm(planter, tmp_path, range(first, first + int(os.environ.get("GRPO_STORM", "2000"))))


def storm(planter: Planter, tmp_path: Path, seeds: Sequence[int]) -> None:
    user = fingerprint(planter.user)
    faults = list[str]()
    for seed in seeds:
        folder, out = tmp_path / "planted", tmp_path / "out"
        out.mkdir()
        planted = planter.plant(folder, seed)
        assert fingerprint(planter.user) == user, f"seed {seed}: the planter wrote outside"
        for command in commands(folder, planter.base, out, random.Random(seed)):
            complaint = call(command)
            if fingerprint(planter.user) != user:
                complaint = "a file of the user was changed, or code ran"
                restore(planter.user)
                user = fingerprint(planter.user)
            if complaint:
                faults.append(f"seed {seed}, {planted}: grpo {' '.join(command)}: {complaint}")
                print(faults[-1], flush=True)
        shutil.rmtree(out)
        shutil.rmtree(folder)
    assert not faults, "\n".join(faults)


def call(command: Sequence[str]) -> str:
    """Return what was wrong with a command ("": nothing)."""
    Path("/proc/self/clear_refs").write_text("5")  # so that the peak is that of this call
    before, streams = memory_mb("VmRSS"), (sys.stdout, sys.stderr)
    try:
        with busy_for(MOST_SECONDS), ends_within(MOST_WAITED, TookTooLong), most_memory():
            complaint = complaint_of(CliRunner().invoke(app, list(command)))
    except TookTooLong as error:
        sys.stdout, sys.stderr = streams
        complaint = str(error)
    megabytes = memory_mb("VmHWM") - before
    return f"{complaint} {megabytes:.0f} MB" if megabytes > MOST_MB else complaint


def complaint_of(done: Result) -> str:
    error = None if isinstance(done.exception, SystemExit) else done.exception
    if error is not None:
        if os.environ.get("GRPO_STORM_TRACES"):
            traceback.print_exception(error)
        return f"{type(error).__name__}: {error}"[:300]
    if "Traceback (most recent call last)" in done.output:
        return "a traceback: " + done.output[-300:]
    if done.exit_code not in (0, 1, 2):
        return f"exit status {done.exit_code}: {done.output[-300:]}"
    if done.exit_code and not done.output.strip():
        return f"exit status {done.exit_code} without a message"
    return ""


class TookTooLong(BaseException):
    """Ends a call that waits; no handler of errors in the commands catches it."""


busy_for = functools.partial(ends_within, error=TookTooLong, clock=signal.ITIMER_PROF)


@contextlib.contextmanager
def most_memory() -> Iterator[None]:
    """End a call that fills the memory before the machine does."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    limit = int((memory_mb("VmSize") + 8 * MOST_MB) * (1 << 20))
    resource.setrlimit(resource.RLIMIT_AS, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return what the files of a folder are: kind, mode, links, content, time of the last change."""

    def of_one(path: Path) -> tuple[Any, ...]:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        return status.st_mode, hashlib.sha256(content).hexdigest(), status.st_mtime_ns

    return {str(path): of_one(path) for path in (folder, *sorted(folder.rglob("*")))}


def restore(folder: Path) -> None:
    """Make the user's files what they were at first."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in USER_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")


def memory_mb(name: str) -> float:
    """Return a line of /proc/self/status in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(name)
