"""Show a run in the terminal while it goes on: curves, the newest groups, best and worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Footer, Header, Sparkline, Static

from grpo_core import ConfigError
from grpo_core.api.calls import printable
from grpo_report.html.opened import OpenRun
from grpo_report.indexes.index import Filter, GroupRow, Range, RolloutRow
from grpo_report.terminal.texts import group_text, number, summary_text

_SECONDS = 3.0
"""Between two looks at what the run has written."""
_NEWEST = 50
"""Groups in the table."""
_CURVES = {
    "reward/mean": "reward",
    "pass_rate": "pass rate",
    "kl": "KL",
    "entropy": "entropy",
    "completion_length/mean": "tokens",
    "groups/mixed": "groups alive",
}
"""What is drawn, and its name on the screen."""
_GONE = "this group is no longer in the log: the run has gone back to a checkpoint"
_CELL = 60
"""Characters of a cell of the table."""


class Dashboard(App[None]):
    """Show the curves of a run and its newest groups; keys lead to the best and the worst.

    All text of the run goes through `printable`, and none is read as markup.
    """

    TITLE = "grpo-core"
    CSS = """
    #curves { height: auto; }
    .curve { width: 1fr; height: 5; border: round $surface-lighten-2; padding: 0 1; }
    .curve Static { height: 1; }
    .curve Sparkline { height: 2; }
    #groups { width: 44%; }
    #detail { width: 56%; border-left: solid $surface-lighten-2; padding: 0 1; }
    #summary { height: auto; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("n", "newest", "Newest group"),
        ("b", "extreme(True)", "Best rollout"),
        ("w", "extreme(False)", "Worst rollout"),
        ("s", "split", "Training or held-out"),
        ("r", "refresh", "Read again"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, run: OpenRun) -> None:
        """Set the run that is shown."""
        super().__init__()
        self.sub_title = printable(run.name, lines=False)
        self._opened = run
        self._revision = ""
        self._split: str | None = None
        self._rows: list[GroupRow] = []

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Header()
        yield Static(id="summary", markup=False)
        with Horizontal(id="curves"):
            for position, name in enumerate(_CURVES):
                with VerticalScroll(classes="curve", can_focus=False):
                    yield Static(_CURVES[name], id=f"value-{position}", markup=False)
                    yield Sparkline([], id=f"curve-{position}")
        with Horizontal():
            yield DataTable(id="groups", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(id="detail"):
                yield Static(id="text", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Fill the screen, and look for news from then on."""
        table = self.query_one("#groups", DataTable)
        table.add_columns("step", "task", "mean", "worst…best", "passed", "notes")
        table.focus()
        self.action_refresh()
        self.set_interval(_SECONDS, self.action_refresh)

    def action_refresh(self) -> None:
        """Read what is new, and show it; what cannot be read is said, and tried again later."""
        try:
            self._refresh()
        except ConfigError as error:
            self._revision = ""
            self._say("#summary", str(error))

    def _refresh(self) -> None:
        self._opened.index.extend()
        if self._opened.revision == self._revision:
            return
        self._revision = self._opened.revision
        metrics = self._opened.metrics()
        columns = metrics["steps"]["columns"]
        for position, name in enumerate(_CURVES):
            self._show_curve(position, name, columns.get(name, []))
        facts = self._opened.facts(0)
        self._say("#summary", summary_text(facts, columns, metrics["evaluations"]["columns"]))
        self._show_groups()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the group of the row."""
        if event.row_key is not None and event.row_key.value is not None:
            shown = [row for row in self._rows if str(row.id) == event.row_key.value]
            for row in shown:  # none if the table was filled anew since
                self._show_group(row, None)

    def action_newest(self) -> None:
        """Go to the newest group."""
        self.query_one("#groups", DataTable).move_cursor(row=0)
        if self._rows:
            self._show_group(self._rows[0], None)

    def action_split(self) -> None:
        """Show groups of training alone, then those of evaluations alone, then all again."""
        self._split = {None: "train", "train": "eval"}.get(self._split)
        self._show_groups()

    def action_extreme(self, best: bool) -> None:
        """Show the rollout with the highest or the lowest reward of the last step.

        Args:
            best: whether it is the highest.
        """
        if not self._rows:
            return
        newest = self._rows[0]
        rollouts: Sequence[RolloutRow] = self._opened.index.rollouts(
            Filter(steps=Range(newest.step, newest.step), split=newest.split, error=False),
            order="reward",
            descending=best,
            limit=1,
        )
        for rollout in rollouts:
            for row in self._rows:
                if row.id == rollout.group:
                    self._show_group(row, rollout.attempt)

    def _show_curve(self, position: int, name: str, values: Sequence[float | None]) -> None:
        known = [value for value in values if value is not None]
        self.query_one(f"#curve-{position}", Sparkline).data = known
        last = number(known[-1]) if known else "–"
        self._say(f"#value-{position}", f"{_CURVES[name]} {last}")

    def _say(self, widget: str, text: str) -> None:
        """Show a text of the run; this is the only way for one into a widget beside the table."""
        self.query_one(widget, Static).update(Text(printable(text)))

    def _show_groups(self) -> None:
        """Fill the table; the cursor stays on its group."""
        table = self.query_one("#groups", DataTable)
        row = table.cursor_row
        kept = self._rows[row].id if 0 < row < len(self._rows) else None
        self._rows = self._opened.index.groups(
            Filter(split=self._split), order="log", descending=True, limit=_NEWEST
        )
        table.clear()
        for group in self._rows:
            cells = (printable(cell, lines=False, limit=_CELL) for cell in _cells(group))
            table.add_row(*map(Text, cells), key=str(group.id))
        ids = [group.id for group in self._rows]
        if kept in ids:
            table.move_cursor(row=ids.index(kept))

    def _show_group(self, row: GroupRow, attempt: int | None) -> None:
        try:
            data = self._opened.read(row.step, row.split, row.number)
            text = _GONE if data is None else group_text(data, attempt)
        except ConfigError as error:
            text = str(error)
        self._say("#text", text)
        self.query_one("#detail", VerticalScroll).scroll_home(animate=False)


def _cells(group: GroupRow) -> tuple[str, ...]:
    notes = [
        f"{count} {name}"
        for name, count in (
            ("truncated", group.truncated),
            ("duplicate", group.duplicates),
            ("not judged", group.errors),
        )
        if count
    ]
    return (
        f"{group.step} {group.split}",
        f"{group.environment} {group.task}",
        number(group.reward_mean),
        f"{number(group.reward_low)}…{number(group.reward_high)}",
        f"{group.passed}/{group.rollouts}",
        ", ".join((["dead"] if group.dead else []) + notes),
    )
