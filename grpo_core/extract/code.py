"""Find answers in blocks between code fences.

Of several blocks one is chosen by its marks alone: its label, its place, and what its lines look
like. Whether a block parses, runs or scores never matters; otherwise a policy could write a safe
answer first and a daring one last.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from grpo_core.extract.blocks import Block, NoAnswer
from grpo_core.extract.fences import fenced_blocks, labelled_first, why_no_block


def find_code(
    text: str, *, languages: Collection[str] = (), binds: str | None = None
) -> Block | NoAnswer:
    """Return the block of code that is the answer, or why there is none.

    Blocks with one of the languages go first; one without a label counts only where no block has
    one of them, since it often shows the output. Of several, the last one that binds a name counts,
    and the last one if none does. A block that is never closed was cut off and does not count.

    Args:
        text: the text to search.
        languages: the labels to accept, "" for a fence without one; all if empty.
        binds: a name, such as that of the function that is asked for. A block binds it if one of
            its lines defines it without an indent (`def`, `async def`, `class` or an assignment),
            whatever the other lines are. None: the last block counts.
    """
    fenced = fenced_blocks(text)
    candidates = labelled_first(fenced.closed, languages)
    if not candidates:
        return NoAnswer(why_no_block(text, fenced, languages))
    if binds is not None:
        pattern = re.compile(
            rf"(?:(?:async[ \t]+)?def|class)[ \t]+{re.escape(binds)}\b"
            rf"|{re.escape(binds)}[ \t]*(?::[^=\n]*)?=(?!=)"
        )
        binding = [b for b in candidates if any(map(pattern.match, b.content.split("\n")))]
        candidates = binding or candidates
    return candidates[-1]


def fenced_code(text: str, *, languages: Collection[str] = ()) -> Block | None:
    """Return the block that `find_code` finds, or None if there is none."""
    block = find_code(text, languages=languages)
    return block if isinstance(block, Block) else None
