"""Makes word problems from templates: a person has things, some events follow, and how many now?"""

from __future__ import annotations

import random

from grpo_env_gsm8k.records import WordProblem

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


def word_problem(rng: random.Random, level: float, *, held_out: bool) -> WordProblem:
    """Make a random problem with one event at level 0 up to five at level 1, and larger numbers.

    The person begins with an even number in training and with an odd one in held-out problems, so
    the two never share a question.
    """
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    most = SMALL + round((LARGE - SMALL) * level)
    have = 2 * rng.randint(2, most // 2) + held_out
    sentences, steps = [f"{name} has {have} {things}."], []
    for _ in range(1 + round(4 * level)):
        sentence, have, step = _draw_event(rng, name, other, things, have, most)
        sentences.append(sentence)
        steps.append(step)
    question = " ".join([*sentences, f"How many {things} does {name} have now?"])
    return WordProblem(question, str(have), "\n".join(steps))


def _draw_event(
    rng: random.Random, name: str, other: str, things: str, have: int, most: int
) -> tuple[str, int, str]:
    """Draw an event.

    Returns:
        The sentence that tells it, the number of things after it, and the calculation.
    """
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
            f"The friends give {n} * {each} = {more} {things}. "
            f"{have} + {more} = {have + more} {things}.",
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
            f"The bags hold {bags} * {each} = {bags * each} {things}. "
            f"{have} + {bags * each} = {have + bags * each} {things}.",
        )
    n = rng.randint(1, have - 1)
    verb = f"gives {n} of them to {other}" if kind == "gives" else f"loses {n} of them"
    return f"{name} {verb}.", have - n, f"{have} - {n} = {have - n} {things}."
