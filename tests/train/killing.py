"""A run folder as kill -9 would have left it, without a process of its own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_core.runs.observer import Observer


@contextmanager
def killed(folder: Path, *, step: int) -> Iterator[Observer]:
    """Yield an observer for a run in `folder`, which it ends after `step`.

    A run that ends by an exception saves its last step, which a killed one cannot: afterwards the folder is what it was at that moment.
    """
    left = folder.with_name(f"{folder.name}.left")

    class Killer(Observer):
        def step(self, number: int, total: int, metrics: Any) -> None:
            if number == step:
                shutil.copytree(folder, left)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        yield Killer()
    shutil.rmtree(folder)
    left.rename(folder)
