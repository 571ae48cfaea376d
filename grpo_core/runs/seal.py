"""Digests by which damaged files are found before anything in them is believed.

A sealed JSON object holds the SHA-256 of its own content, so that it can be replaced in one step.
A folder's list of digests stands in such an object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.atomic import write_whole

FORMAT = 2
"""The format of run folders and checkpoints; 1 had no digests and did not say its number."""
SEAL = "digest"
MANIFEST = "manifest.json"
EDITABLE = frozenset({"README.md"})
"""Files that people may change: nothing reads them."""
_THREADS = 4


class DamagedError(Exception):
    """A file is not as it was written; the message says which and how."""


def seal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` as it is after a journey through JSON, with the digest of its content."""
    content = json.loads(json.dumps(data))
    return {**content, SEAL: _digest(content)}


def unseal(data: Any) -> dict[str, Any]:
    """Return the content of an object, which may have no digest.

    Raises:
        DamagedError: it is no object, or its digest is that of another content.
    """
    if not isinstance(data, dict):
        raise DamagedError("it is not a JSON object")
    content = {key: value for key, value in data.items() if key != SEAL}
    if SEAL not in data and data.get("format", 1) != 1:
        raise DamagedError("it has no digest")
    if SEAL in data and data[SEAL] != _digest(content):
        raise DamagedError("its content does not have the digest that it was written with")
    return content


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a file with one object; raises DamagedError for one that cannot be read."""
    try:
        return unseal(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except (OSError, ValueError, DamagedError) as error:
        raise DamagedError(f"{path.name} is damaged ({error})") from None


def write_manifest(folder: Path) -> None:
    """Write manifest.json, with a digest of every file in `folder`."""
    content = {"format": FORMAT, "files": file_digests(folder)}
    write_whole(folder / MANIFEST, json.dumps(seal(content), indent=2) + "\n")


def check_manifest(folder: Path) -> None:
    """Raise DamagedError if a file is not as manifest.json says; a folder without one passes."""
    if (folder / MANIFEST).exists():
        manifest = read_sealed(folder / MANIFEST)
        check_format(folder, manifest)
        check_files(folder, manifest["files"])


def check_format(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse what a newer version has written, which this one could misread."""
    if (found := data.get("format", 1)) not in range(1, FORMAT + 1):
        raise ConfigError(
            f"{path} has format {found}, and this version of grpo-core reads formats up to "
            f"{FORMAT}; install a newer version: pip install --upgrade grpo-core"
        )


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder`, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_THREADS) as pool:  # hashing releases the interpreter
        digests = pool.map(_file_digest, paths)
        return {
            str(path.relative_to(folder)): text for path, text in zip(paths, digests, strict=True)
        }


def check_files(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise DamagedError for the first file that is missing or has another digest."""
    names = [name for name in digests if name not in EDITABLE]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DamagedError(f"{missing[0]} is missing")
    with ThreadPoolExecutor(_THREADS) as pool:
        for name, found in zip(
            names, pool.map(lambda name: _file_digest(folder / name), names), strict=True
        ):
            if found != digests[name]:
                raise DamagedError(f"{name} is not as it was written")


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({error.strerror or error})") from None
