"""Word problems of our own: somebody has things, and a few events later one asks how many."""

from __future__ import annotations

import random

from grpo_env_gsm8k.records import Problem

NAMES = (
    "Mia",
    "Noah",
    "Lena",
    "Omar",
    "Priya",
    "Jonas",
    "Aiko",
    "Luis",
    "Zoe",
    "Ivan",
    "Nora",
    "Samir",
)
THINGS = (
    "apples",
    "marbles",
    "stickers",
    "books",
    "shells",
    "cards",
    "stamps",
    "pencils",
    "coins",
    "buttons",
)
SMALL, LARGE = 10, 60


def word_problem(rng: random.Random, level: float, *, held_out: bool) -> Problem:
    """One event at level 0, five at level 1, and larger numbers. Who begins with an even number is for training, an odd one for held-out
    tasks, so that the two never share a question."""
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    most = SMALL + round((LARGE - SMALL) * level)
    have = 2 * rng.randint(2, most // 2) + held_out
    told, steps = [f"{name} has {have} {things}."], []
    for _ in range(1 + round(4 * level)):
        sentence, have, step = _event(rng, name, other, things, have, most)
        told.append(sentence)
        steps.append(step)
    question = " ".join([*told, f"How many {things} does {name} have now?"])
    return Problem(question, str(have), "\n".join(steps))


def _event(
    rng: random.Random, name: str, other: str, things: str, have: int, most: int
) -> tuple[str, int, str]:
    """What happens, how many there are then, and how one knows."""
    kinds = (
        ["buys", "gets"]
        + (["gives", "loses"] if have > 2 else [])
        + (["doubles", "bags"] if have <= most else [])
    )
    kind, n = rng.choice(kinds), rng.randint(2, most)
    if kind == "buys":
        return f"{name} buys {n} more.", have + n, f"{have} + {n} = {have + n} {things}."
    if kind == "gets":
        each = rng.randint(2, 5)
        more = each * (n := rng.randint(2, 5))
        return (
            f"{n} friends give {name} {each} {things} each.",
            have + more,
            f"The friends give {n} * {each} = {more} {things}. {have} + {more} = {have + more} {things}.",
        )
    if kind == "doubles":
        return (
            f"{other} gives {name} as many as {name} has already.",
            2 * have,
            f"{have} * 2 = {2 * have} {things}.",
        )
    if kind == "bags":
        bags, each = rng.randint(2, 4), rng.randint(2, 6)
        return (
            f"{name} finds {bags} bags with {each} {things} in each.",
            have + bags * each,
            f"The bags hold {bags} * {each} = {bags * each} {things}. {have} + {bags * each} = {have + bags * each} {things}.",
        )
    n = rng.randint(1, have - 1)
    verb = f"gives {n} of them to {other}" if kind == "gives" else f"loses {n} of them"
    return f"{name} {verb}.", have - n, f"{have} - {n} = {have - n} {things}."
