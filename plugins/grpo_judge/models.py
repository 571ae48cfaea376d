"""What judges that are models in this process share."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

CHUNK = 2**20


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def commit_of(config: Any, model: str) -> str:
    """Of the hub, or a digest of all files of a folder."""
    return getattr(config, "_commit_hash", None) or _digest(Path(model))


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                found.update(chunk)
    return found.hexdigest()
