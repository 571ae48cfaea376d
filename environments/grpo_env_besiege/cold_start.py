"""Makes answers for supervised training before GRPO: random machines of a few designs.

Only machines that solve the task are used; each comes with the reasoning of its builder.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from grpo_core import reaches
from grpo_env_besiege.levels import Level
from grpo_env_besiege.machines import tree as built
from grpo_env_besiege.measure import measure
from grpo_env_besiege.physics import DEFAULT, Physics
from grpo_env_besiege.tree import Tree, to_json
from grpo_env_besiege.validity import check_tree

TRIES = 60
"""Machines that are drawn at most for a task."""
BEAM, LOG, WHEEL, BALLAST, CUBE, SPIN, HINGE, BAND, BOWL, BOULDER = (
    "1",
    "63",
    "2",
    "35",
    "15",
    "22",
    "5",
    "9",
    "30",
    "36",
)
SIDES: Mapping[str, tuple[tuple[int, int], ...]] = {
    BEAM: ((1, 3), (2, 4)),
    LOG: ((1, 4), (2, 5), (3, 6)),
}
"""Pairs of points on the left and right side of a beam, the nearest to its parent first."""
NAMES = {BEAM: "Wooden block", LOG: "Log"}


@dataclass(frozen=True, slots=True)
class MachineExample:
    """A machine with its builder's reasoning."""

    tree: Tree
    """The machine."""
    thoughts: str
    """The reasoning, for the <cot> block."""
    idea: str
    """The construction idea in one sentence."""


def draw_example(
    rng: random.Random, level: Level, *, most: int, least: float, physics: Physics = DEFAULT
) -> MachineExample | None:
    """Draw a machine of at most `most` blocks whose score is at least `least`.

    Returns:
        The machine, or None if none of 60 drawn ones fits, as for some tasks of the ring, and for
        the hoop with fewer than 16 blocks.
    """
    draw = _design(level)
    for _ in range(TRIES):
        example = draw(rng)
        checked = check_tree(example.tree)
        if not checked.valid or checked.machine is None or len(example.tree) > most:
            continue
        if reaches(measure(checked.machine, level, physics=physics).score.value, least):
            return example
    return None


def _design(level: Level) -> Callable[[random.Random], MachineExample]:
    """Return the function that draws machines for this level.

    The hoop needs rubber bands: none of the drawn arms on a turning block throws through it in
    both coarse and fine time steps.
    """
    if level.family != "catapult":
        return _car
    return _band_catapult if level.goal is not None and level.goal.kind == "hoop" else _catapult


def answer_of(example: MachineExample, *, short: bool) -> str:
    """Write an example in the form that the prompt asks for; if `short`, only the machine."""
    if short:
        return compact(example.tree)
    return (
        f"<cot>\n{example.thoughts}\n</cot>\nConstruction Idea: {example.idea}\n"
        f"```json\n{to_json(example.tree)}\n```"
    )


def compact(tree: Tree) -> str:
    """Return the list of blocks as JSON without spaces."""
    return json.dumps(json.loads(to_json(tree)), separators=(",", ":"))


def _car(rng: random.Random) -> MachineExample:
    """Draw a car: beams before and behind the root, and wheels on both sides of some of them."""
    kinds = [rng.choice((BEAM, LOG)) for _ in range(rng.randint(2, 3))]
    blocks: list[tuple[str | int, ...]] = []
    ends = [(0, 0), (0, 1)]  # where a beam goes on, ahead and behind
    for number, kind in enumerate(kinds, 1):
        side = (number - 1) % 2
        parent, point = ends[side]
        blocks.append((kind, parent, point))
        ends[side] = (number, 0)
    places = [(number, pair) for number, kind in enumerate(kinds, 1) for pair in SIDES[kind]]
    pairs = sorted(rng.sample(places, min(len(places), rng.choice((2, 2, 2, 3)))))
    blocks += [(WHEEL, number, point) for number, pair in pairs for point in pair]
    if heavy := rng.random() < 0.3:
        blocks.append((BALLAST, 0, 4))
    beams = ", ".join(f"a {NAMES[kind]}" for kind in kinds)
    wheels = "; ".join(
        f"block {number} at its points {left} and {right}" for number, (left, right) in pairs
    )
    thoughts = (
        "The root is the middle. Along z, ahead and behind it in turn, I put "
        f"{beams}: that is the frame.\n"
        "Powered wheels drive forward only where they face left or right, so they go in pairs on "
        f"{wheels}.\n"
        "Wheels are 2 m across: on one side they have to be 2 m apart, or they overlap."
    )
    thoughts += "\nA Ballast on the root presses the wheels on the road." if heavy else ""
    return MachineExample(
        built(*blocks),
        thoughts,
        f"A car with {2 * len(pairs)} powered wheels on a frame of {len(kinds)} beams.",
    )


def _catapult(rng: random.Random) -> MachineExample:
    """Draw a catapult with a rotor.

    It is a cross of logs, a tower, and an arm on a turning block with a container at its end.
    """
    blocks: list[tuple[str | int, ...]] = [(LOG, 0, side) for side in range(4)]
    blocks += [(CUBE, 0, 4)]
    if high := rng.random() < 0.4:
        blocks.append((CUBE, len(blocks), 0))
    blocks.append((SPIN, len(blocks), 2))
    arm = list(_draw_arm(rng))
    turning = len(blocks)
    blocks.append((arm[0], turning, 2))
    for kind in arm[1:]:
        blocks.append((kind, len(blocks), 0))
    blocks.append((BOWL, len(blocks), rng.choice((0, 3 if arm[-1] == CUBE else 0))))
    blocks.append((BOULDER, len(blocks), 0))
    weights = rng.randint(0, 3)
    blocks += [(BALLAST, log, 0) for log in (1, 2, 3)[:weights]]
    length = sum({LOG: 3, BEAM: 2, CUBE: 1}[kind] for kind in arm)
    thoughts = (
        "Four Logs around the root make a base that does not topple.\n"
        f"On it stands a tower of {2 if high else 1} m, and on its side a Rotating block, which "
        "turns what is on its points 1 to 4.\n"
        f"Its point 2 holds an arm of {length} m: a longer one throws faster, and is heavier to "
        "turn.\n"
        "At the end of the arm a Container holds the one Boulder, and lets it leave."
    )
    thoughts += (
        f"\n{weights} Ballast blocks on the ends of the base hold it down." if weights else ""
    )
    return MachineExample(
        built(*blocks), thoughts, f"A catapult with an arm of {length} m on a turning block."
    )


def _band_catapult(rng: random.Random) -> MachineExample:
    """Draw a catapult with rubber bands.

    It is a cross of logs, an arm on a hinge, and a post before it whose rubber bands pull the arm
    up.
    """
    blocks: list[tuple[str | int, ...]] = [(LOG, 0, side) for side in range(4)]
    blocks += [
        (CUBE, 0, 4),
        (HINGE, 5, 3),
        (LOG, 6, 0),
        (CUBE, 7, 0),
        (BOWL, 8, 3),
        (BOULDER, 9, 0),
        (LOG, 1, 9),
    ]
    heavy = sorted(rng.sample((1, 3, 4), rng.randint(0, 3)))
    blocks += [(BALLAST, log, 0) for log in heavy]
    blocks += [(BAND, 11, 0, 7, point) for point in (9, 3, 6, 8)]
    thoughts = (
        "Four Logs around the root make a base that does not topple.\n"
        "On it stands a block with a Hinge at its back, which holds an arm: a Log, a block, and a "
        "Container for the one Boulder.\n"
        "A Log stands upright on the far end of the front one. Four Rubber bands from its top to "
        "the arm are stretched: they pull the arm up and forward, faster than a Rotating block "
        "turns."
    )
    thoughts += (
        f"\n{len(heavy)} Ballast blocks on the ends of the base hold it down." if heavy else ""
    )
    return MachineExample(
        built(*blocks),
        thoughts,
        "A catapult whose arm is on a hinge and pulled by four rubber bands.",
    )


def _draw_arm(rng: random.Random) -> Iterator[str]:
    yield rng.choice((BEAM, LOG))
    if rng.random() < 0.6:
        yield rng.choice((CUBE, BEAM))
