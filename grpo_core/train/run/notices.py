"""Shows the warnings that the project's packages log during a run, such as that a sandbox is unavailable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OURS = "grpo_"


class _Notices(logging.Handler):
    """Hands warnings of packages named grpo_* to `warn`; others go where they would have gone."""

    def __init__(self, warn: Callable[[str], None], *, only_one: bool) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._only_one = only_one

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(OURS):
            self._warn(record.getMessage())
        elif self._only_one and logging.lastResort is not None:
            logging.lastResort.handle(record)


@contextmanager
def notices(warn: Callable[[str], None]) -> Iterator[None]:
    """Call `warn` with each warning that is logged inside the `with` block, from any thread."""
    root = logging.getLogger()
    handler = _Notices(warn, only_one=not root.handlers)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
