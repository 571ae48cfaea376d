"""Kinds of faults: each disturbs a run at a random moment or damages its folder, and lets the user go on."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults_bench import Child, Told, steps_done
from faults_user import SAME, FailedError, User

NOBODY = 65534
KB, IMAGE_BYTES = 1024, 48 << 20
SIZES = (4, 8, 20, 40, 80, 120, 200, 320, 420, 560, 700, 900, 1100, 1300, 1600)
"""In KB."""
INODES = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 24, 28, 32, 40, 50, 60)
ENDS = re.compile("(finished|stopped|failed|cancelled|unscored) after step")
MOUNTED: set[Path] = set()


def mount(place: Path, *arguments: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    _call("mount", *arguments, place)
    MOUNTED.add(place)


def unmount(*places: Path) -> None:
    """Unmount file systems, also if a process still uses them."""
    for place in places:
        if _call("umount", place, check=False):
            _call("umount", "-l", place)
        MOUNTED.discard(place)


def _call(*command: object, check: bool = True) -> int:
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.returncode


@dataclass(slots=True)
class Scene(User):
    """One fault. turn: how many of its kind there were before, for what is tried in order."""

    turn: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def disk(self) -> Path:
        return self.place.folder / "disk"

    @property
    def image(self) -> Path:
        return self.place.folder / "image"

    def on_disk(self, heal: Callable[[], None]) -> None:
        """Let the run, and now and then its cache, lie on the disk; heal: does what "make room" or "make it writable" asks for."""
        self.place.run = self.disk / "run"
        if self.rng.random() < 0.5:
            self.place.cache = self.disk / "cache"
        self.heal = heal

    def on_memory(self, **limits: int) -> None:
        """Use a tmpfs with limits, which are lifted to heal it."""
        options = ",".join(["mode=755", *(f"{name}={value}" for name, value in limits.items())])
        mount(self.disk, "-t", "tmpfs", "-o", options, "tmpfs")
        lifted = f"remount,size={IMAGE_BYTES},nr_inodes=100000"
        self.on_disk(lambda: mount(self.disk, "-o", lifted))

    def on_image(self, *, options: str = "data=ordered") -> None:
        """Use an ext4 file system in a file, which is made writable to heal it."""
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _call("mkfs.ext4", "-q", "-F", "-m", "0", self.image)
        mount(self.disk, "-o", f"loop,{options}", self.image)

        def heal() -> None:
            _call("chattr", "-R", "-i", self.disk, check=False)
            if self.details.get("locked") == "file system":
                unmount(self.disk)
                _call("e2fsck", "-p", "-f", self.image, check=False)
                mount(self.disk, "-o", f"loop,{options}", self.image)

        self.on_disk(heal)

    def begin(self, **more: Any) -> Child:
        """Start the run from its beginning."""
        return self.start(self.bench.start_arguments(self.place.run), **more)

    def take(self, original: Path) -> None:
        """Take a copy of a run."""
        self.details["from"] = original.name
        for name in ("run", "cache"):
            shutil.copytree(original / name, self.place.folder / name, symlinks=True)
        self.original = original
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
    """kill -9, up to three times; files have the permissions that the umask leaves, whatever wrote them."""
    scene.umask = scene.details["umask"] = scene.rng.choice((0o022, 0o077, 0o002, 0o027))
    for number in range(scene.rng.randint(1, 3)):
        run = scene.place.run
        again = number and (run / "config.json").exists()
        if again and (run / "final").exists():
            break
        child = scene.start(["run", "--resume", str(run)]) if again else scene.begin()
        scene.wait(child)
        child.signal(signal.SIGKILL)
        scene.record(child)
    verdict = scene.finish()
    for path in (scene.place.run / "final").rglob("*"):
        if (found := stat.S_IMODE(path.stat().st_mode)) != 0o666 & ~scene.umask:
            raise FailedError(f"final/{path.name} has mode {found:o} at umask {scene.umask:o}")
    return verdict


def interrupt(scene: Scene) -> str:
    """A signal that asks the run to end; it saves, and says in log.txt how it ended."""
    number = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)[scene.turn % 4]
    scene.details["signal"] = number.name
    child = scene.begin()
    scene.wait(child)
    child.signal(number)
    told = scene.record(child)
    _require(told.status in (0, -number, 128 + number), told)
    if "stopping:" in told.err:
        _end_is_noted(scene)
    return scene.finish()


def power(scene: Scene) -> str:
    """A power cut: only what has reached the block device is left."""
    kinds = ("data=ordered", "data=writeback", "data=ordered,commit=1")
    options = scene.details["mount"] = scene.rng.choice(kinds)
    scene.on_image(options=options)
    child = scene.begin()
    scene.heal = None
    scene.wait(child)
    child.signal(signal.SIGSTOP)  # so that the copy is of one moment
    _call("cp", "--sparse=always", scene.image, scene.place.folder / "cut")
    saved = _saved(scene.place.run)
    child.signal(signal.SIGKILL)
    scene.record(child)
    unmount(scene.disk)
    mount(scene.disk, "-o", f"loop,{options}", scene.place.folder / "cut")
    if saved and not (scene.place.run / "checkpoints" / saved).is_dir():
        raise FailedError(f"{saved} had been saved before the power was cut, and is gone")
    return scene.finish()


def damaged(damage: Callable[[Scene], None]) -> Callable[[Scene], str]:
    """Return the kind of fault that damages a run that was killed."""

    def fault(scene: Scene) -> str:
        scene.take(scene.rng.choice(scene.bench.reference.stages))
        damage(scene)
        return scene.finish()

    return fault


def finished(scene: Scene) -> str:
    """A file of a finished run is damaged in any way."""
    scene.take(scene.bench.reference.folder.parent)
    scene.rng.choice((_flip, _flip, _truncate, _truncate, _delete))(scene)
    verdicts = [scene.use(command) for command in ("generate", "eval")]
    return next((verdict for verdict in verdicts if verdict != SAME), SAME)


def full_disk(scene: Scene) -> str:
    """The disk has only so much room, until the user makes some."""
    size = scene.details["size"] = KB * SIZES[scene.turn % len(SIZES)]
    scene.on_memory(size=size)
    return scene.finish()


def full_inodes(scene: Scene) -> str:
    """The disk takes only so many files."""
    inodes = scene.details["inodes"] = INODES[scene.turn % len(INODES)]
    scene.on_memory(nr_inodes=inodes)
    return scene.finish()


def lost_output(full: bool) -> Callable[[Scene], str]:
    """Return the kind of fault of which nothing can be printed any more: the disk is full, or who reads a pipe goes away."""

    def fault(scene: Scene) -> str:
        which = scene.details["lost"] = ("stdout", "stderr", "both")[scene.turn % 3]
        names = {"stdout": ("out",), "stderr": ("err",)}.get(which, ("out", "err"))
        after = int(scene.rng.choice((0, 100, 1000, 4000)) * scene.rng.random())
        read, write = os.pipe()
        if full:
            os.close(write)
            write = os.open("/dev/full", os.O_WRONLY)
        streams = {name: os.dup(write) for name in names}
        os.close(write)
        child = scene.begin(**streams)
        thread = threading.Thread(target=_read_some, args=(read, after))
        thread.start()
        told = child.told()
        thread.join()
        scene.record(child)
        said = not full or told.status == 0 or which != "stdout" or len(told.errors) == 1
        allowed = (0, 1) if full else (0, 1, 141, -signal.SIGPIPE)
        _require(told.status in allowed and said, told)
        _end_is_noted(scene)
        return scene.finish()

    return fault


def locked(scene: Scene) -> str:
    """A file or folder of the run becomes immutable, or the whole file system read-only."""
    scene.on_image()
    child = scene.begin()
    scene.wait(child)
    if scene.turn % 3 == 0:
        scene.details["locked"] = "file system"
        _call("mount", "-o", "remount,abort", scene.disk)  # as after an error of the device
    else:
        paths = sorted(scene.place.run.rglob("*"))
        written = [p for p in paths if p.suffix in {".jsonl", ".txt", ".json"} or p.is_dir()]
        target = scene.rng.choice(written or [scene.disk])
        scene.details["locked"] = str(target.relative_to(scene.disk))
        _call("chattr", "+i", target)
    told = scene.record(child)
    if told.status != 0:
        scene.follow(scene.judged(told), begun=(scene.place.run / "config.json").exists())
    scene.heal()  # what was damaged while nobody wrote is none of the run's business
    return scene.finish()


def foreign(scene: Scene) -> str:
    """The run folder is another user's."""
    scene.take(scene.rng.choice(scene.bench.reference.stages))
    folders, files = scene.rng.choice(((0o755, 0o644), (0o755, 0o600), (0o700, 0o600)))
    scene.details |= {"folders": oct(folders), "files": oct(files)}
    paths = [scene.place.run, *scene.place.run.rglob("*")]
    for path in paths:
        path.chmod(folders if path.is_dir() else files)
    home = scene.place.folder / "home"
    for folder in (scene.place.cache, home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
    scene.uid = NOBODY
    scene.env = {"XDG_STATE_HOME": str(home / "state"), "HOME": str(home)}

    def heal() -> None:
        for path in paths:
            os.chown(path, NOBODY, NOBODY)

    scene.heal = heal
    return scene.finish()


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


KINDS: dict[str, Callable[[Scene], str]] = {
    "kill": kill, "signal": interrupt, "power": power, "finished": finished, "disk": full_disk,
    "inodes": full_inodes, "pipe": lost_output(full=False), "full": lost_output(full=True),
    "locked": locked, "foreign": foreign, "flip": damaged(_flip), "truncate": damaged(_truncate),
    "delete": damaged(_delete), "line": damaged(_drop_line),
}  # fmt: skip
ORDER = (
    "kill", "flip", "disk", "signal", "power", "finished", "pipe", "truncate", "inodes", "locked",
    "foreign", "delete", "flip", "full", "disk", "line", "finished", "power", "signal", "kill",
)  # fmt: skip
"""Which kinds come after one another, so that any twenty faults are of all kinds."""
if not all(path.stat().st_mode & 0o001 for path in Path(sys.base_prefix).resolve().parents):
    print(
        "left out: foreign, since another user cannot enter this Python's folder", file=sys.stderr
    )
    ORDER = tuple(kind for kind in ORDER if kind != "foreign")
