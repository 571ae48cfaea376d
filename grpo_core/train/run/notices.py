"""Forward the warnings that the project's packages log during a run to its display.

An example is the warning that a sandbox is unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOGGER_PREFIX = "grpo_"
"""Prefix of the names of the project's packages."""


class _NoticeHandler(logging.Handler):
    """Passes warnings of packages named grpo_* to `warn`.

    Args:
        only_handler: whether logging has no other handler; then other records go to logging's last
            resort, as they would without this handler.
    """

    def __init__(self, warn: Callable[[str], None], *, only_handler: bool) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._only_handler = only_handler

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record on."""
        if record.name.startswith(LOGGER_PREFIX):
            self._warn(record.getMessage())
        elif self._only_handler and logging.lastResort is not None:
            logging.lastResort.handle(record)


@contextmanager
def notices(warn: Callable[[str], None]) -> Iterator[None]:
    """Call `warn` with each warning that is logged inside the `with` block, from any thread."""
    root = logging.getLogger()
    handler = _NoticeHandler(warn, only_handler=not root.handlers)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
