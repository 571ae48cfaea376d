"""What a terminal of 80 columns shows of a run."""

import io
import re

import pytest

from grpo_core.calls.console import PrintableConsole
from grpo_core.display.console import RunProgress

METRICS = {
    "reward/mean": 0.123,
    "pass_rate": 0.5,
    "kl": 0.0123,
    "tokens/generated": 3000,
    "time/rollout": 2.0,
    "time/step": 12.3,
}
LINE = "the held-out reward was highest after step 120 (0.512); those weights are in checkpoints/best of the run"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return Terminal()


def rows(terminal: Terminal) -> list[str]:
    """Return the lines that were written, without what moves the cursor or colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    return [row.rstrip() for row in re.split(r"[\r\n]+", plain) if row.strip()]


def test_the_step_and_a_bar_are_shown_beside_the_facts(terminal: Terminal) -> None:
    with RunProgress(PrintableConsole(file=terminal)) as progress:
        progress.step(65, 300, METRICS)
        progress._bar.refresh()
    shown = rows(terminal)
    assert all(len(row) <= 80 for row in shown)
    (bar, facts) = shown[-2:]
    assert re.search(r"training +━+.* +65/300", bar), bar
    assert re.fullmatch(
        r"reward 0\.123  pass 50%  kl 0\.0123  1500 tok/s  12\.3 s/step  48 min left", facts
    ), facts


def test_a_long_line_is_broken_between_words_and_a_file_gets_it_whole(terminal: Terminal) -> None:
    with RunProgress(PrintableConsole(file=terminal)) as progress:
        progress.say(LINE)
    words = " ".join(rows(terminal))
    assert LINE in words
    file = io.StringIO()
    with RunProgress(PrintableConsole(file=file)) as progress:
        progress.say(LINE)
    assert file.getvalue() == f"{LINE}\n"
