"""Detect damaged files by their SHA-256 digests before their content is used.

A sealed JSON object holds the digest of its own content, so that file and digest are replaced in
one step. The manifest of a folder, which lists the digests of its files, is a sealed object.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.atomic import write_whole
from grpo_core.runs.documents import read_document
from grpo_core.runs.files import open_to_read

FORMAT = 2
"""The format of run folders and checkpoints; format 1 had no digests and no "format" key."""
SEAL = "digest"
"""The key of a sealed object under which its digest is stored."""
MANIFEST = "manifest.json"
"""The name of the file that lists the digests of a folder's files."""
EDITABLE = frozenset({"README.md"})
"""Files that people may change, because nothing reads them."""
_THREADS = 4


class DamagedError(Exception):
    """Report that a file differs from what was written; the message says which and how."""


def seal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` as JSON would load it back, with the digest of its content added."""
    content = json.loads(json.dumps(data))
    return {**content, SEAL: _digest(content)}


def unseal(data: Any) -> dict[str, Any]:
    """Return the content of a sealed object without its digest.

    An object of format 1 may lack a digest.

    Raises:
        DamagedError: it is not a JSON object, its digest is missing, or the digest does not match.
    """
    if not isinstance(data, dict):
        raise DamagedError("it is not a JSON object")
    content = {key: value for key, value in data.items() if key != SEAL}
    if SEAL not in data and data.get("format", 1) != 1:
        raise DamagedError("it has no digest")
    if SEAL in data and data[SEAL] != _digest(content):
        raise DamagedError("its content does not match its digest")
    return content


def read_sealed(path: Path, *, below: Path | None = None) -> dict[str, Any]:
    """Return the content of a file that holds one sealed object.

    Args:
        path: the file.
        below: the folder below which no name of the path may be a link; by default the parent.

    Raises:
        DamagedError: the file is missing, cannot be read or is damaged.
    """
    try:
        return unseal(read_document(path, below=below))
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except (OSError, ValueError, DamagedError) as error:
        raise DamagedError(f"{path.name} is damaged ({error})") from None


def write_manifest(folder: Path) -> None:
    """Write manifest.json, with a digest of every file in `folder`."""
    content = seal({"format": FORMAT, "files": file_digests(folder)})
    write_whole(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


def check_manifest(folder: Path) -> None:
    """Check every file that manifest.json lists; accept a folder without manifest.json.

    Raises:
        DamagedError: a file is missing or does not match its digest.
        ConfigError: a newer version wrote the manifest.
    """
    if os.path.lexists(folder / MANIFEST):
        manifest = read_sealed(folder / MANIFEST)
        check_format(folder, manifest)
        check_files(folder, manifest.get("files"))


def check_format(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse a file that a newer version has written, because this version could misread it.

    Raises:
        ConfigError: the format is newer than `FORMAT`, or unknown.
    """
    if (version := data.get("format", 1)) not in range(1, FORMAT + 1):
        raise ConfigError(
            f"{path} has format {version}, and this version of grpo-core reads formats up to "
            f"{FORMAT}; install a newer version: pip install --upgrade grpo-core"
        )


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder`, by its path relative to the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_THREADS) as pool:  # threads help: hashing releases the GIL
        digests = pool.map(lambda path: _file_digest(path, folder), paths)
        return {
            str(path.relative_to(folder)): digest
            for path, digest in zip(paths, digests, strict=True)
        }


def check_files(folder: Path, digests: Any) -> None:
    """Check that every file exists and matches its digest, apart from those in `EDITABLE`.

    Args:
        folder: the folder that holds the files.
        digests: the SHA-256 of each file by its path relative to the folder, as a file lists them.

    Raises:
        DamagedError: a file is missing or does not match; the message names the first one.
    """
    if not isinstance(digests, dict):
        raise DamagedError("the digests of its files are no table of names")
    names = [name for name in digests if name not in EDITABLE]
    with ThreadPoolExecutor(_THREADS) as pool:
        actual_digests = pool.map(lambda name: _file_digest(folder / name, folder), names)
        for name, digest in zip(names, actual_digests, strict=True):
            if digest != digests[name]:
                raise DamagedError(f"{name} is not as it was written")


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _file_digest(path: Path, folder: Path) -> str:
    try:
        with open_to_read(path, below=folder) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        reason = getattr(error, "strerror", None) or error
        raise DamagedError(f"{path.name} cannot be read ({reason})") from None
