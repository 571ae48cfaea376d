r"""Make any text safe to show: what a terminal would obey or hide becomes a visible escape.

Prompts, completions, the words of verifiers and judges, names and error messages come from code,
models and files that nobody checked. Printed raw they can recolour a terminal, change its title,
write to its clipboard, overwrite a line that was printed before, or show text in another order.
So all of it goes through `printable` before it reaches a terminal or log.txt.

What is escaped, and why:

* Controls: C0 (ESC starts escape sequences, BS and CR overwrite), DEL, and C1 (U+009B is CSI, the
  same as ESC and a bracket). A tab stays. A newline stays where several lines are allowed, and CR LF
  is one.
* Bidirectional controls (U+061C, 200E, 200F, 202A-202E, 2066-2069): they reorder what stands
  beside them.
* Line and paragraph separators (U+2028, 2029), which some programs take for the end of a line.
* Invisible characters: the format characters of Unicode (category Cf: zero-width space, byte
  order mark, soft hyphen, tag characters and the like), fillers that look like nothing, and
  variation selectors that select nothing. They hide text or make two names look the same.
* Lone surrogates, which UTF-8 cannot encode; private-use and unassigned characters, of which
  programs do not know how wide they are.

What stays: text of every language and emoji. Zero-width joiners stay between two emoji and within
words of the scripts that need them (Arabic, Syriac, Indic and others); a variation selector stays
once after a character that it can vary; number signs of Arabic stay, which are format characters
that one can see. Characters for emoji that this Python does not know yet stay. The flags of
England, Scotland and Wales, which consist of tag characters, are shown with escapes.

A backslash stays as it is, so an escape looks like the same letters typed out: the text is for
people. `printable_json` is for programs: it escapes the same characters in a way that JSON reads back.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_EMOJI = "\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_JOINING = (
    "\u0620-\u065f\u066e-\u06dc\u06df-\u06ef\u06fa-\u06ff\u0710-\u07ff\u0840-\u085f\u0870-\u0887"
    "\u08a0-\u08e1\u08e3-\u0dff\u0f00-\u109f\u1780-\u17b3\u17b6-\u17d3\u1807\u1820-\u18aa\u1900-\u1cff"
    "\ua800-\ua82f\ua840-\uabff\U00011000-\U000110bc\U000110c2-\U000110cc\U000110ce-\U00011fff\U0001e900-\U0001e95f"
)
"""Letters and marks of scripts whose spelling uses joiners (without their format characters)."""

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
"""Invisible characters where they change how their neighbours look, so that they stay."""

_INVISIBLE = re.compile(f"[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0{_SELECTORS}]")
"""Characters that show nothing although Unicode calls them letters or marks."""

_VISIBLE_FORMATS = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd]")
"""Format characters that have a shape: the number signs of Arabic, Syriac and Kaithi."""

_FUTURE = re.compile("[\U0001f000-\U0001faff\U00020000-\U0003fffd]")
"""Blocks of emoji and ideographs, in which each version of Unicode assigns more."""

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MEMORY = 20_000
"""Of how many characters each table keeps what becomes of them."""


def printable(text: str, *, lines: bool = True, limit: int | None = None) -> str:
    r"""Return a text that can be shown as it is: nothing in it is obeyed, hidden or reordered.

    Args:
        text: any text, also one with lone surrogates.
        lines: whether it may have several lines; otherwise a newline becomes `\n`.
        limit: the most characters of the result; what was cut says how long it was.
    """
    cut = ""
    if limit is not None and len(text) > limit:
        cut = f"... ({len(text):,} characters)"
        text = text[: max(0, limit - len(cut))]
    shown = _translated(
        text.replace("\r\n", "\n") if lines else text, _LINES if lines else _ONE_LINE
    )
    if limit is not None and len(shown) > limit:  # escapes are longer than what they stand for
        cut = cut or f"... ({len(text):,} characters)"
        shown = shown[: max(0, limit - len(cut))]
    return shown + cut


def printable_json(document: str) -> str:
    r"""Return a JSON document of the same value that can be shown, with `\uXXXX` for what `printable` escapes.

    Args:
        document: JSON, as `json.dumps` writes it with or without `ensure_ascii`.
    """
    return _translated(document, _JSON)


def plain_markdown(text: str, *, limit: int | None = None) -> str:
    """Return one line of Markdown that shows a text as it is: no link, no HTML, no further cell."""
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", printable(text, lines=False, limit=limit))


def _translated(text: str, table: _Table) -> str:
    if text.isprintable() and not _INVISIBLE.search(text):  # a space is the only separator here
        return text
    if text.isascii():
        return text.translate(table)
    parts = _MEANINGFUL.split(text)  # the kept characters stand at odd places
    parts[::2] = [part.translate(table) for part in parts[::2]]
    return "".join(parts)


class _Table(dict[int, str]):
    """What becomes of each character, computed when it is first met."""

    def __init__(self, kept: str, escape: Callable[[int], str]) -> None:
        super().__init__({ord(character): character for character in kept})
        self._escape = escape

    def __missing__(self, code: int) -> str:
        shown = self._escape(code) if _hidden(chr(code)) else chr(code)
        if len(self) < _MEMORY:
            self[code] = shown
        return shown


def _hidden(character: str) -> bool:
    category = unicodedata.category(character)
    if category not in _HIDDEN_CATEGORIES:
        return _INVISIBLE.match(character) is not None
    if category == "Cf":
        return _VISIBLE_FORMATS.match(character) is None
    return category != "Cn" or _FUTURE.match(character) is None


def _escape(code: int) -> str:
    r"""Write a character as Python does: \n, \x1b, \u202e, \U000e0041."""
    short = {0x0A: "\\n", 0x0D: "\\r"}.get(code)
    return short or (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def _json_escape(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


_LINES = _Table("\n\t", _escape)
_ONE_LINE = _Table("\t", _escape)
_JSON = _Table(
    "\n\t", _json_escape
)  # these stand between values; inside of strings JSON has escaped them
