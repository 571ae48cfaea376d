"""Run folders of strangers: no command hangs, fills the memory, or touches a file outside of them."""

import itertools
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app

from ..commandline import words
from ..deadlines import ends_within
from .runs import finished_arithmetic

SECRET = "what only this user has"
LOGS = ("metrics.jsonl", "alarms.jsonl", "rollouts.jsonl", "log.txt")
PICTURES = ("training_curve", "kl_divergence", "reward_parts", "time")
COMMANDS: dict[str, list[str]] = {
    "report": ["report", "RUN"],
    "plot": ["plot", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "rescore": ["rescore", "RUN"],
    "export": words("export RUN --rollouts OUT/good.jsonl --split all --min-reward 0"),
    "inspect": ["export", "RUN", "--to", "inspect", "--log", "OUT/log.json", "--split", "all"],
    "recorded": ["eval", "--run", "RUN", "--recorded"],
    "eval": ["eval", "--run", "RUN", "--tasks", "1", "--samples", "1"],
    "generate": ["generate", "1 + 1", "--run", "RUN", "--max-new-tokens", "2"],
    "resume": ["run", "--resume", "UNFINISHED"],
}
SECONDS = 60
"""More than any command takes beside other tests; one that waits for a pipe takes for ever."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which no test changes."""
    more = {"steps": 3, "eval": {"tasks": 2, "every": 2}, "checkpoint": {"every": 1}}
    root = tmp_path_factory.mktemp("template")
    return finished_arithmetic(root, group_size=3, log={"tokens": True}, **more)


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    """A copy of the run, with nothing that a command draws."""
    path = tmp_path / "run"
    shutil.copytree(template, path)
    for picture in path.glob("*.png"):
        picture.unlink()
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A file outside the run, which must stay as it is, in a folder that must."""
    folder = tmp_path / "outside"
    folder.mkdir()
    file = folder / "secret.txt"
    file.write_text(SECRET)
    yield file
    assert file.read_text() == SECRET
    assert [path.name for path in folder.iterdir()] == ["secret.txt"]


def call(name: str, run: Path) -> str:
    """Call a command on a run; return what it printed, after checking that it ended in one line."""
    out = run.parent / "out"
    out.mkdir(exist_ok=True)
    if name == "resume" and (run / "final").is_dir() and not (run / "final").is_symlink():
        shutil.rmtree(run / "final")
    words = {"RUN": str(run), "UNFINISHED": str(run)}
    arguments = [words.get(text, text.replace("OUT", str(out))) for text in COMMANDS[name]]
    with ends_within(SECONDS, TimeoutError):
        done = CliRunner().invoke(app, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def dangling_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside.with_name("new.txt"))


def hard_link(path: Path, outside: Path) -> None:
    os.link(outside, path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


def unix_socket(path: Path, outside: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may have 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "a named pipe": pipe,
    "a symbolic link": link,
    "a dangling link": dangling_link,
    "a socket": unix_socket,
    "a folder": folder,
    "a sparse file": sparse,
}


def plant(kind: str, path: Path, outside: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    PLANTED[kind](path, outside)


READ = {
    "config.json": ["report", "rescore", "resume"],
    "metrics.jsonl": ["report", "plot", "compare", "recorded", "resume"],
    "rollouts.jsonl": ["report", "compare", "rescore", "export", "inspect", "resume"],
    "rollouts-000001.jsonl.gz": ["report", "compare", "rescore", "export", "resume"],
    "alarms.jsonl": ["report"],
    "cards.json": ["report"],
    "vocabulary.json": ["report"],
    "log.txt": ["report"],
    "attempts.jsonl": ["compare"],
    "final/manifest.json": ["eval", "generate"],
    "checkpoints/step-000003/progress.json": ["resume"],
    "checkpoints/step-000003/state.pt": ["resume"],
    "checkpoints/best/manifest.json": ["resume"],
}


@pytest.mark.parametrize(
    "each", ["a command for each kind", pytest.param("every command", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_a_regular_file_or_refused_in_one_line(run, outside, name, each):
    (run / name).parent.mkdir(exist_ok=True)
    for place, kind in enumerate(PLANTED):
        plant(kind, run / name, outside)
        one = READ[name][place % len(READ[name])]
        for command in READ[name] if each == "every command" else [one]:
            said = call(command, run)
            assert SECRET not in said
            if kind == "a sparse file":
                refusals = (
                    r"sparse|more than 64 MB|more than 16,777,216|has 1,099,511,627,776 bytes"
                )
            else:
                # A model's files may be links, as in the hub's cache, and are read as JSON alone.
                refusals = "not a regular file|neither a file nor|is not JSON|Is a directory"
            assert re.search(refusals, said), said


@pytest.mark.slow
@pytest.mark.parametrize("planted", [link, dangling_link, hard_link, pipe, unix_socket, folder])
def test_pictures_and_reports_replace_what_has_their_name(run, outside, planted):
    pictures = [run / f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")]
    for path in (run / "report.html", *pictures):
        planted(path, outside)
    for command in ("report", "plot"):
        call(command, run)
    if planted in (link, dangling_link, hard_link):
        drawn = [path for path in pictures if path.is_file() and not path.is_symlink()]
        assert len(drawn) == len(pictures)
        assert all(path.stat().st_nlink == 1 for path in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("planted", [link, dangling_link, hard_link, pipe])
def test_a_resumed_run_writes_through_no_link(run, outside, planted):
    refused = ("log.txt", "metrics.jsonl", "rollouts.jsonl", ".lock")
    for name in (*refused, "alarms.jsonl", "checkpoints/best"):
        path, kept = run / name, run / "kept"
        if path.exists():
            path.rename(kept)
        planted(path, outside)
        said = call("resume", run)
        assert outside.read_text() == SECRET
        assert name not in refused or re.search("link|not a regular file|recorded", said), said
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(path)
    replaced = ("cards.json", "vocabulary.json", ".final.replaced")
    for name in (*replaced, "checkpoints/.step-000003.partial-1"):
        (run / name).unlink(missing_ok=True)
        planted(run / name, outside)
    said = call("resume", run)  # the fixture looks at what is outside
    assert "error" not in said
    assert (run / "final").is_dir()


@pytest.mark.parametrize(
    "name", ["checkpoints", "checkpoints/step-000003", "checkpoints/best", "final"]
)
def test_a_link_in_the_place_of_an_inner_folder_is_refused_and_nothing_there_is_removed(
    run, template, tmp_path, name
):
    other = tmp_path / "other"
    shutil.copytree(template, other)
    (other / "checkpoints" / ".step-000009.partial-1").mkdir()
    before = sorted(path.relative_to(other) for path in other.rglob("*"))
    path = run / name
    if path.exists():
        shutil.rmtree(path)
    path.symlink_to(other / (name if (other / name).exists() else "final"))
    shutil.rmtree(run / "final") if name != "final" else None
    assert "is a symbolic link" in call("resume", run)
    assert sorted(path.relative_to(other) for path in other.rglob("*")) == before


def test_a_run_folder_may_be_reached_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(run)
    assert "report.html" in call("report", tmp_path / "linked")
    assert "error" not in call("resume", tmp_path / "linked")


@pytest.mark.slow
def test_no_name_of_a_temporary_file_can_be_foreseen(run: Path, outside: Path) -> None:
    names = ("report.html", "config.json", "cards.json", "rollouts.jsonl", "training_curve.png")
    numbers = range(os.getpid() - 50, os.getpid() + 50)
    for name, number in itertools.product(names, numbers):
        (run / f".{name}.{number}").symlink_to(outside)
    for command in ("report", "plot", "resume"):
        call(command, run)
        assert outside.read_text() == SECRET


def test_a_journal_beside_an_index_in_the_folder_deletes_nothing(run: Path, outside: Path) -> None:
    index = run / "rollouts.sqlite"
    connection = sqlite3.connect(index)
    connection.execute("CREATE TABLE IF NOT EXISTS files (start)")
    connection.commit()
    connection.close()
    plant_super_journal(Path(f"{index}-journal"), victim=outside)
    before = index.read_bytes()
    for command in ("report", "inspect", "resume"):
        call(command, run)
        assert outside.read_text() == SECRET
        assert index.read_bytes() == before
    assert Path(f"{index}-journal").exists()


def plant_super_journal(journal: Path, *, victim: Path) -> None:
    """Write a hot journal that names a super-journal, as SQLite's file format describes it."""
    name = str(victim).encode()
    header = bytes.fromhex("d9d505f920a163d7") + b"".join(
        number.to_bytes(4, "big") for number in (0, 0, 1, 512, 4096)
    )
    locking_page = (1 << 30) // 4096 + 1
    journal.write_bytes(
        header.ljust(512, b"\0")
        + locking_page.to_bytes(4, "big")
        + name
        + len(name).to_bytes(4, "big")
        + sum(name).to_bytes(4, "big")
        + bytes.fromhex("d9d505f920a163d7")
    )
