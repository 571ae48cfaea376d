"""Decide by what a task asks whether it is held out."""

from __future__ import annotations

import hashlib
import re


def held_out(text: str, share: float = 0.2) -> bool:
    """Return whether the task that asks `text` is held out, so that it belongs to "eval".

    It depends on the words of the text alone, not on their case and order, nor on spacing and
    punctuation, and is the same in every process and on every machine. A text without words, as of
    brackets, counts as it is, without its spacing.

    Args:
        text: what is asked, as far as tasks differ in it, such as the word to reverse. Where a
            hidden value makes another task of the same prompt, add it: `f"{word} {number}"`.
        share: the share of the texts that is held out, from 0 to 1.

    Raises:
        ValueError: `share` is not from 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; it has to be from 0 to 1")
    folded = text.casefold()
    words = re.findall(r"\w+", folded) or ["".join(folded.split())]
    digest = hashlib.sha256(" ".join(sorted(words)).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
