"""Keep what an environment prints during an attempt with the verdict on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from grpo_core.calls.call import hearing
from grpo_core.calls.output import Output
from grpo_core.protocol.types import Verdict


class Printed:
    """Collects what is printed before the verdict of one attempt, as by its replies."""

    def __init__(self) -> None:
        self._output = Output()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what the environment prints inside a `with` block."""
        with hearing() as output:
            try:
                yield
            finally:
                self._output.write_lines(output.text)

    def before(self, verdict: Verdict) -> Verdict:
        """Return the verdict with what was kept before its own output."""
        if not (text := self._output.text):
            return verdict
        whole = Output()
        for lines in (text, verdict.output):
            whole.write_lines(lines)
        return replace(verdict, output=whole.text)
