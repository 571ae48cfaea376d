"""Find answers between tags such as <answer> and </answer>."""

from __future__ import annotations

from typing import Literal

from grpo_core.extract.blocks import Block, NoAnswer


def find_tag(text: str, *, tag: str) -> Block | NoAnswer:
    """Return the only block <tag>...</tag> of a text, or why there is none.

    Both marks must occur exactly once and in order, so that a policy cannot give many answers at
    once. The tag is case-sensitive and has no attributes.

    Args:
        text: the text to search.
        tag: the name of the tag.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    openings, closings = tag_counts(text, tag=tag)
    start, close = text.find(opening), text.rfind(closing)
    if (openings, closings) == (1, 1) and start < close:
        return Block(text[start + len(opening) : close], start, close + len(closing))
    if not openings and not closings:
        reason = "there is none" if text.strip() else "the text is empty"
    elif (openings, closings) == (1, 0):
        reason = "it is never closed"
    elif (openings, closings) == (1, 1):
        reason = f"{closing} precedes {opening}"
    else:
        reason = f"{opening} occurs {openings} times and {closing} {closings} times"
    return NoAnswer(f"looked for exactly one block {opening}...{closing}: {reason}")


def xml_tag(text: str, *, tag: str, which: Literal["only", "last"] = "only") -> Block | None:
    """Return the block <tag>...</tag>, or None if there is none.

    Args:
        text: the text to search.
        tag: the name of the tag, as for `find_tag`.
        which: "only" takes the block that `find_tag` finds. "last" takes the last complete block,
            from its innermost opening mark.
    """
    if which == "only":
        block = find_tag(text, tag=tag)
        return block if isinstance(block, Block) else None
    opening, closing = f"<{tag}>", f"</{tag}>"
    close = text.rfind(closing)
    start = text.rfind(opening, 0, max(close, 0))
    if start < 0:
        return None
    return Block(text[start + len(opening) : close], start, close + len(closing))


def tag_counts(text: str, *, tag: str) -> tuple[int, int]:
    """Return how often <tag> and </tag> occur in the text."""
    return text.count(f"<{tag}>"), text.count(f"</{tag}>")
