"""Reads the rows, and decides which of them are held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, MissingExtraError, held_out

Row = dict[str, Any]


def read_jsonl(path: Path) -> list[Row]:
    """Read a file with one JSON object on each line, skipping blank lines.

    Raises:
        ConfigError: The file cannot be read, is not valid JSONL or holds no rows.
    """
    rows = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ConfigError(
                        f"{path}, line {number} holds a {type(row).__name__}; every line must be a "
                        "JSON object"
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


def load_published(name: str, subset: str, split: str) -> list[Row]:
    """Load a split of a dataset with the package `datasets`.

    Raises:
        MissingExtraError: The package `datasets` is not installed.
        ConfigError: The dataset cannot be loaded.
    """
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
            f"the dataset {name!r} (env.subset={subset!r}, split {split!r}) cannot be loaded: "
            f"{error}"
        ) from error


def split_rows(
    rows: Sequence[Row], prompts: Sequence[str], share: float
) -> tuple[list[Row], list[Row]]:
    """Split the rows into training and held-out rows by the words of each row's prompt.

    Rows whose prompts differ in case, spacing, punctuation or the order of their words only are
    always on the same side, even if their other fields (a number, a source, another answer) differ.
    Another prompt template holds out other rows.

    Args:
        rows: the rows.
        prompts: the prompt of each row.
        share: share of the prompts to hold out, 0 to below 1.
    """
    train: list[Row] = []
    eval_rows: list[Row] = []
    for row, prompt in zip(rows, prompts, strict=True):
        (eval_rows if held_out(prompt, share) else train).append(row)
    return train, eval_rows


def hash_rows(rows: Sequence[Row]) -> str:
    """Return a hash of the rows, for the environment's fingerprint."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
