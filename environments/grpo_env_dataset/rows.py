"""Where the rows come from, and which of them are held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, MissingExtraError

Row = dict[str, Any]


def read_jsonl(path: Path) -> list[Row]:
    """One object per line; blank lines are left out."""
    rows = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ConfigError(
                        f"{path}, line {number} holds a {type(row).__name__}; every line must be a JSON object"
                    )
                rows.append(row)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; set env.path to a JSONL file"
        ) from None
    except ValueError as error:  # also an encoding that is not UTF-8
        raise ConfigError(f"{path} is not valid JSONL: {error}") from None
    if not rows:
        raise ConfigError(f"{path} holds no rows; every line must be a JSON object")
    return rows


def published(name: str, subset: str, split: str) -> list[Row]:
    """A split of a dataset that the package `datasets` knows."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"env.name={name!r}", "datasets", package=error.name or ""
        ) from None
    try:
        return [dict(row) for row in datasets.load_dataset(name, subset or None, split=split)]
    except Exception as error:
        raise ConfigError(
            f"the dataset {name!r} (env.subset={subset!r}, split {split!r}) cannot be loaded: {error}"
        ) from error


def halves(rows: Sequence[Row], asked: Sequence[str], share: float) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows. What each row asks decides, so that no question is ever on both sides, whatever else (a number, a
    source, another answer) stands in its rows. Another prompt template holds out other rows."""
    train: list[Row] = []
    held_out: list[Row] = []
    for row, question in zip(rows, asked, strict=True):
        digest = hashlib.sha256(question.encode(errors="surrogatepass")).digest()
        (held_out if int.from_bytes(digest[:8], "big") < share * 2**64 else train).append(row)
    return train, held_out


def digest(rows: Sequence[Row]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
