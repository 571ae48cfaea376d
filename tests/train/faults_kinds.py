"""Kinds of faults: each disturbs a run at a random moment or damages its folder, and lets the user go on."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults_bench import Bench, Child, Place
from faults_disks import KB, Disk, Image, Memory, immutable
from faults_user import SAME, FailedError, User

NOBODY = 65534
SIZES = tuple(
    KB * size for size in (0, 4, 8, 20, 40, 80, 120, 200, 320, 420, 560, 700, 900, 1100, 1300, 1600)
)
INODES = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 24, 28, 32, 40, 50, 60)
ENDS = (
    "finished after step",
    "stopped after step",
    "failed after step",
    "cancelled after step",
    "unscored after step",
)


@dataclass(slots=True)
class Scene:
    """One fault. turn: how many of its kind there were before, for what is tried in order."""

    bench: Bench
    place: Place
    user: User
    rng: random.Random
    turn: int
    details: dict[str, Any] = field(default_factory=dict)
    disks: list[Disk] = field(default_factory=list)

    def on(self, disk: Disk) -> None:
        """Let the run, and now and then its cache, lie on a disk of its own."""
        self.disks.append(disk)
        self.place.run = disk.place / "run"
        if self.rng.random() < 0.5:
            self.place.cache = disk.place / "cache"
        self.user.heal = disk.heal

    def begin(self, **more: Any) -> Child:
        """Start the run from its beginning."""
        return self.bench.start(
            self.place, self.bench.start_arguments(self.place.run), plots=bool(self.disks), **more
        )

    def stage(self) -> None:
        """Take a copy of a run that was killed."""
        self.take(self.rng.choice(self.bench.reference.stages))

    def finished(self) -> None:
        """Take a copy of the finished run."""
        self.take(self.bench.reference.folder.parent)

    def take(self, original: Path) -> None:
        self.details["from"] = original.name
        for name in ("run", "cache"):
            shutil.copytree(original / name, self.place.folder / name, symlinks=True)
        self.user.original = original
        self.place.begun = True

    def wait(self, child: Child) -> None:
        """Wait for a random moment: of time, of written bytes, or of a checkpoint that is being written."""
        how = self.rng.choice(("seconds", "bytes", "saving"))
        limit = self.rng.uniform(0, 1.1 * self.bench.reference.seconds)
        after = self.rng.uniform(0, self.bench.reference.bytes)
        count = self.rng.randint(1, 9)
        pause = self.rng.uniform(0, 0.01)
        started, seen = time.monotonic(), set()
        while child.poll() is None:
            if how == "seconds" and time.monotonic() - started > limit:
                break
            if how == "bytes" and _written(self.place.run) > after:
                break
            if how == "saving":
                seen |= {
                    name
                    for _, names, _ in os.walk(self.place.run)
                    for name in names
                    if ".partial-" in name
                }
                if len(seen) >= count:
                    time.sleep(pause)
                    break
            time.sleep(0.002)
        self.details |= {"moment": how, "after": round(time.monotonic() - started, 3)}


def kill(scene: Scene) -> str:
    """kill -9, up to three times."""
    real = scene.details["real"] = scene.turn % 5 == 0
    for number in range(scene.rng.randint(1, 3)):
        again = number and (scene.place.run / "config.json").exists()
        if again and (scene.place.run / "final").exists():
            break
        child = (
            scene.bench.start(scene.place, ["run", "--resume", str(scene.place.run)], real=real)
            if again
            else scene.begin(real=real)
        )
        scene.wait(child)
        child.signal(signal.SIGKILL)
        scene.user.record(child.told())
    return scene.user.finish()


def interrupt(scene: Scene) -> str:
    """A signal that asks the run to end; it saves, and says in log.txt how it ended."""
    number = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)[scene.turn % 4]
    scene.details["signal"] = number.name
    child = scene.begin(real=scene.turn % 7 == 6)
    scene.wait(child)
    child.signal(number)
    told = child.told()
    scene.user.record(told)
    if told.status not in (0, -number, 128 + number):
        raise FailedError(
            f"status {told.status} after {number.name}; the last words: {(told.out + told.err)[-500:]}"
        )
    if "stopping:" in told.err:
        _end_is_noted(scene)
    return scene.user.finish()


def power(scene: Scene) -> str:
    """A power cut: only what has reached the block device is left."""
    options = scene.details["mount"] = scene.rng.choice(
        ("data=ordered", "data=writeback", "data=ordered,commit=1")
    )
    disk = Image(scene.place.folder / "disk", scene.place.folder / "image", options=options)
    scene.on(disk)
    scene.user.heal = None
    child = scene.begin()
    scene.wait(child)
    child.signal(signal.SIGSTOP)  # so that the copy is of one moment
    disk.snapshot(scene.place.folder / "cut")
    saved = _saved(scene.place.run)
    child.signal(signal.SIGKILL)
    scene.user.record(child.told())
    disk.cut_to(scene.place.folder / "cut")
    if saved and not (scene.place.run / "checkpoints" / saved).is_dir():
        raise FailedError(f"{saved} had been saved before the power was cut, and is gone")
    return scene.user.finish()


def flip(scene: Scene) -> str:
    """Some bytes of a file of a run that was killed are others."""
    scene.stage()
    for _ in range(scene.rng.choice((1, 1, 1, 2))):
        _flip(scene)
    return scene.user.finish()


def truncate(scene: Scene) -> str:
    """A file of a run that was killed is shorter."""
    scene.stage()
    _truncate(scene)
    return scene.user.finish()


def delete(scene: Scene) -> str:
    """A file of a run that was killed is gone."""
    scene.stage()
    _choose_file(scene).unlink()
    return scene.user.finish()


def drop_line(scene: Scene) -> str:
    """A log lacks a line."""
    scene.stage()
    names = ("metrics.jsonl", "rollouts.jsonl")
    paths = [
        path for name in names if (path := scene.place.run / name).exists() and path.stat().st_size
    ]
    path = scene.rng.choice(paths)
    whole = path.read_bytes().splitlines(keepends=True)
    number = scene.rng.randrange(len(whole))
    scene.details |= {"file": path.name, "line": number + 1}
    path.write_bytes(b"".join(whole[:number] + whole[number + 1 :]))
    return scene.user.finish()


def finished(scene: Scene) -> str:
    """A file of a finished run is damaged in any way."""
    scene.finished()
    how = scene.rng.choice(
        (_flip, _truncate, _flip, _truncate, lambda scene: _choose_file(scene).unlink())
    )
    how(scene)
    verdicts = [scene.user.use(command) for command in ("generate", "eval")]
    return next((verdict for verdict in verdicts if verdict != SAME), SAME)


def full_disk(scene: Scene) -> str:
    """The disk has only so much room, until the user makes some."""
    size = SIZES[scene.turn % len(SIZES)]
    where = scene.place.folder / "disk"
    if scene.turn // len(SIZES) % 2 == scene.turn % 2:
        scene.on(Memory(where, size=size or 4 * KB))
    else:
        disk = Image(where, scene.place.folder / "image")
        scene.on(disk)
        disk.leave(size)
    scene.details |= {"size": size, "disk": type(scene.disks[0]).__name__}
    return scene.user.finish()


def full_inodes(scene: Scene) -> str:
    """The disk takes only so many files."""
    inodes = scene.details["inodes"] = INODES[scene.turn % len(INODES)]
    scene.on(Memory(scene.place.folder / "disk", inodes=inodes))
    return scene.user.finish()


def closed_pipe(scene: Scene) -> str:
    """Who reads the output goes away after some bytes."""
    which = scene.details["closed"] = ("stdout", "stderr", "both")[scene.turn % 3]
    after = scene.details["bytes"] = int(
        scene.rng.choice((0, 100, 1000, 4000)) * scene.rng.random()
    )
    read, write = os.pipe()
    streams = {
        "out": os.dup(write) if which != "stderr" else None,
        "err": os.dup(write) if which != "stdout" else None,
    }
    os.close(write)
    child = scene.begin(**streams)
    thread = threading.Thread(target=_read_some, args=(read, after))
    thread.start()
    told = child.told()
    thread.join()
    scene.user.record(told)
    if told.status not in (0, 1, 141, -signal.SIGPIPE):
        raise FailedError(
            f"status {told.status} after a closed pipe; the last words: {(told.out + told.err)[-500:]}"
        )
    _end_is_noted(scene)
    return scene.user.finish()


def full_output(scene: Scene) -> str:
    """What is printed cannot be written, as on a full disk."""
    which = scene.details["full"] = ("stdout", "stderr", "both")[scene.turn % 3]
    streams = {
        "out": os.open("/dev/full", os.O_WRONLY) if which != "stderr" else None,
        "err": os.open("/dev/full", os.O_WRONLY) if which != "stdout" else None,
    }
    told = scene.begin(**streams).told()
    scene.user.record(told)
    if told.status not in (0, 1) or (told.status and which == "stdout" and len(told.errors) != 1):
        raise FailedError(
            f"status {told.status} with {which} full; the last words: {(told.out + told.err)[-500:]}"
        )
    _end_is_noted(scene)
    return scene.user.finish()


def locked(scene: Scene) -> str:
    """A file or folder of the run becomes immutable, or the whole file system read-only."""
    disk = Image(scene.place.folder / "disk", scene.place.folder / "image")
    scene.on(disk)
    child = scene.begin()
    scene.wait(child)
    if scene.turn % 3 == 0:
        scene.details["locked"] = "file system"
        disk.fail()
    else:
        found = [
            path
            for path in scene.place.run.rglob("*")
            if path.suffix in {".jsonl", ".txt", ".json"} or path.is_dir()
        ]
        target = scene.rng.choice(sorted(found)) if found else disk.place
        scene.details["locked"] = str(target.relative_to(disk.place))
        immutable(target)
    told = child.told()
    scene.user.record(told)
    if told.status != 0:
        scene.user.follow(scene.user.judged(told), begun=(scene.place.run / "config.json").exists())
    disk.heal()  # what was damaged while nobody wrote is none of the run's business
    return scene.user.finish()


def foreign(scene: Scene) -> str:
    """The run folder is another user's."""
    scene.stage()
    folders, files = scene.rng.choice(((0o755, 0o644), (0o755, 0o600), (0o700, 0o600)))
    scene.details |= {"folders": oct(folders), "files": oct(files)}
    _set_modes(scene.place.run, folders, files)
    home = scene.place.folder / "home"
    for folder in (scene.place.cache, home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
    scene.user.uid = NOBODY
    scene.user.env = {"XDG_STATE_HOME": str(home / "state"), "HOME": str(home)}
    scene.user.heal = lambda: _give(scene.place.run, NOBODY)
    return scene.user.finish()


def umask(scene: Scene) -> str:
    """Files have the permissions that the umask leaves, whatever wrote them."""
    masks = scene.details["umasks"] = [
        scene.rng.choice((0o022, 0o077, 0o002, 0o027)) for _ in range(2)
    ]
    child = scene.begin(umask=masks[0])
    scene.wait(child)
    child.signal(signal.SIGKILL)
    scene.user.record(child.told())
    ended = (scene.place.run / "final").exists()
    scene.user.umask = masks[1]
    verdict = scene.user.finish()
    for path in (scene.place.run / "final").rglob("*"):
        expected = 0o666 & ~masks[0 if ended else 1]
        if (found := stat.S_IMODE(path.stat().st_mode)) != expected:
            raise FailedError(f"final/{path.name} has mode {found:o}, not {expected:o}")
    return verdict


KINDS: dict[str, Callable[[Scene], str]] = {
    "kill": kill,
    "signal": interrupt,
    "power": power,
    "flip": flip,
    "truncate": truncate,
    "delete": delete,
    "line": drop_line,
    "finished": finished,
    "disk": full_disk,
    "inodes": full_inodes,
    "pipe": closed_pipe,
    "full": full_output,
    "locked": locked,
    "foreign": foreign,
    "umask": umask,
}
ORDER = (
    "kill", "flip", "disk", "signal", "power", "finished", "pipe", "truncate", "inodes", "locked",
    "foreign", "delete", "flip", "full", "disk", "line", "finished", "power", "signal", "umask",
)  # fmt: skip
"""Which kinds come after one another, so that any twenty faults are of all kinds."""


def _choose_file(scene: Scene) -> Path:
    """Choose one file of any part of the folder, or the verdict cache."""
    run, cache = scene.place.run, scene.place.cache
    groups = [
        [
            path
            for path in run.iterdir()
            if path.is_file() and path.suffix != ".png" and path.stat().st_size
        ]
    ]
    newest = max((run / "checkpoints").glob("step-*"), default=None)
    groups += [
        [path for path in folder.iterdir() if path.is_file()]
        for folder in [newest]
        if folder is not None
    ]
    for folder in (run / "checkpoints", run / "checkpoints" / "best", run / "final", cache):
        groups.append(
            [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
        )
    path = scene.rng.choice(sorted(scene.rng.choice([group for group in groups if group])))
    scene.details.setdefault("files", []).append(str(path.relative_to(scene.place.folder)))
    return path


def _flip(scene: Scene) -> None:
    path = _choose_file(scene)
    data = bytearray(path.read_bytes())
    places = [scene.rng.randrange(len(data)) for _ in range(scene.rng.choice((1, 1, 2, 8)))]
    for place in places:
        data[place] ^= 1 << scene.rng.randrange(8)
    path.write_bytes(data)
    scene.details.setdefault("offsets", []).append(places)


def _truncate(scene: Scene) -> None:
    path = _choose_file(scene)
    size = scene.details["size"] = (
        0 if scene.rng.random() < 0.25 else scene.rng.randrange(path.stat().st_size)
    )
    os.truncate(path, size)


def _read_some(descriptor: int, count: int) -> None:
    """Read so many bytes of a pipe and close it."""
    while count > 0 and (data := os.read(descriptor, count)):
        count -= len(data)
    os.close(descriptor)


def _end_is_noted(scene: Scene) -> None:
    """The last entry of log.txt says how the run ended."""
    if not (scene.place.run / "config.json").exists():
        return
    log = scene.place.run / "log.txt"
    text = log.read_text() if log.exists() else ""
    if not any(end in text for end in ENDS):
        raise FailedError(f"log.txt does not say how the run ended; its end: {text[-300:]!r}")


def _written(run: Path) -> int:
    size = 0
    for path in (run / "metrics.jsonl", run / "rollouts.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # it is moved to a compressed part
            size += path.stat().st_size
    return size


def _saved(run: Path) -> str:
    """Return the newest checkpoint after which another step was done: nobody is saving it any more."""
    path = run / "metrics.jsonl"
    done = path.read_bytes().count(b'"loss"') if path.exists() else 0
    found = [
        path.name
        for path in (run / "checkpoints").glob("step-*")
        if int(path.name.removeprefix("step-")) < done
    ]
    return max(found, default="")


def _set_modes(top: Path, folders: int, files: int) -> None:
    for path in (top, *top.rglob("*")):
        path.chmod(folders if path.is_dir() else files)


def _give(top: Path, uid: int) -> None:
    for path in (top, *top.rglob("*")):
        os.chown(path, uid, uid)
