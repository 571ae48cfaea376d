"""Draws items that depend on their seed alone, whatever state the library keeps between draws."""

from __future__ import annotations

import contextlib
import copy
import io
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from grpo_env_reasoning_gym.execution import SANDBOXED

_BUILT_ANEW = frozenset({"acre", "codeio", "gsm_symbolic", "list_functions"})
"""Datasets that are built again for each item, since they draw while they are built or (codeio)
share their rows with all others of their class."""

_GIVES_UP: Mapping[str, type[Exception]] = {
    "countdown": ValueError,
    "jugs": ValueError,
    "tsumego": RuntimeError,
    "word_ladder": IndexError,
}
"""The exception by which a dataset reports that it has no item for a seed."""


def item(name: str, dataset: Any, seed: int) -> Mapping[str, Any] | None:
    """Return the item of `dataset` for `seed`, as if the dataset had been built with that seed.

    Returns:
        The item, or None if the dataset has none for this seed.
    """
    # Those that a sandbox evaluates are made in the trainer's process, whose generators and output
    # other threads use; they need neither.
    with contextlib.nullcontext() if name in SANDBOXED else _alone_and_silent(seed):
        try:
            entry: Mapping[str, Any] = _with_seed(name, dataset, seed)[seed % dataset.config.size]
        except _GIVES_UP.get(name, ()):
            return None
    return entry


def _with_seed(name: str, dataset: Any, seed: int) -> Any:
    """Return the dataset with another seed.

    Most datasets only store the seed, so a copy is enough; building some takes up to 2 s.
    """
    config = replace(dataset.config, seed=seed)
    if name in _BUILT_ANEW:
        return type(dataset)(config)
    seeded = copy.copy(dataset)
    seeded.config, seeded.seed = config, seed
    return seeded


@contextlib.contextmanager
def _alone_and_silent(seed: int) -> Iterator[None]:
    """Seed the global generators, and print nothing: bf prints a dot for each compiled program."""
    with _seeded_global_generators(seed), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _seeded_global_generators(seed: int) -> Iterator[None]:
    """Seed the process's global random generators, and restore their states afterwards.

    list_functions and codeio draw from them, and pool_matrix seeds NumPy's.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
