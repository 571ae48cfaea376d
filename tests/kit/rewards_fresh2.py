"""Reward functions of users, of the second fresh part; most of them have a fault."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
STOP_WORDS = frozenset(
    ["a", "an", "and", "are", "is", "it", "no", "not", "of", "or", "that", "the", "there", "to"]
)
MEAN = {"mean": 0.0}
CACHE: dict[str, float] = {}


def without_stop_words(text: str, row: Row) -> float:
    """Compare the words that matter."""
    said, right = (
        [word for word in words.lower().split() if word not in STOP_WORDS]
        for words in (text, row["enough"])
    )
    return float(said == right)


def length_penalty(text: str, row: Row) -> float:
    """Pay for a right answer, and less for a long one."""
    return max(0.0, float(text.strip() == row["answer"]) - len(text) / 1000)


def with_remark(text: str, row: Row) -> object:
    """Return a score and why."""
    return (1.0, "right") if text.strip() == row["answer"] else (0.0, "wrong")


def with_unit(text: str, row: Row) -> float:
    """Compare number and unit."""
    return float(text.split() == [row["answer"], row["unit"]])


def any_alias(text: str, row: Row) -> float:
    """Accept any spelling that the row lists."""
    return float(text.strip() in row["aliases"].split("|"))


def against_the_mean(text: str, row: Row) -> float:
    """Pay right answers less, the more of them there were."""
    right = float(text.strip() == row["answer"])
    paid = right * min(1.0, 1.5 - MEAN["mean"])
    MEAN["mean"] += 0.1 * (right - MEAN["mean"])
    return paid


def cached(text: str, row: Row) -> float:
    """Compare a reply once."""
    if text not in CACHE and len(CACHE) < 10_000:
        CACHE[text] = float(text.strip() == row["answer"])
    return CACHE.get(text, 0.0)


def row_first(row: Row, text: str) -> float:
    """Take the arguments in the other order."""
    return float(text.strip() == row["answer"])


async def awaited(text: str, row: Row) -> float:
    """Compare, some time."""
    return float(text.strip() == row["answer"])


def three_digits(text: str, row: Row) -> float:
    """Compare three significant digits."""
    try:
        return float(f"{float(text):.3g}" == f"{float(row['answer']):.3g}")
    except ValueError:
        return 0.0


def strict_alias(text: str, row: Row) -> float:
    """Accept a spelling that the row lists."""
    said = text.strip()
    return float(said != "" and said in row["aliases"].split("|"))


def number_and_unit(text: str, row: Row) -> float:
    """Compare the number, and the unit where the row has one."""
    right = [row["answer"], row["unit"]] if "unit" in row else [row["answer"]]
    return float(text.split() == right)


def last_step(text: str, row: Row) -> float:
    """Compare the whole working, line by line."""
    return float(text.split() == row["solution"].split())
