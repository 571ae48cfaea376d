"""Find the blocks between code fences, as CommonMark has them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grpo_core.extract.blocks import WHITE_SPACE, Block

_BYTE_ORDER_MARK = "\ufeff"
_FENCE = re.compile(r"(?P<marks>`{3,}|~{3,})(?P<info>.*)")
_LIST_MARKER = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])[ \t]+(?=```|~~~)")
_LABEL = re.compile(r"\{?[\s.]*([^\s{},:=]*)")
"""The language in python, {.python}, {python, echo=FALSE} and python:a.py."""
_MARKS = re.compile("```|~~~")
_LINE_END = re.compile(r"[\r\n]")
_SHOWN_LABELS = 5


@dataclass(frozen=True, slots=True)
class FencedBlocks:
    """Holds the blocks of a text."""

    closed: tuple[Block, ...]
    """The blocks in order."""
    is_cut: bool
    """Whether a fence is never closed: the text was cut off, so what follows it does not count."""


def fenced_blocks(text: str) -> FencedBlocks:
    """Return the blocks between code fences (``` or ~~~) of a text.

    A fence is alone on its line, behind white space or the marker of a list item. The closing one
    has the same characters, at least as many, and no label.
    """
    blocks: list[Block] = []
    fence, label, indent, start, inside, position = "", "", 0, 0, 0, 0
    while marks := _MARKS.search(text, position):
        line_start = _line_start(text, position, marks.start())
        position = _line_end(text, marks.end())
        line = text[line_start:position]
        if not fence:
            if opened := _opening(line):
                fence, label, indent = opened
                start, inside = line_start, position
            continue
        stripped = line.strip(WHITE_SPACE)
        if len(stripped) >= len(fence) and not stripped.strip(fence[0]):
            blocks.append(Block(_content(text[inside:line_start], indent), start, position, label))
            fence = ""
    return FencedBlocks(tuple(blocks), bool(fence))


def _line_start(text: str, begin: int, place: int) -> int:
    """Return where the line with the character at `place` begins; at `begin` at the earliest."""
    return max(text.rfind("\n", begin, place) + 1, text.rfind("\r", begin, place) + 1, begin)


def _line_end(text: str, place: int) -> int:
    """Return where the line with the character at `place` ends."""
    match = _LINE_END.search(text, place)
    return len(text) if match is None else match.start()


def _opening(line: str) -> tuple[str, str, int] | None:
    """Return marks, label and indent of an opening fence; None for any other line.

    The marker of a list item is no indent: many models begin the lines below it at the margin, and
    where they do not, `_content` removes what all lines share.
    """
    rest = line.lstrip(" \t" + _BYTE_ORDER_MARK)
    before = line[: len(line) - len(rest)]
    if marker := _LIST_MARKER.match(rest):
        rest = rest[marker.end() :]
    match = _FENCE.match(rest)
    if match is None or (match["marks"][0] == "`" and "`" in match["info"]):
        return None
    info = match["info"].strip(WHITE_SPACE + _BYTE_ORDER_MARK)
    label = _LABEL.match(info)
    name = label.group(1) if label is not None else ""
    indent = len(before) - before.count(_BYTE_ORDER_MARK)
    return match["marks"], (name or info).lower(), indent


def _content(inside: str, indent: int) -> str:
    """Return the lines of a block without its fence's indent, and without one of their own.

    Args:
        inside: the text between the lines of the fences, with the line ends around it.
        indent: how many characters of white space begin the line of the opening fence.
    """
    lines = inside.replace("\r\n", "\n").replace("\r", "\n").split("\n")[1:-1]
    lines = [line[min(indent, _indent_of(line)) :] for line in lines]
    if lines:
        lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
    margin = min((_indent_of(line) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] if line.strip() else line for line in lines)


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def labelled_first(blocks: Sequence[Block], languages: Collection[str]) -> Sequence[Block]:
    """Return the blocks with one of the languages, or else those without a label, if accepted."""
    if not languages:
        return blocks
    accepted = [block for block in blocks if block.language in languages]
    return [block for block in accepted if block.language] or accepted


def why_no_block(text: str, fenced: FencedBlocks, languages: Collection[str]) -> str:
    """Return what was looked for between fences, and what was there."""
    wanted = " or ".join(sorted(language for language in languages if language)[:_SHOWN_LABELS])
    if fenced.closed:
        labels = list(dict.fromkeys(f"{block.language!r:.30}" for block in fenced.closed))
        what = f"only blocks labelled {', '.join(labels[:_SHOWN_LABELS])}"
    elif fenced.is_cut:
        what = "one that is never closed"
    else:
        what = "none" if text.strip() else "none, the text is empty"
    named = f" labelled {wanted}" if wanted else ""
    return f"looked for a block between code fences{named}: found {what}"
