"""Kinds of faults: each disturbs a run at a random moment or damages its folder, and lets the user go on."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults_bench import Bench, Child, Place, Told, steps_done
from faults_disks import KB, Disk, Image, Memory, immutable
from faults_user import SAME, FailedError, User

NOBODY = 65534
SIZES = (0, 4, 8, 20, 40, 80, 120, 200, 320, 420, 560, 700, 900, 1100, 1300, 1600)
"""In KB."""
INODES = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 24, 28, 32, 40, 50, 60)
ENDS = re.compile("(finished|stopped|failed|cancelled|unscored) after step")


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
        arguments = self.bench.start_arguments(self.place.run)
        return self.bench.start(self.place, arguments, plots=bool(self.disks), **more)

    def stage(self) -> None:
        """Take a copy of a run that was killed."""
        self.take(self.rng.choice(self.bench.reference.stages))

    def take(self, original: Path) -> None:
        """Take a copy of a run."""
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
                seen |= {path.name for path in self.place.run.rglob("*.partial-*")}
                if len(seen) >= count:
                    time.sleep(pause)
                    break
            time.sleep(0.002)
        self.details |= {"moment": how, "after": round(time.monotonic() - started, 3)}


def kill(scene: Scene) -> str:
    """kill -9, up to three times."""
    for number in range(scene.rng.randint(1, 3)):
        run = scene.place.run
        again = number and (run / "config.json").exists()
        if again and (run / "final").exists():
            break
        resume = ["run", "--resume", str(run)]
        child = scene.bench.start(scene.place, resume) if again else scene.begin()
        scene.wait(child)
        child.signal(signal.SIGKILL)
        scene.user.record(child.told())
    return scene.user.finish()


def interrupt(scene: Scene) -> str:
    """A signal that asks the run to end; it saves, and says in log.txt how it ended."""
    number = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)[scene.turn % 4]
    scene.details["signal"] = number.name
    child = scene.begin()
    scene.wait(child)
    child.signal(number)
    told = child.told()
    scene.user.record(told)
    _require(told.status in (0, -number, 128 + number), told)
    if "stopping:" in told.err:
        _end_is_noted(scene)
    return scene.user.finish()


def power(scene: Scene) -> str:
    """A power cut: only what has reached the block device is left."""
    kinds = ("data=ordered", "data=writeback", "data=ordered,commit=1")
    options = scene.details["mount"] = scene.rng.choice(kinds)
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


def damaged(damage: Callable[[Scene], None]) -> Callable[[Scene], str]:
    """Return the kind of fault that damages a run that was killed."""

    def fault(scene: Scene) -> str:
        scene.stage()
        damage(scene)
        return scene.user.finish()

    return fault


def finished(scene: Scene) -> str:
    """A file of a finished run is damaged in any way."""
    scene.take(scene.bench.reference.folder.parent)
    scene.rng.choice((_flip, _flip, _truncate, _truncate, _delete))(scene)
    verdicts = [scene.user.use(command) for command in ("generate", "eval")]
    return next((verdict for verdict in verdicts if verdict != SAME), SAME)


def full_disk(scene: Scene) -> str:
    """The disk has only so much room, until the user makes some."""
    size = KB * SIZES[scene.turn % len(SIZES)]
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
    scene.on(Memory(scene.place.folder / "disk", nr_inodes=inodes))
    return scene.user.finish()


def closed_pipe(scene: Scene) -> str:
    """Who reads the output goes away after some bytes."""
    which = scene.details["closed"] = ("stdout", "stderr", "both")[scene.turn % 3]
    most = scene.rng.choice((0, 100, 1000, 4000))
    after = scene.details["bytes"] = int(most * scene.rng.random())
    read, write = os.pipe()
    streams = _streams(which, lambda: os.dup(write))
    os.close(write)
    child = scene.begin(**streams)
    thread = threading.Thread(target=_read_some, args=(read, after))
    thread.start()
    told = child.told()
    thread.join()
    scene.user.record(told)
    _require(told.status in (0, 1, 141, -signal.SIGPIPE), told)
    _end_is_noted(scene)
    return scene.user.finish()


def full_output(scene: Scene) -> str:
    """What is printed cannot be written, as on a full disk."""
    which = scene.details["full"] = ("stdout", "stderr", "both")[scene.turn % 3]
    streams = _streams(which, lambda: os.open("/dev/full", os.O_WRONLY))
    told = scene.begin(**streams).told()
    scene.user.record(told)
    said = told.status == 0 or which != "stdout" or len(told.errors) == 1
    _require(told.status in (0, 1) and said, told)
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
        paths = sorted(scene.place.run.rglob("*"))
        written = [p for p in paths if p.suffix in {".jsonl", ".txt", ".json"} or p.is_dir()]
        target = scene.rng.choice(written or [disk.place])
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
    masks = scene.details["umasks"] = scene.rng.choices((0o022, 0o077, 0o002, 0o027), k=2)
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


def _choose_file(scene: Scene) -> Path:
    """Choose one file of any part of the folder, or the verdict cache."""
    run, cache = scene.place.run, scene.place.cache
    checkpoints = run / "checkpoints"
    newest = max(checkpoints.glob("step-*"), default=checkpoints)
    folders = (newest, checkpoints, checkpoints / "best", run / "final", cache)
    parts = [[path for path in run.iterdir() if path.suffix != ".png"]]
    parts += [list(folder.rglob("*")) for folder in folders]
    files = [[p for p in part if p.is_file() and p.stat().st_size] for part in parts]
    path = scene.rng.choice(sorted(scene.rng.choice([part for part in files if part])))
    scene.details.setdefault("files", []).append(str(path.relative_to(scene.place.folder)))
    return path


def _delete(scene: Scene) -> None:
    _choose_file(scene).unlink()


def _flip(scene: Scene) -> None:
    """Change some bits of a file, or of two."""
    for _ in range(scene.rng.choice((1, 1, 1, 2))):
        path = _choose_file(scene)
        data = bytearray(path.read_bytes())
        places = [scene.rng.randrange(len(data)) for _ in range(scene.rng.choice((1, 1, 2, 8)))]
        for place in places:
            data[place] ^= 1 << scene.rng.randrange(8)
        path.write_bytes(data)
        scene.details.setdefault("offsets", []).append(places)


def _drop_line(scene: Scene) -> None:
    """Remove a line of a log."""
    paths = [scene.place.run / name for name in ("metrics.jsonl", "rollouts.jsonl")]
    path = scene.rng.choice([path for path in paths if path.exists() and path.stat().st_size])
    lines = path.read_bytes().splitlines(keepends=True)
    number = scene.rng.randrange(len(lines))
    scene.details |= {"file": path.name, "line": number + 1}
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))


def _truncate(scene: Scene) -> None:
    path = _choose_file(scene)
    size = 0 if scene.rng.random() < 0.25 else scene.rng.randrange(path.stat().st_size)
    scene.details["size"] = size
    os.truncate(path, size)


def _streams(which: str, opened: Callable[[], int]) -> dict[str, int]:
    """Return descriptors for "stdout", "stderr" or "both"."""
    names = {"stdout": ("out",), "stderr": ("err",)}.get(which, ("out", "err"))
    return {name: opened() for name in names}


def _require(allowed: bool, told: Told) -> None:
    """Fail unless a command ended in an allowed way."""
    if not allowed:
        last = (told.out + told.err)[-500:]
        raise FailedError(f"status {told.status}; the last words: {last}")


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
    if not ENDS.search(text):
        raise FailedError(f"log.txt does not say how the run ended; its end: {text[-300:]!r}")


def _written(run: Path) -> int:
    size = 0
    for path in (run / "metrics.jsonl", run / "rollouts.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # it is moved to a compressed part
            size += path.stat().st_size
    return size


def _saved(run: Path) -> str:
    """Return the newest checkpoint after which another step was done: nobody is saving it any more."""
    done = steps_done(run)
    names = [path.name for path in (run / "checkpoints").glob("step-*")]
    return max((name for name in names if int(name.removeprefix("step-")) < done), default="")


def _set_modes(top: Path, folders: int, files: int) -> None:
    for path in (top, *top.rglob("*")):
        path.chmod(folders if path.is_dir() else files)


def _give(top: Path, uid: int) -> None:
    for path in (top, *top.rglob("*")):
        os.chown(path, uid, uid)


KINDS: dict[str, Callable[[Scene], str]] = {
    "kill": kill, "signal": interrupt, "power": power, "finished": finished, "disk": full_disk,
    "inodes": full_inodes, "pipe": closed_pipe, "full": full_output, "locked": locked,
    "foreign": foreign, "umask": umask, "flip": damaged(_flip), "truncate": damaged(_truncate),
    "delete": damaged(_delete), "line": damaged(_drop_line),
}  # fmt: skip
ORDER = (
    "kill", "flip", "disk", "signal", "power", "finished", "pipe", "truncate", "inodes", "locked",
    "foreign", "delete", "flip", "full", "disk", "line", "finished", "power", "signal", "umask",
)  # fmt: skip
"""Which kinds come after one another, so that any twenty faults are of all kinds."""
