"""Items that depend on their seed alone, whatever the library keeps between two of them."""

from __future__ import annotations

import contextlib
import copy
import io
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

_BUILT_ANEW = frozenset({"acre", "codeio", "gsm_symbolic", "list_functions"})
"""Datasets that draw while they are built, or (codeio) share their rows with all others of their class."""

_GIVES_UP: Mapping[str, type[Exception]] = {
    "countdown": ValueError,
    "jugs": ValueError,
    "tsumego": RuntimeError,
    "word_ladder": IndexError,
}
"""How a dataset says that it found no item for a seed."""


def item(name: str, dataset: Any, seed: int) -> Mapping[str, Any] | None:
    """What `dataset` asks under `seed`, as if it had been built with it; None if there is no item for that seed."""
    with (
        _global_generators(seed),
        contextlib.redirect_stdout(io.StringIO()),
    ):  # bf prints a dot for each program that it compiles
        try:
            found: Mapping[str, Any] = _seeded(name, dataset, seed)[seed % dataset.config.size]
        except _GIVES_UP.get(name, ()):
            return None
    return found


def _seeded(name: str, dataset: Any, seed: int) -> Any:
    """Building some datasets takes up to 2 s, and most keep the seed for later."""
    config = replace(dataset.config, seed=seed)
    if name in _BUILT_ANEW:
        return type(dataset)(config)
    seeded = copy.copy(dataset)
    seeded.config, seeded.seed = config, seed
    return seeded


@contextlib.contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """list_functions and codeio draw from the generators of the whole process, and pool_matrix seeds NumPy's: these are lent."""
    kept, kept_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(kept_numpy)
