"""Reads GSM8K as published (Cobbe et al., arXiv 2110.14168).

A record is a question, and an answer whose last line is `#### NUMBER`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core import ConfigError, MissingExtraError
from grpo_core.config.user_files import user_values
from grpo_core.extract import parse_decimal
from grpo_core.plugins.versions import check_versions

DATASET, SUBSET = "openai/gsm8k", "main"
FILES: Mapping[str, str] = {"train": "train.jsonl", "eval": "test.jsonl"}
WAYS = (
    "install the extra `gsm8k` to take it from the hub (pip install 'grpo-core[gsm8k]'), name a "
    "folder with the published train.jsonl and test.jsonl (--set env.path=FOLDER), or take word "
    "problems from templates (--set env.source=templates)"
)
"""The ways to get problems, for error messages."""
_CALCULATION = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A word problem."""

    question: str
    """The question, as the policy is asked."""
    answer: str
    """The right number in the form that is compared, without "," and "$"."""
    reasoning: str
    """The steps that lead to the answer."""


def parse(record: object) -> WordProblem:
    """Parse a record of GSM8K.

    Raises:
        ValueError: It is not a record of GSM8K.
    """
    question, answer = (
        (record.get("question"), record.get("answer")) if isinstance(record, dict) else (None, None)
    )
    if (
        not isinstance(question, str)
        or not isinstance(answer, str)
        or answer.count("####") != 1
        or not is_number(answer)
    ):
        raise ValueError("it needs a question, and an answer with `#### NUMBER` at its end")
    reasoning, _, number = answer.partition("####")
    return WordProblem(question.strip(), plain(number), _CALCULATION.sub("", reasoning).strip())


def is_number(answer: str) -> bool:
    """Return whether a decimal number stands behind the answer's `####`."""
    return parse_decimal(plain(answer.partition("####")[2])) is not None


def plain(number: str) -> str:
    """Return a gold answer in the form that the demo compares."""
    return number.strip().replace(",", "").replace("$", "")


def from_folder(folder: Path, split: str) -> list[WordProblem]:
    """Read a split from a folder with the published files.

    Raises:
        ConfigError: The file cannot be read, has no records or a line that is not a record.
    """
    path = folder / FILES[split]
    if not path.is_file():
        raise ConfigError(f"GSM8K cannot be read from {path}: there is no such file; {WAYS}")
    problems = []
    for where, record in user_values(path, holds="records of GSM8K"):
        try:
            problems.append(parse(record))
        except ValueError as error:
            raise ConfigError(f"{where} is not a record of GSM8K: {error}") from None
    if not problems:
        raise ConfigError(f"{path} holds no records; {WAYS}")
    return problems


def from_hub(split: str) -> list[WordProblem]:
    """Load a split with the package `datasets`.

    Raises:
        MissingExtraError: The package `datasets` is not installed.
        ConfigError: The dataset cannot be loaded.
    """
    check_versions("GSM8K from the hub", "gsm8k")
    try:
        import datasets
    except ModuleNotFoundError as error:
        feature = (
            "GSM8K from the hub (elsewhere: a folder with train.jsonl and test.jsonl by "
            "env.path=FOLDER, or env.source=templates)"
        )
        raise MissingExtraError(feature, "gsm8k", package=error.name or "") from None
    try:
        rows = datasets.load_dataset(DATASET, SUBSET, split="train" if split == "train" else "test")
    except Exception as error:
        raise ConfigError(
            f"GSM8K cannot be loaded from the hub ({type(error).__name__}: {error}); {WAYS}"
        ) from error
    return [parse(row) for row in rows]
