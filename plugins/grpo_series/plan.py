"""Name the runs of a series: one for each seed and each combination of swept values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from grpo_core import ConfigError

MOST_RUNS = 1000
"""The most runs of a series: more are likely a slip of the keyboard."""
_VALUE_CHARS, _NAME_CHARS = 30, 90
"""The most characters of a value in the name of a folder, and of the name, before a number."""


@dataclass(frozen=True, slots=True)
class SeriesRun:
    """Say what a run of a series is called, and which settings it has of its own."""

    name: str
    """The name of its folder."""
    settings: tuple[str, ...]
    """Its settings, KEY=VALUE, as after --set."""


def planned_runs(
    sweeps: Sequence[str], seeds: int | None, *, first_seed: int = 0
) -> list[SeriesRun]:
    """Return the runs of a series: for each seed, all combinations of the swept values.

    Each seed comes with all values before the next one begins, so that a series that is stopped
    early has compared all of them.

    Args:
        sweeps: the values of --sweep, KEY=VALUE,VALUE,...
        seeds: how many seeds there are; None: the seed is not varied.
        first_seed: the first of them; the others follow it.

    Raises:
        ConfigError: a sweep is not of that form, names a key twice or a value twice, or there are
            too many runs.
    """
    swept = dict(map(_values, sweeps))
    if len(swept) < len(sweeps):
        raise ConfigError(
            "--sweep names a setting twice; give all of its values after one, as in "
            "--sweep optimizer.lr=1e-4,3e-4"
        )
    if seeds is not None and "seed" in swept:
        raise ConfigError("--seeds and --sweep seed=... exclude each other; remove one of them")
    short = _short_names([*swept])
    plans = []
    for seed in [None] if seeds is None else range(first_seed, first_seed + seeds):
        for values in product(*swept.values()):
            settings = [f"{key}={value}" for key, value in zip(swept, values, strict=True)]
            words = [
                f"{short[key]}-{_shown(value)}" for key, value in zip(swept, values, strict=True)
            ]
            if seed is not None:
                settings.append(f"seed={seed}")
                words.append(f"seed-{seed}")
            plans.append((_file_name("-".join(words)), tuple(settings)))
            if len(plans) > MOST_RUNS:
                raise ConfigError(f"the series has more than {MOST_RUNS} runs; give fewer values")
    return list(_with_unique_names(plans))


def _values(sweep: str) -> tuple[str, list[str]]:
    """Return the key of a sweep, and its values as they stand after --set.

    Raises:
        ConfigError: it is not KEY=VALUE,VALUE,... with different values.
    """
    key, sign, text = map(str.strip, sweep.partition("="))
    values = _split_values(text)
    if not key or not sign or not all(values):
        raise ConfigError(
            f"--sweep takes KEY=VALUE,VALUE,..., such as optimizer.lr=1e-4,3e-4; found {sweep!r}"
        )
    if len(set(values)) < len(values):
        raise ConfigError(f"--sweep {sweep} has a value twice; remove one of them")
    return key, values


def _split_values(text: str) -> list[str]:
    """Return the values between commas; a comma within quotes or brackets is part of a value."""
    pieces = [""]
    for piece in text.split(","):
        pieces[-1] += piece
        if _is_open(pieces[-1]):
            pieces[-1] += ","
        else:
            pieces.append("")
    return [piece.strip() for piece in pieces[:-1]] or [text]


def _is_open(piece: str) -> bool:
    """Return whether a piece of TOML has a bracket or a quote that is closed further on only."""
    if not piece.lstrip().startswith(("[", "{", '"', "'")):
        return False
    try:
        tomllib.loads(f"value = {piece}")
    except tomllib.TOMLDecodeError:
        return True
    return False


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last word of each key, or the whole key where several end with the same word."""
    last_words = [key.rpartition(".")[2] for key in keys]
    return {
        key: word if last_words.count(word) == 1 else key
        for key, word in zip(keys, last_words, strict=True)
    }


def _shown(value: str) -> str:
    """Return what the name of a folder has of a value: of a path or a hub id its last name."""
    return value.rstrip("/").rpartition("/")[2][:_VALUE_CHARS]


def _file_name(text: str) -> str:
    """Return a text as the name of a folder, without what shells and file systems treat."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).strip("_.-")[:_NAME_CHARS] or "run"


def _with_unique_names(plans: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[SeriesRun]:
    """Yield the runs; those whose names would be the same get a number."""
    used: set[str] = set()
    for name, settings in plans:
        unique, number = name, 2
        while unique.casefold() in used:
            unique, number = f"{name}-{number}", number + 1
        used.add(unique.casefold())
        yield SeriesRun(unique, settings)
