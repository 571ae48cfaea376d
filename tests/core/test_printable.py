"""Test how text is made safe before it is shown."""

import io
import json
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.printable import plain_markdown, printable, printable_json
from grpo_core.calls.streams import PrintableStream, beneath, printable_streams
from grpo_core.runs.folder import RunFolder

ANY = st.text(
    st.characters(codec=None)
    | st.sampled_from("\x1b\r\n\t\x9b\u202e\u200d\u200c\ufe0f\u0645\u093f👩❤🏽")
)
BAD = {"Cc", "Cs", "Co", "Zl", "Zp"}

READABLE = [
    "Grüße, naïve façade — “quotes” 1 234 €",
    "Привет 你好 こんにちは 안녕하세요 สวัสดี",
    "שלום עולם مرحبا بالعالم می‌روم",  # with the zero-width non-joiner of Persian
    "क्‍ष हिन्दी বাংলা தமிழ்",
    "👩‍👩‍👧‍👦 👩🏽‍🚀 ❤️ 1️⃣ 🇩🇪 🏳️‍🌈 ✔︎",
    "葛󠄀城",  # an ideograph in a variant that is used in names
    "∑ ≤ ≠ → █▁▂ ┃ x² \u00a0 a\tb",
    "\N{ARABIC NUMBER SIGN}12",
]
SHOWN = {
    "\x1b[31mred": r"\x1b[31mred",
    "\x1b]52;c;eA==\x07": r"\x1b]52;c;eA==\x07",
    "over\rwritten\b": r"over\rwritten\x08",
    "\x9b31m\x7f\x00": r"\x9b31m\x7f\x00",
    "a\u202eb\u2066\u061c\u200e": r"a\u202eb\u2066\u061c\u200e",
    "a\u2028b\u2029": r"a\u2028b\u2029",
    "a\u200bb\ufeff\u00ad\u200dc": r"a\u200bb\ufeff\xad\u200dc",
    "\U000e0041": r"\U000e0041",
    "\ud800 \udfff": r"\ud800 \udfff",
    "\ue000 \uffff \u0378": r"\ue000 \uffff \u0378",
    "a\ufe0f👩\ufe0f\ufe0f\u3164": "a\\ufe0f👩\ufe0f\\ufe0f\\u3164",
    "👩\u200d\u200d👩": r"👩\u200d\u200d👩",
}


@pytest.mark.parametrize("text", READABLE)
def test_text_of_every_language_and_emoji_stay(text: str) -> None:
    assert printable(text) == text
    assert printable(text, lines=False) == text


@pytest.mark.parametrize(("text", "shown"), list(SHOWN.items()))
def test_characters_that_are_obeyed_or_hidden_become_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_stay_only_where_they_may() -> None:
    assert printable("a\nb\r\nc\rd") == "a\nb\nc\\rd"
    assert printable("a\nb\r\nc", lines=False) == r"a\nb\r\nc"


def test_a_cut_text_says_so_and_escapes_count() -> None:
    assert printable("x" * 5000, limit=50) == "x" * 28 + "... (5,000 characters)"
    assert len(printable("\x1b" * 5000, limit=50)) == 50
    assert len(printable("\x1b" * 49, limit=50)) == 50
    assert printable("x" * 50, limit=50) == "x" * 50


@settings(deadline=None)
@given(ANY)
def test_any_text_becomes_printable_and_stays_as_it_is_then(text: str) -> None:
    shown = printable(text)
    assert not {c for c in shown if unicodedata.category(c) in BAD} - {"\n", "\t"}
    assert not set(shown) & set("\u202e\u2066\u200b\ufeff")
    assert printable(shown) == shown
    assert "\n" not in printable(text, lines=False)
    shown.encode()


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False) | ANY,
        lambda inner: st.lists(inner) | st.dictionaries(ANY, inner),
    )
)
def test_json_stays_equal(value: object) -> None:
    plain = json.dumps(value, ensure_ascii=False)
    shown = printable_json(plain)
    # The two differ if two halves of a surrogate pair became one character.
    if json.loads(json.dumps(value)) == value:
        assert json.loads(shown) == value
    assert printable(shown) == shown


@pytest.mark.sampled(1)
@pytest.mark.parametrize("piece", ["x", "\x1b[5m", "中文", "👩\u200d", "\ufe0f", "\u202e", "a\n"])
def test_a_megabyte_takes_no_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    printable(text)
    assert time.process_time() - started < 5  # about 0.2 s; a quadratic algorithm would take hours


def test_a_stream_makes_text_printable_and_ends_lines_at_returns() -> None:
    out = io.StringIO()
    stream = PrintableStream(out)
    for text in ("a\x1b[1m", "b\r", "\nc\r", "d\r\n", "e"):
        stream.write(text)
    assert out.getvalue() == "a\\x1b[1mb\nc\nd\ne"
    assert not stream.isatty()
    assert beneath(PrintableStream(stream)) is out


def test_prints_are_printable_inside_the_block_only(capsys: pytest.CaptureFixture[str]) -> None:
    with printable_streams():
        print("\x1b")
        print("\x9b", file=sys.stderr)
    print("\x1b")
    assert capsys.readouterr() == ("\\x1b\n\x1b\n", "\\x9b\n")


def test_a_console_shows_names_letter_by_letter() -> None:
    """A class called Bug was once printed as an emoji."""
    out = io.StringIO()
    page = PrintableConsole(file=out)
    table = Table("file.py:Bug:1", title="[bold]T[/bold]")
    table.add_row("[link=http://x]:bug:[/link]\x1b[5m")
    page.print(table, Text("\x1b]0;T\x07", "link http://evil"), ":bug:", markup=True, emoji=True)
    shown = out.getvalue()
    # A Text drops the bell by itself.
    for text in ("file.py:Bug:1", "[bold]T[/bold]", r"[link=http://x]:bug:[/link]\x1b[5m"):
        assert text in shown
    assert r"\x1b]0;T" in shown
    assert "\x1b" not in shown


def test_the_log_cannot_be_forged_and_is_bounded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log("step 1\nstopped: \x1b[2J\r\n  kept")
    folder.log("x" * 1_000_000)
    folder.log("a\n" * 100_000)
    lines = (tmp_path / "log.txt").read_text().split("\n")
    assert lines[:3] == ["step 1", r"  stopped: \x1b[2J", "  kept"]
    assert lines[3].endswith("... (1,000,000 characters)")
    assert max(map(len, lines)) <= 10_000
    assert len(lines) < 2000


def test_markdown_shows_a_name_as_it_is() -> None:
    assert plain_markdown("a|b `c` [d](e) <img>\n---") == r"a\|b \`c\` \[d\](e) \<img>\\n---"
