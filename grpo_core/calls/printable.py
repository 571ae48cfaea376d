r"""Make any text safe to show: characters that a terminal obeys or hides become visible escapes.

Prompts, completions, the texts of verifiers and judges, names and error messages come from
untrusted code, models and files. Printed raw they can recolour a terminal, change its title, write
to its clipboard, overwrite an earlier line, or show text in a different order. So all of it goes
through `printable` before it reaches a terminal or log.txt.

These characters are escaped:

* Controls: C0 (ESC starts escape sequences, BS and CR overwrite), DEL, and C1 (U+009B is CSI, the
  same as ESC and a bracket). A tab stays. A newline stays where several lines are allowed, and
  CR LF counts as one newline.
* Bidirectional controls (U+061C, 200E, 200F, 202A-202E, 2066-2069): they reorder the text next to
  them.
* Line and paragraph separators (U+2028, 2029), which some programs treat as the end of a line.
* Invisible characters: the format characters of Unicode (category Cf: zero-width space, byte
  order mark, soft hyphen, tag characters and the like), fillers without a shape, and variation
  selectors without an effect. They hide text or make two names look the same.
* Lone surrogates, which UTF-8 cannot encode; private-use and unassigned characters, whose width
  programs do not know.

Text of every language stays, and so do emoji. Zero-width joiners stay between two emoji and within
words of the scripts that need them (Arabic, Syriac, Indic and others); one variation selector stays
after a character that it can vary; the number signs of Arabic stay, which are visible format
characters. Emoji that are newer than this Python stay. The flags of England, Scotland and Wales,
which consist of tag characters, are shown with escapes.

A backslash stays as it is, so an escape looks like the same letters typed out: the text is for
people. `printable_json` is for programs: it escapes the same characters so that JSON parsers
restore them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

MESSAGE_LIMIT = 2000
"""The most characters of a message; results are printed in full."""

_EMOJI = "\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_JOINING = (
    "\u0620-\u065f\u066e-\u06dc\u06df-\u06ef\u06fa-\u06ff\u0710-\u07ff\u0840-\u085f\u0870-\u0887"
    "\u08a0-\u08e1\u08e3-\u0dff\u0f00-\u109f\u1780-\u17b3\u17b6-\u17d3\u1807\u1820-\u18aa\u1900-\u1cff"
    "\ua800-\ua82f\ua840-\uabff\U00011000-\U000110bc\U000110c2-\U000110cc\U000110ce-\U00011fff\U0001e900-\U0001e95f"
)
"""Letters and marks, without format characters, of scripts whose spelling uses joiners."""

_IDEOGRAPHS = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_MEANINGFUL = re.compile(
    f"((?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])"
    f"|(?<=[{_JOINING}])[\u200c\u200d](?=[{_JOINING}])"
    f"|(?<=[0-9#*\xa9\xae\u203c\u2049\u2122\u2139{_EMOJI}])[\ufe0e\ufe0f]"
    f"|(?<=[\u2200-\u2aff\u1000-\u109f\ua840-\ua87f{_IDEOGRAPHS}])[\ufe00-\ufe0d]"
    f"|(?<=[{_IDEOGRAPHS}])[\U000e0100-\U000e01ef]"
    f"|(?<=[\u1820-\u18aa])[\u180b-\u180d\u180f])"
)
"""Invisible characters that change how their neighbours look, and therefore stay."""

_INVISIBLE = re.compile(f"[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0{_SELECTORS}]")
"""Characters without a visible shape that Unicode classifies as letters or marks."""

_VISIBLE_FORMATS = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd]")
"""Format characters that have a visible shape: the number signs of Arabic, Syriac and Kaithi."""

_FUTURE = re.compile("[\U0001f000-\U0001faff\U00020000-\U0003fffd]")
"""Blocks of emoji and ideographs, to which each version of Unicode adds characters."""

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_TABLE_SIZE = 20_000
"""The most characters whose replacement each table caches."""


def printable(text: str, *, lines: bool = True, limit: int | None = None) -> str:
    r"""Return a text that is safe to show: no part of it is obeyed, hidden or reordered.

    Args:
        text: any text, also one with lone surrogates.
        lines: whether it may have several lines; otherwise a newline becomes `\n`.
        limit: the most characters of the result; a cut text ends with its length.
    """
    cut_note = ""
    if limit is not None and len(text) > limit:
        cut_note = f"... ({len(text):,} characters)"
        text = text[: max(0, limit - len(cut_note))]
    shown = _escaped(text.replace("\r\n", "\n") if lines else text, _LINES if lines else _ONE_LINE)
    if limit is not None and len(shown) > limit:  # escapes are longer than characters
        cut_note = cut_note or f"... ({len(text):,} characters)"
        shown = shown[: max(0, limit - len(cut_note))]
    return shown + cut_note


def printable_json(document: str) -> str:
    r"""Return a JSON document of the same value that is safe to show.

    The characters that `printable` escapes become `\uXXXX`.

    Args:
        document: JSON, as `json.dumps` writes it with or without `ensure_ascii`.
    """
    return _escaped(document, _JSON)


def plain_markdown(text: str, *, limit: int | None = None) -> str:
    """Return one line of Markdown that shows a text literally: no link, HTML or table cell."""
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", printable(text, lines=False, limit=limit))


def _escaped(text: str, table: _Table) -> str:
    """Return the text with every character replaced as `table` says, except meaningful ones."""
    if text.isprintable() and not _INVISIBLE.search(text):  # then its only separators are spaces
        return text
    if text.isascii():
        return text.translate(table)
    parts = _MEANINGFUL.split(text)  # the characters to keep are at the odd indices
    parts[::2] = [part.translate(table) for part in parts[::2]]
    return "".join(parts)


class _Table(dict[int, str]):
    """Maps each code point to its replacement, which is computed on first use."""

    def __init__(self, kept: str, escape: Callable[[int], str]) -> None:
        super().__init__({ord(character): character for character in kept})
        self._escape = escape

    def __missing__(self, code: int) -> str:
        shown = self._escape(code) if _is_hidden(chr(code)) else chr(code)
        if len(self) < _TABLE_SIZE:
            self[code] = shown
        return shown


def _is_hidden(character: str) -> bool:
    """Return whether a character must be escaped where it does not change its neighbours."""
    category = unicodedata.category(character)
    if category not in _HIDDEN_CATEGORIES:
        return _INVISIBLE.match(character) is not None
    if category == "Cf":
        return _VISIBLE_FORMATS.match(character) is None
    return category != "Cn" or _FUTURE.match(character) is None


def _escape(code: int) -> str:
    r"""Write a character as Python does: \n, \x1b, \u202e, \U000e0041."""
    return ascii(chr(code))[1:-1]


def _json_escape(code: int) -> str:
    r"""Write a character as JSON does: \u202e, or two surrogates such as \udb40\udc41."""
    return re.sub("....", r"\\u\g<0>", chr(code).encode("utf-16-be", "surrogatepass").hex())


_LINES = _Table("\n\t", _escape)
_ONE_LINE = _Table("\t", _escape)
_JSON = _Table("\n\t", _json_escape)
"""Newlines and tabs stay: they are between values, because JSON escapes them inside strings."""
