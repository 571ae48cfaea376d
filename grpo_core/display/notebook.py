"""Show the progress of a run in the cell of a notebook: a bar, a growing table, and messages."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.calls.printable import MESSAGE_LIMIT, printable
from grpo_core.display.facts import Facts
from grpo_core.runs.observer import Observer

if TYPE_CHECKING:
    from grpo_core.figures.gains import Gain

MOST_ROWS = 200
"""Rows of the table that are shown; of more, those in the middle are left out."""
MOST_MESSAGES = 100
"""The messages that are shown: the first half and the last of more."""

SHOW_SECONDS = 0.2
"""How often steps are shown."""

_STYLE = (
    ".grpo-run table{border-collapse:collapse;margin:.4em 0}"
    ".grpo-run td,.grpo-run th{text-align:right;padding:.1em .7em}"
    ".grpo-run .warning{color:#b26a00}.grpo-run .alarm{color:#c62828}"
    ".grpo-run .rows{max-height:24em;overflow:auto}"
)


def is_notebook() -> bool:
    """Return whether this code runs in a kernel, whose cells can show HTML."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _cell_number() -> int:
    """Return the number of the cell that runs."""
    return int(sys.modules["IPython"].get_ipython().execution_count)


class NotebookProgress(Observer):
    """Show the events of a run in the output of the cell that runs.

    It must be used as a context manager while the run goes on. The cell's output is made when the
    first thing is shown, and replaced from then on; a front end without HTML shows the same as
    text.
    """

    def __init__(self) -> None:
        self._facts = Facts()
        self._lock = threading.Lock()
        """An interrupt is told by another thread than the run's."""
        self._handle: Any = None
        self._cell = 0
        """The number of the cell that shows the handle."""
        self._next_show = 0.0
        """When a step is shown again, in monotonic seconds."""
        self._messages: list[tuple[str, str]] = []
        """Kind, for its colour, and text."""
        self._rows: list[dict[str, str]] = []
        self._left_out = 0
        """Rows that are shown no longer."""
        self._done, self._total, self._what = 0, 0, ""
        self._gains: Mapping[str, Gain] = {}

    def __enter__(self) -> NotebookProgress:
        if _cell_number() != self._cell:  # what an earlier cell shows stays there
            self._handle, self._cell = None, _cell_number()
            self._messages.clear()
        self._what = "starting"
        return self

    def __exit__(self, *_: object) -> None:
        self._what = "ended"
        self._show()

    def say(self, text: str) -> None:
        self._add("message", text)

    def warn(self, text: str) -> None:
        self._add("warning", f"WARNING: {text}")

    def alarm(self, title: str, text: str) -> None:
        self._add("alarm", f"ALARM: {title}: {text}")

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._done, self._total, self._what = step, total, "training"
        self._rows.append({"step": str(step), **self._facts.columns(step, total, metrics)})
        if len(self._rows) > MOST_ROWS:
            del self._rows[MOST_ROWS // 2]
            self._left_out += 1
        if time.monotonic() >= self._next_show:  # steps may take milliseconds
            self._show()
            self._next_show = time.monotonic() + SHOW_SECONDS

    def evaluating(self, done: int, total: int) -> None:
        self._what = f"evaluating {done}/{total}"
        self._show()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {
            "held-out reward": f"{metrics['eval/reward/mean']:.3f}",
            "held-out pass": f"{metrics['eval/pass_rate']:.1%}",
        }
        if self._rows and self._rows[-1]["step"] == str(step):
            self._rows[-1].update(row)
        else:
            self._rows.append({"step": str(step), **row})
        self._show()

    def finished(self, gains: Mapping[str, Gain]) -> None:
        self._gains = gains
        self._show()

    def _add(self, kind: str, text: str) -> None:
        with self._lock:
            self._messages.append((kind, printable(text, limit=MESSAGE_LIMIT)))
            if len(self._messages) > MOST_MESSAGES:
                del self._messages[MOST_MESSAGES // 2]
        self._show()

    def _show(self) -> None:
        """Show the present state in the cell."""
        from IPython.display import display

        with self._lock:
            data = {"text/plain": self._text(), "text/html": self._html()}
            if self._handle is None:
                self._cell = _cell_number()
                self._handle = display(data, raw=True, display_id=True)
            else:
                self._handle.update(data, raw=True)

    def _shown_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the titles and the rows of the table."""
        titles = list(dict.fromkeys(title for row in self._rows for title in row))
        rows = [[row.get(title, "") for title in titles] for row in self._rows]
        if self._left_out:
            rows.insert(MOST_ROWS // 2, ["…"] * len(titles))
        return titles, rows

    def _gain_lines(self) -> list[str]:
        return [
            f"held-out {name.replace('_', ' ')}: {gain.before:.3f} to {gain.after:.3f}, gain "
            f"{gain.mean:+.3f} (95 % interval {gain.low:+.3f} .. {gain.high:+.3f}, {gain.tasks} "
            "tasks)"
            for name, gain in self._gains.items()
        ]

    def _text(self) -> str:
        titles, rows = self._shown_rows()
        table = [titles, *rows] if rows else []
        widths = [max(len(row[place]) for row in table) for place in range(len(titles))]
        lines = [
            *(text for _, text in self._messages),
            *("  ".join(map(str.rjust, row, widths)) for row in table),
            *([f"{self._what}: step {self._done} of {self._total or '?'}"] if self._what else []),
            *self._gain_lines(),
        ]
        return "\n".join(lines)

    def _html(self) -> str:
        titles, rows = self._shown_rows()
        head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        messages = "".join(
            f'<div class="{kind}">{html.escape(text)}</div>' for kind, text in self._messages
        )
        gains = "".join(f"<div>{html.escape(line)}</div>" for line in self._gain_lines())
        table = (
            f'<div class="rows"><table><tr>{head}</tr>{body}</table></div>' if self._rows else ""
        )
        bar = (
            f'<div><progress value="{self._done}" max="{max(1, self._total)}"></progress> '
            f"step {self._done} of {self._total or '?'}, {html.escape(self._what)}</div>"
            if self._what
            else ""
        )
        return f'<div class="grpo-run"><style>{_STYLE}</style>{messages}{bar}{table}{gains}</div>'


def show_pictures(paths: Sequence[Path]) -> None:
    """Show PNG files in the cell that runs; do nothing outside a notebook."""
    if not is_notebook():
        return
    from IPython.display import Image, display

    for path in paths:
        display(Image(filename=str(path)))
