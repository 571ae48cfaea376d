"""Run folders as a stranger may plant them: links, pipes, sizes, names, garbage.

`Planter.plant` changes a copy of a finished run in one to three of these ways, chosen by a seed.
"""

import gzip
import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITTEN = (
    *("config.json", "metrics.jsonl", "rollouts.jsonl", "alarms.jsonl", "cards.json"),
    *("vocabulary.json", "log.txt", "report.html", "rollouts.sqlite", "samples.txt"),
    *("reward.png", "reward.svg", "kl.png", "kl.svg", "parts.png", "parts.svg", "time.png"),
    *("final", "checkpoints", "final/README.md", "final/adapter_config.json"),
    *("rollouts-000001.jsonl", "rollouts-000001.jsonl.gz", "rollouts.sqlite-journal"),
    *("rollouts.sqlite-wal", "rollouts.sqlite-shm", ".lock", ".rollouts.jsonl.gz", "locked"),
)
"""Names that some version of a command reads or writes in a run folder."""
READ = (
    *("config.json", "metrics.jsonl", "rollouts.jsonl", "alarms.jsonl", "cards.json"),
    *("vocabulary.json", "rollouts-000001.jsonl.gz", "rollouts-000001.jsonl"),
)
"""Names that commands which only look at a run read."""
NAMES = (
    *("a\nb.py", "\x1b]0;title\x07", "rollouts-999999.jsonl", "rollouts-000000.jsonl.gz"),
    *("rollouts-١٢٣٤٥٦.jsonl", "x" * 255, "\udcff.jsonl", "-rf", "<img src=x>", "config.json\n"),
    *("checkpoints/step-99999999999999999999", "checkpoints/step-1\n", "checkpoints/step--1"),
)
VALUES: Sequence[Any] = (
    *(None, True, -1, 0, 1e308, 10**400, 2**63, "", "x" * 10**6, [], {}, [[]], "\x1b]0;t\x07"),
    *("\ud800", "</script><script>alert(1)</script>", "nan", float("nan"), float("inf"), -0.0),
    *("../../..", "/dev/zero", "%s%n{}{0}", ["a"] * 10_000, {"a": {"b": {"c": 1}}}),
)
"""What takes the place of a value in a JSON file."""
DEEP = "[" * 100_000 + "]" * 100_000


@dataclass(frozen=True)
class Planter:
    """Hold what planted folders are made from, and what they must not touch."""

    base: Path
    """A finished run, which is only copied."""
    user: Path
    """Files of the user that no folder may change; code that runs leaves a file `ran` here."""
    bomb: bytes
    """A compressed file of 2 GB that is one line."""

    def plant(self, folder: Path, seed: int) -> list[str]:
        """Make a folder; return what was changed in it."""
        chance = random.Random(seed)
        shutil.copytree(self.base, folder, symlinks=True)
        kinds = chance.sample(KINDS, k=chance.choice((1, 1, 2, 3)))
        kinds.sort(key=(garbage, bits, *KINDS).index)  # what needs whole files goes first
        return [f"{kind.__name__}: {kind(self, folder, chance)}" for kind in kinds]

    @property
    def attack(self) -> str:
        """The text of a Python program that leaves a file in the user's folder."""
        return f"open({str(self.user / 'ran')!r}, 'w').close()"


def link(planter: Planter, folder: Path, chance: random.Random) -> str:
    """Put a link to a file of the user, or to one that is not there, in the place of a file."""
    place = _place(folder, chance)
    target = planter.user / chance.choice(("notes.txt", "data.jsonl", "new", "folder", "pages"))
    if chance.random() < 0.3 and target.is_file():
        place.hardlink_to(target)
    else:
        place.symlink_to(chance.choice((target, os.path.relpath(target, place.parent))))
    return f"{place.name} -> {target.name}"


def special(planter: Planter, folder: Path, chance: random.Random) -> str:
    """Put a pipe, a socket, a folder, a device or a circle of links in the place of a file."""
    place = _place(folder, chance)
    kind = chance.choice(("pipe", "pipe", "socket", "folder", "/dev/zero", "/dev/full", "circle"))
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        here = os.open(place.parent, os.O_RDONLY)  # a socket's path may have 107 characters
        with socket.socket(socket.AF_UNIX) as server:
            try:
                server.bind(f"/proc/self/fd/{here}/{place.name}")
            except OSError:
                place.mkdir()
        os.close(here)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(place.name if kind == "circle" else kind)
    return f"{place.name} is {kind}"


def size(planter: Planter, folder: Path, chance: random.Random) -> str:
    """Put a file that is too large in the place of one: sparse, compressed, many lines, deep."""
    place = _place(folder, chance)
    kind = chance.choice(("sparse", "line", "bomb", "lines", "deep", "members"))
    if kind == "sparse":
        place.touch()
        os.truncate(place, 1 << 40)
    elif kind == "line":
        place.touch()
        os.truncate(place, 200 << 20)
        with place.open("ab") as file:
            file.write(b"\n")
    elif kind == "bomb":
        place = _replaced(folder / f"rollouts-00000{chance.randint(1, 3)}.jsonl.gz")
        place.write_bytes(planter.bomb)
    elif kind == "lines":
        place.write_bytes(b"{}\n" * 300_000)
    elif kind == "deep":
        place.write_text(DEEP + "\n")
    else:
        place = _replaced(folder / "rollouts-000001.jsonl.gz")
        place.write_bytes(gzip.compress(b"{}\n") * 50_000)
    return f"{place.name} is {kind}"


def garbage(planter: Planter, folder: Path, chance: random.Random) -> str:
    """Put nonsense in the place of a value of a JSON file."""
    place = _file(folder, chance, (".json", ".jsonl"))
    lines = _json_texts(place)
    number = chance.randrange(len(lines))
    value = chance.choice(VALUES)
    changed, path = _with_one_changed(json.loads(lines[number]), value, chance)
    lines[number] = json.dumps(changed)
    place.write_text("\n".join(lines) + "\n")
    return f"{place.name} {path} = {value!r:.40}"


def bits(planter: Planter, folder: Path, chance: random.Random) -> str:
    """Cut a file, or change bytes of it."""
    place = _file(folder, chance, ("",))
    data = bytearray(place.read_bytes())
    kind = chance.choice(("cut", "flipped", "empty", "twice"))
    if kind == "cut":
        del data[chance.randrange(len(data) + 1) :]
    elif kind == "flipped":
        for _ in range(chance.choice((1, 10, 1000)) if data else 0):
            data[chance.randrange(len(data))] = chance.randrange(256)
    else:
        data = data * 2 if kind == "twice" else bytearray()
    place.write_bytes(data)
    return f"{place.name} {kind}"


def names(planter: Planter, folder: Path, chance: random.Random) -> str:
    """Add files and folders under odd names."""
    name = chance.choice(NAMES)
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    if chance.random() < 0.3:
        place.mkdir(exist_ok=True)
    else:
        place.write_bytes(chance.choice((b"", b"{}\n", b"\xff\xfe", planter.attack.encode())))
    return repr(name)[:60]


KINDS: Sequence[Callable[[Planter, Path, random.Random], str]] = (
    *(link, link, special, special, size, garbage, garbage, garbage, bits, names),
)


def _place(folder: Path, chance: random.Random) -> Path:
    """Return a free place in the folder; a file that was there is removed."""
    there = [path for path in sorted(folder.rglob("*")) if not path.is_symlink()]
    named = [folder / name for name in chance.choice((READ, WRITTEN))]
    return _replaced(chance.choice(there if chance.random() < 0.3 else named))


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder and no link, through which the planter itself would write."""
    return path.is_dir() and not path.is_symlink()


def _replaced(place: Path) -> Path:
    if not _is_folder(place.parent):
        place = place.parent.parent / place.name
    if _is_folder(place):
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    return place


def _file(folder: Path, chance: random.Random, suffixes: Sequence[str]) -> Path:
    """Return a regular file with one of the suffixes that is not too large to be changed here."""
    regular = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]
    small = [p for p in regular if p.stat().st_nlink == 1 and 0 < p.stat().st_size < 5 << 20]
    named = [path for path in small if path.name.endswith(tuple(suffixes))]
    return chance.choice([path for path in named if suffixes == ("",) or _is_json(path)])


def _json_texts(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]


def _is_json(path: Path) -> bool:
    try:
        for text in _json_texts(path):
            json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _with_one_changed(value: Any, new: Any, chance: random.Random) -> tuple[Any, str]:
    """Return a copy in which one value, at any depth, is another one, and where it was."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        inner, path = _with_one_changed(value[key], new, chance)
        return {**value, key: inner}, f".{key}{path}"
    if isinstance(value, list) and value and chance.random() < 0.9:
        index = chance.randrange(len(value))
        inner, path = _with_one_changed(value[index], new, chance)
        return [*value[:index], inner, *value[index + 1 :]], f"[{index}]{path}"
    return new, ""
