"""Extend the index of rollouts in the process that writes the run, at no risk to the run."""

from __future__ import annotations

from pathlib import Path

from grpo_core.runs.index import IndexBusyError, RolloutIndex
from grpo_core.runs.index_place import forget_index

_AT_ONCE_BYTES = 8 << 20
"""About how many bytes of the log a step indexes; a reader indexes the rest."""


class OwnIndex:
    """Holds the index of the run in a folder while the run goes on."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._index: RolloutIndex | None = None
        self._is_given_up = False

    def extend(self) -> str:
        """Bring the index in line with the log.

        Nothing that fails here stops a run: the index is dropped, and whoever reads it next builds
        it again.

        Returns:
            Why there is no index from now on; "" if there is one, or if that was said before.
        """
        if self._is_given_up:
            return ""
        try:
            if self._index is None:
                self._index = RolloutIndex.open(self._run, extend=False, waits=False)
            self._index.extend(at_most_bytes=_AT_ONCE_BYTES)
        except IndexBusyError:
            return ""  # a viewer is doing it
        except Exception as error:  # noqa: BLE001 - training goes on without an index
            self._is_given_up = True
            self.close()
            forget_index(self._run)
            return f"rollouts.jsonl is not indexed any further: {error}"
        return ""

    def close(self) -> None:
        """Close the index; the next call of `extend` opens it again."""
        index, self._index = self._index, None
        if index is not None:
            index.close()
