"""The dashboard in the terminal, by the screens that it draws."""

import asyncio
import html
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from grpo_core.protocol.errors import GrpoError
from grpo_core.runs.folder import RunFolder
from grpo_report.html.opened import OpenRun
from grpo_report.terminal.dashboard import Dashboard
from grpo_report.terminal.screen import show_in_terminal

from .report_runs import add_hostile_groups, group, trained_run, verdict


@pytest.fixture
def run(settings: dict[str, Any], tmp_path: Path) -> RunFolder:
    return trained_run(settings, tmp_path / "run", steps=4)


@pytest.fixture
def open_run(run: RunFolder) -> Iterator[OpenRun]:
    opened = OpenRun(run.path, name="run [bold]x[/bold]")
    yield opened
    opened.close()


def screen(app: Dashboard) -> str:
    """Return the text of the screen."""
    svg = app.export_screenshot()
    lines = re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.DOTALL)
    return html.unescape("\n".join(lines)).replace("\xa0", " ")


Act = Callable[[Pilot[None]], Awaitable[Any]]


def shown_during(app: Dashboard, act: Act) -> Any:
    """Return what `act` returns, which is done while the dashboard is shown."""

    async def play() -> Any:
        async with app.run_test(size=(150, 45)) as pilot:
            await pilot.pause()
            return await act(pilot)

    return asyncio.run(play())


def played(app: Dashboard, *keys: str) -> list[str]:
    """Return the first screen, and that after each key."""

    async def act(pilot: Pilot[None]) -> list[str]:
        return [screen(app), *[await pressed(app, pilot, key) for key in keys]]

    return shown_during(app, act)


async def pressed(app: Dashboard, pilot: Pilot[None], key: str) -> str:
    await pilot.press(key)
    await pilot.pause()
    return screen(app)


@pytest.mark.slow
def test_it_shows_curves_the_newest_group_and_best_and_worst_by_one_key(run, open_run):
    texts = ["poor answer", "splendid answer", "middling answer"]
    verdicts = [verdict(0.0), verdict(1.0), verdict(0.5)]
    run.rollouts(5, replace(group(3, "the prompt", texts, verdicts), advantages=[-1.0, 1.0, 0.0]))
    first, best, worst, newest, _, held_out = played(Dashboard(open_run), *"bwnss")
    assert "step 4 of 4, finished · held-out reward" in first
    for name in ("reward", "pass rate", "KL", "entropy", "tokens", "groups alive"):
        assert re.search(rf"{name} [\d.–]", first), name
    assert "step 5, train, group 0: letters 3" in first
    assert "the prompt" in first
    assert first.index("splendid") < first.index("middling") < first.index("poor")
    assert "splendid" in best
    assert "poor" not in best
    assert "poor" in worst
    assert "splendid" not in worst
    assert len(re.findall("(poor|splendid|middling) answer", newest)) == 3
    assert "4 eval" in held_out
    assert "5 train" not in held_out.split("step 5, train")[0]


@pytest.mark.slow
def test_hostile_texts_are_escaped_and_are_no_markup(run, open_run):
    add_hostile_groups(run, step=6)
    shown = "\n".join(played(Dashboard(open_run), "down", "b", "w"))
    assert "run [bold]x[/bold]" in shown
    assert r"\u202egnp.exe" in shown
    assert not set(shown) & set("\0\a\u202e\u200b\ud800")
    assert "1 alarms; the last one, step 6: canary paid" in shown


@pytest.mark.slow
def test_no_field_of_the_log_reaches_the_terminal_as_it_is(run, open_run):
    add_hostile_groups(run, step=6)
    sequence = "\x1b]0;owned\x07"
    log = run.path / "rollouts.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line.get("step") == 6:
            line["key"] = line["key"] | {"env": sequence}
            line["finish"] = sequence
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    alarms = run.path / "alarms.jsonl"
    alarms.write_text(json.dumps(json.loads(alarms.read_text()) | {"name": sequence}) + "\n")
    app = Dashboard(open_run)

    async def texts(pilot: Pilot[None]) -> list[str]:
        await pressed(app, pilot, "n")
        table = app.query_one("#groups", DataTable)
        cells = [str(cell) for row in range(2) for cell in table.get_row_at(row)]
        return [*cells, *(str(static.content) for static in app.query(Static))]

    shown = shown_during(app, texts)
    assert sum(r"\x1b]0;owned\x07" in text for text in shown) >= 3
    assert not [text for text in shown if "\x1b" in text or "\x07" in text]


def test_it_goes_on_with_a_run_that_goes_on_and_names_a_file_that_cannot_be_read(run, open_run):
    app = Dashboard(open_run)
    alarms = run.path / "alarms.jsonl"

    async def go_on(pilot: Pilot[None]) -> tuple[int, list[str]]:
        table = app.query_one("#groups", DataTable)
        before = table.row_count
        run.rollouts(9, replace(group(5, "new", ["fresh"], [verdict(1.0)]), advantages=[0.0]))
        screens = [await pressed(app, pilot, "r")]
        for text in ("no JSON\n", ""):
            alarms.write_text(text)
            screens.append(await pressed(app, pilot, "r"))
        return table.row_count - before, screens

    more_rows, (grown, broken, repaired) = shown_during(app, go_on)
    assert more_rows == 1
    assert "9 train" in grown
    assert "alarms.jsonl, line 1 is damaged" in broken
    assert "step 4 of 4" in repaired


@pytest.mark.slow
def test_a_run_without_a_step_is_shown_too(run, open_run):
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        (run.path / name).write_text("")
    assert "step 0 of 4" in played(Dashboard(open_run), "b", "n", "s")[0]


@pytest.mark.slow
def test_a_group_that_a_resume_has_cut_off_is_said_to_be_gone(run, open_run, monkeypatch):
    # Else the dashboard may read the log again between the cut and the key.
    monkeypatch.setattr("grpo_report.terminal.dashboard._SECONDS", 3600)
    log = run.path / "rollouts.jsonl"
    kept = log.read_bytes()
    run.rollouts(5, replace(group(3, "cut off", ["gone"], [verdict(1.0)]), advantages=[0.0]))
    app = Dashboard(open_run)

    async def cut(pilot: Pilot[None]) -> tuple[str, str]:
        before = screen(app)
        log.write_bytes(kept)
        return before, await pressed(app, pilot, "n")

    before, after = shown_during(app, cut)
    assert "cut off" in before
    assert "this group is no longer in the log" in after


def test_a_fault_of_the_dashboard_ends_the_command_with_an_error(open_run, monkeypatch):
    def fail(self: Dashboard) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(Dashboard, "get_driver_class", lambda self: HeadlessDriver)
    monkeypatch.setattr(Dashboard, "action_refresh", fail)
    with pytest.raises(GrpoError, match="ended by the fault"):
        show_in_terminal(open_run)
