"""What is read from a folder of a stranger is bounded, and what a run writes can be read again."""

import gzip
import io
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs import attempts, documents, files, log
from grpo_core.runs.attempts import Fields
from grpo_core.runs.documents import parse_json
from grpo_core.runs.files import LINE_BYTES, RATIO
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.members import pack
from grpo_report.indexes.index import Filter, RolloutIndex
from grpo_report.indexes.index_place import index_path, indexes_folder

CONFIG = {"model": {"name": "m"}, "lora": {"enabled": True}, "provenance": {}}
CALL = """
import sys
from grpo_core.cli.app import app
try:
    app(sys.argv[1:])
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("peak", peak.split()[1])
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.start(CONFIG)
    add(folder, 1, ["right", "wrong"])
    folder.metrics({"step": 1, "kind": "step", "reward/mean": 0.5})
    folder.metrics({"step": 1, "kind": "evaluation", "eval/reward/mean": 0.5})
    return folder


def add(folder: RunFolder, step: int, texts: list[str], **fields: Any) -> None:
    key = TaskKey("sums", "train", 0, 0)
    rollouts = [Rollout((Message("assistant", text),)) for text in texts]
    verdicts = [Verdict({"exact": Reward(0.5)}, **fields) for _ in texts]
    group = Group(Task(key, "Question", None), rollouts, verdicts, [0.0] * len(texts))
    folder.rollouts(step, group, Fields())


def called(*arguments: str | Path) -> tuple[str, float, float]:
    """Call a command in a process of its own; return what it said, its megabytes and seconds."""
    began = time.monotonic()
    command = [sys.executable, "-c", CALL, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said, _, peak = (done.stdout + done.stderr).partition("peak ")
    assert "Traceback" not in said + peak, done.stderr
    kilobytes, _, after = peak.partition("\n")
    return " ".join((said + after).split()), int(kilobytes) / 1000, time.monotonic() - began


def bomb(byte: bytes, *, claims: int) -> bytes:
    """Return a .gz file of 4 GB of one byte, whose last four bytes say how long it is."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = packer.compress(byte * (64 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return header + block * 64 + b"\x03\0" + bytes(4) + claims.to_bytes(4, "little")


def line(**more: Any) -> bytes:
    key = {"env": "sums", "split": "eval", "index": 0, "seed": 0, "level": 0.0}
    value = {"step": 1, "group": 0, "key": key, "draw": 0, "attempt": 0, "messages": []}
    value |= {"finish": "stop", "tokens": 1, "verdict": None}
    return json.dumps(value | more).encode() + b"\n"


PARTS, LOG, METRICS = "rollouts-000001.jsonl.gz", "rollouts.jsonl", "metrics.jsonl"
TOO_LARGE = "over 100 times as many|more than 64 MB|damaged"
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "4 GB in one line": (PARTS, lambda: bomb(b"a", claims=2**32 - 1), TOO_LARGE),
    "4 GB that claim to be 1 kB": (PARTS, lambda: bomb(b"a", claims=1_000), TOO_LARGE),
    "4 GB of line feeds": (PARTS, lambda: bomb(b"\n", claims=2**32 - 1), TOO_LARGE),
    "60 MB of empty lists": (
        LOG,
        lambda: b'{"attempt": [' + b"[]," * (20 << 20) + b"0]}\n",
        "damaged",
    ),
    "a text of 60 MB": (
        LOG,
        lambda: line(messages=[{"role": "assistant", "content": "ab c" * (15 << 20)}]),
        "report.html|holds lines that are no attempts",
    ),
    "lists nested 100,000 times": (
        LOG,
        lambda: b'{"attempt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "damaged",
    ),
    "100 MB of metrics without an end": (METRICS, lambda: b"a" * (100 << 20), TOO_LARGE),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_that_would_fill_the_memory_is_refused_in_one_line(
    run: RunFolder, tmp_path: Path, name: str
) -> None:
    file, content, words = HOSTILE[name]
    (run.path / file).write_bytes(content())
    for command in (["report", run.path], ["compare", run.path, run.path]):
        said, megabytes, seconds = called(*command)
        assert any(word in said for word in words.split("|")), said
        assert megabytes < 500
        assert seconds < 60  # some seconds, on a machine that does nothing else


def test_a_log_of_the_same_word_again_and_again_stays_readable_when_it_is_compressed(
    run: RunFolder,
) -> None:
    for step in range(2, 20):
        add(run, step, ["the " * 250_000] * 4)
    plain = (run.path / "rollouts.jsonl").stat().st_size
    assert plain > 70_000_000
    run.compress_logs(above_bytes=0)
    (part,) = run.path.glob("rollouts-*.gz")
    assert RATIO / 2 < plain / part.stat().st_size < RATIO
    assert gzip.decompress(part.read_bytes()).count(b"\n") == 18 * 5 + 3
    assert len(list(run.rollout_lines([19]))) == 4


@pytest.mark.parametrize("size", [0, 1, 5_000_001])
def test_a_compressed_part_is_an_ordinary_gzip_file(size: int) -> None:
    packed = io.BytesIO()
    pack(io.BytesIO(b"a" * size), packed)
    assert gzip.decompress(packed.getvalue()) == b"a" * size


def test_what_a_run_writes_can_be_read_again_whatever_a_policy_or_a_verifier_wrote(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With limits of a sixteenth."""
    for name in ("_SMALL_BYTES", "_MOST_MEMORY"):
        monkeypatch.setattr(documents, name, getattr(documents, name) // 16)
    monkeypatch.setattr(attempts, "_MOST_RATIOS", attempts._MOST_RATIOS // 16)
    for module in (documents, files, log):
        monkeypatch.setattr(module, "LINE_BYTES", LINE_BYTES // 16)
    deep: Any = 1.0
    for _ in range(900):
        deep = [deep]
    add(run, 2, ["x"], detail={"deep": deep})
    add(run, 3, ["long" * (LINE_BYTES // 64)])
    update = {(attempt, 0): ([1.0] * 60_000, [0.5] * 60_000) for attempt in range(9)}
    run.updated(3, 0, update)
    lines = list(read_lines(run.path / "rollouts.jsonl"))
    assert "nested more than 100 levels deep" in json.dumps(lines)
    (long,) = run.rollout_lines([3])
    assert long["texts_left_out"] is True
    with RolloutIndex.open(run.path) as index:
        assert index.count(Filter(text="rig")).rollouts == 1
    assert all(parse_json(json.dumps(one).encode()) == one for one in lines)


def test_indexes_are_kept_in_a_folder_of_this_user_and_those_of_no_run_are_removed(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_INDEXES", str(tmp_path / "cache" / "indexes"))
    with RolloutIndex.open(run.path) as index:
        assert index.count().rollouts == 2
    assert indexes_folder().stat().st_mode & 0o777 == 0o700
    assert index_path(run.path).parent == tmp_path / "cache" / "indexes"
    assert not list(run.path.glob("*.sqlite*"))
    old = index_path(run.path)
    run.path.rename(tmp_path / "moved")
    with RolloutIndex.open(tmp_path / "moved") as index:
        assert index.count().rollouts == 2
    assert not old.exists()
    assert len(list(indexes_folder().glob("*.sqlite"))) == 1


@pytest.mark.parametrize("place", ["/dev/null/indexes", "link"])
def test_without_a_cache_of_this_user_the_index_is_a_temporary_file(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("GRPO_INDEXES", str(tmp_path / place))
    with RolloutIndex.open(run.path) as index:
        assert index.count().rollouts == 2
    assert os.listdir(tmp_path / "elsewhere") == []


def test_too_many_parts_of_a_log_are_refused(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_core.runs.log._MOST_PARTS", 100)
    for number in range(101):
        (run.path / f"rollouts-{number:06d}.jsonl").touch()
    with pytest.raises(ConfigError, match="more than 100 parts"):
        list(run.rollout_lines())
