"""The texts: built-in sentences, in which number, verb and place agree, or the lines of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Literal

from grpo_core import MASK, ConfigError
from grpo_core.config.user_files import user_lines

Texts = dict[Literal["train", "eval"], Sequence[str]]

HELD_OUT = 0.2
"""Share of the texts that is held out. A hash of the text decides, so equal texts are always on the
same side."""

TIMES = (
    "Every morning",
    "In the evening",
    "On Sunday",
    "After the rain",
    "Before lunch",
    "In winter",
    "Late at night",
    "Once a week",
)
KINDS = ("old", "young", "tall", "quiet", "friendly", "busy")
COUNTS = ("two", "three", "four", "many", "a few")
WORK: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "baker": (
        ("bakes", "sells"),
        (("a loaf", "loaves"), ("a cake", "cakes")),
        ("in the bakery", "near the market"),
    ),
    "farmer": (
        ("feeds", "counts"),
        (("a goat", "goats"), ("a hen", "hens")),
        ("on the farm", "behind the barn"),
    ),
    "fisher": (
        ("catches", "cleans"),
        (("a trout", "trouts"), ("an eel", "eels")),
        ("by the river", "at the lake"),
    ),
    "teacher": (
        ("reads", "explains"),
        (("a story", "stories"), ("a poem", "poems")),
        ("in the school", "at the blackboard"),
    ),
    "painter": (
        ("paints", "shows"),
        (("a portrait", "portraits"), ("a bridge", "bridges")),
        ("in the studio", "on the wall"),
    ),
    "doctor": (
        ("visits", "helps"),
        (("a patient", "patients"), ("a child", "children")),
        ("in the hospital", "in the village"),
    ),
    "singer": (
        ("sings", "writes"),
        (("a song", "songs"), ("a ballad", "ballads")),
        ("on the stage", "in the theatre"),
    ),
    "sailor": (
        ("repairs", "paints"),
        (("a boat", "boats"), ("a sail", "sails")),
        ("in the harbour", "on the beach"),
    ),
    "gardener": (
        ("plants", "waters"),
        (("a rose", "roses"), ("an apple tree", "apple trees")),
        ("in the garden", "along the fence"),
    ),
    "tailor": (
        ("sews", "mends"),
        (("a coat", "coats"), ("a shirt", "shirts")),
        ("in the workshop", "at the window"),
    ),
}


def built_in() -> Texts:
    """Return all 23,040 sentences that can be made of the words above."""
    return _split(
        f"{time} the {kind} {person} {verb} {thing} {place}."
        for person, (verbs, things, places) in WORK.items()
        for time, kind, verb, (singular, plural), place in product(
            TIMES, KINDS, verbs, things, places
        )
        for thing in (singular, *(f"{count} {plural}" for count in COUNTS))
    )


def from_file(path: Path) -> Texts:
    """Read a file in which each line that is not empty is a text.

    Raises:
        ConfigError: The file cannot be read, has too few texts, or contains the mask.
    """
    lines = user_lines(path, holds="a text file with one text on each line (env.path)")
    texts = list(dict.fromkeys(" ".join(line.split()) for _, line in lines))
    if marked := next((text for text in texts if MASK in text), None):
        raise ConfigError(f"{path} has a text with {MASK}, which marks gaps: {marked[:80]!r}")
    splits = _split(texts)
    if not all(splits.values()):
        raise ConfigError(
            f"{path} has {len(texts)} different texts, too few to hold some out; give at least a "
            "few dozen"
        )
    return splits


def _split(texts: Iterable[str]) -> Texts:
    """Return the training and the held-out texts, each in an order given by a hash of the text."""
    numbers = {
        text: int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts
    }
    ordered = sorted(numbers, key=lambda text: numbers[text] % 2**32)
    held_out = {text for text in ordered if numbers[text] < HELD_OUT * 2**64}
    return {
        "train": [text for text in ordered if text not in held_out],
        "eval": [text for text in ordered if text in held_out],
    }
