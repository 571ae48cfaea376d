"""Scores a run: a pure function of its trajectory, guarded against ways to exploit the physics.

* Carrying the boulder, or flinging it with the whole machine: relative to the machine's centre of
  mass, the boulder has to gain a quarter of its distance.
* Swinging it around without letting go: it has to come down, or be clear of all blocks at the end.
* Rolling it: it has to rise above 3 m; its distance ends where it first comes down.
* Moving in any direction: the distance is signed, forwards or along the level's path.
* Building the boulder's place high: height counts from where the boulder was when power came on.
* Several boulders, or blocks that the level does not allow: the score is 0.
* Throwing the root off: a car's place is the centre of its whole mass, and more than half of the
  mass has to hold together.
* A solver that blows up: the run has a fault; `measure` runs twice, the second time in finer steps,
  and takes the lower score.

Formula "paper": a car's distance; a boulder's rise x its distance (the paper's performance, with
the height taken from the start); with a goal, 1 for reaching it, and up to 0.5 for the share of the
distance to it that is closed. Formula "code": the intention of the published reward code,
without direction and measured at the root, with only its own gates (3 m; boulder and root a quarter
of the distance apart); with a goal 1 or 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from grpo_env_besiege.blocks import BLOCKS, BOULDER
from grpo_env_besiege.levels import Goal, Level, Place
from grpo_env_besiege.trajectory import Flight, Frame, Trajectory
from grpo_env_besiege.tree import MachineFault, Tree

Formula = Literal["paper", "code"]
HIGH = 3.0
"""Height in m above which a thrown boulder has to rise."""
APART = 0.25
"""Share of its distance that a boulder has to gain on the machine."""
CLEAR = 2.5
"""Distance in m from every block at which a boulder in flight is clear of the machine."""
HELD = 0.5
"""Share of the machine's mass of which more has to hold together with the root."""
NEAR = 0.5
"""Highest score for coming nearer to a goal without reaching it."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a run."""

    value: float
    """The score, at least 0."""
    distance: float = 0.0
    """Distance in m, in the direction that counts."""
    height: float = 0.0
    """Height in m by which the boulder rose."""
    won: bool = False
    """Whether the level's goal was reached."""
    reasons: tuple[str, ...] = ()
    """Why `value` is 0 although the machine ran."""


def unfit(tree: Tree, level: Level) -> tuple[MachineFault, ...]:
    """Return the faults of an otherwise valid machine against the rules of the level."""
    faults = [
        MachineFault("task", f"a {BLOCKS[block.type].name} is not allowed in {level.name}", number)
        for number, block in enumerate(tree)
        if block.type not in level.allowed
    ]
    boulders = sum(block.type == BOULDER for block in tree)
    if level.family == "catapult" and boulders != 1:
        faults.append(
            MachineFault("task", f"the machine has {boulders} boulders; it has to have exactly one")
        )
    return tuple(faults)


def score(trajectory: Trajectory, task: Level, formula: Formula = "paper") -> Score:
    """Score the run of a machine in the level `task`."""
    faults = unfit(trajectory.tree, task)
    if trajectory.fault is not None or faults:
        return Score(
            0.0, reasons=(*((trajectory.fault,) if trajectory.fault else ()), *map(str, faults))
        )
    if task.family == "catapult":
        return _catapult(trajectory, task, formula)
    return (
        _delivery(trajectory, task, formula)
        if task.family == "delivery"
        else _car(trajectory, task, formula)
    )


def _car(trajectory: Trajectory, task: Level, formula: Formula) -> Score:
    first, last = trajectory.frames[0], trajectory.frames[-1]
    if formula == "code":
        distance = math.dist(first.blocks[0].middle, last.blocks[0].middle)
        return Score(distance, distance)
    distance = along(task.path, last.centre) - along(task.path, first.centre)
    reasons = tuple(_breakage_reasons(last))
    return Score(0.0 if reasons else max(0.0, distance), distance, reasons=reasons)


def _catapult(trajectory: Trajectory, task: Level, formula: Formula) -> Score:
    flight, first = trajectory.flight, trajectory.frames[0]
    boulder = next(number for number, block in enumerate(trajectory.tree) if block.type == BOULDER)
    start = first.blocks[boulder].middle
    if flight is None:
        raise ValueError("the run of a catapult has a boulder, but no flight of it")
    height = max(0.0, flight.top - start[1])
    flown = _flight_places(trajectory.frames, flight, boulder)
    if formula == "code":
        distance = max(math.dist(_flat(start), _flat(place)) for place in flown)
        reasons = tuple(_code_reasons(trajectory, flight, distance))
        value = (1 + height) * distance
    else:
        distance = flight.at[2] - start[2]
        reasons = tuple(_paper_reasons(trajectory, flight, boulder, distance))
        value = height * max(0.0, distance)
    won = (
        task.goal is not None
        and not reasons
        and _reached(task.goal, flown, flight.landed is not None)
    )
    if task.goal is not None:
        value = _goal_value(task.goal, flown, won, formula)
    return Score(0.0 if reasons else value, distance, height, won, reasons)


def _delivery(trajectory: Trajectory, task: Level, formula: Formula) -> Score:
    places = [frame.load for frame in trajectory.frames if frame.load is not None]
    if task.goal is None or not places:
        raise ValueError(f"{task.name} is a delivery without a goal or a load")
    reasons = tuple(_breakage_reasons(trajectory.frames[-1])) if formula == "paper" else ()
    won = not reasons and _reached(task.goal, places, True)
    distance = places[-1][2] - places[0][2]
    return Score(
        0.0 if reasons else _goal_value(task.goal, places, won, formula),
        distance,
        won=won,
        reasons=reasons,
    )


def _breakage_reasons(last: Frame) -> Iterator[str]:
    if last.held <= HELD:
        yield f"only {last.held:.0%} of the machine's mass still holds together with the root"


def _paper_reasons(
    trajectory: Trajectory, flight: Flight, boulder: int, distance: float
) -> Iterator[str]:
    first, last = trajectory.frames[0], trajectory.frames[-1]
    start = first.blocks[boulder].middle
    if flight.top <= HIGH:
        yield f"the boulder rose to {flight.top:.1f} m; it has to rise above {HIGH:g} m"
    gained = (flight.at[2] - flight.centre[2]) - (start[2] - first.centre[2])
    if distance > 0 and gained < APART * distance:
        yield (
            f"of the boulder's {distance:.1f} m, the machine went {distance - gained:.1f} m along: "
            "it has to be thrown, not carried"
        )
    elif math.dist(flight.at, flight.centre) < APART * abs(distance):
        yield "the boulder came down beside the machine: it has to be thrown, not carried"
    others = (pose.middle for number, pose in enumerate(last.blocks) if number != boulder)
    if flight.landed is None and min(math.dist(flight.at, other) for other in others) < CLEAR:
        yield "the boulder still lies on the machine: it has to be thrown, not carried"


def _code_reasons(trajectory: Trajectory, flight: Flight, distance: float) -> Iterator[str]:
    if flight.top < HIGH:
        yield f"the boulder rose to {flight.top:.1f} m; it has to rise to {HIGH:g} m"
    moment = trajectory.frames[-1].seconds if flight.landed is None else flight.landed
    root = min(trajectory.frames, key=lambda frame: abs(frame.seconds - moment)).blocks[0].middle
    if math.dist(flight.at, root) < APART * distance:
        yield "the boulder came down beside the root: it has to be thrown, not carried"


def _flight_places(frames: Sequence[Frame], flight: Flight, boulder: int) -> list[Place]:
    """Return the places of the boulder, up to where it came down."""
    flown = [
        frame.blocks[boulder].middle
        for frame in frames
        if flight.landed is None or frame.seconds < flight.landed
    ]
    return [*flown, flight.at]


def _goal_value(goal: Goal, places: Sequence[Place], won: bool, formula: Formula) -> float:
    if won or formula == "code":
        return float(won)
    distances = [
        _distance_to_goal(goal, place)
        for place in (places if goal.kind != "ring" else (places[0], places[-1]))
    ]
    return NEAR * max(0.0, 1 - min(distances) / distances[0]) if distances[0] > 0 else 0.0


def _distance_to_goal(goal: Goal, place: Place) -> float:
    """Return the distance (m) from a place to the goal: over the ground, except for a hoop."""
    return max(
        0.0,
        (
            math.dist(place, goal.middle)
            if goal.kind == "hoop"
            else math.dist(_flat(place), _flat(goal.middle))
        )
        - goal.radius,
    )


def _reached(goal: Goal, places: Sequence[Place], landed: bool) -> bool:
    if goal.kind == "hoop":
        return any(_passes(goal, before, after) for before, after in pairwise(places))
    if goal.kind == "ring":
        return landed and _distance_to_goal(goal, places[-1]) == 0
    return any(_distance_to_goal(goal, place) == 0 for place in places)


def _passes(goal: Goal, before: Place, after: Place) -> bool:
    """Return whether the line from one place to the next leads forwards through the hoop."""
    if not before[2] < goal.middle[2] <= after[2]:
        return False
    share = (goal.middle[2] - before[2]) / (after[2] - before[2])
    x, y = (a + share * (b - a) for a, b in zip(before[:2], after[:2], strict=True))
    return math.dist((x, y), goal.middle[:2]) <= goal.radius


def _flat(place: Place) -> tuple[float, float]:
    return place[0], place[2]


def along(path: Sequence[tuple[float, float]], place: Place) -> float:
    """Return how far along a path (m) its point nearest to a place is.

    The path continues straight on at its ends.
    """
    best, distance, passed = math.inf, 0.0, 0.0
    for number, (a, b) in enumerate(pairwise(path)):
        length = math.dist(a, b)
        way = ((place[0] - a[0]) * (b[0] - a[0]) + (place[2] - a[1]) * (b[1] - a[1])) / length
        way = max(way, 0.0) if number else way
        way = min(way, length) if number < len(path) - 2 else way
        nearest = (a[0] + (b[0] - a[0]) * way / length, a[1] + (b[1] - a[1]) * way / length)
        if (gap := math.dist(nearest, _flat(place))) < best:
            best, distance = gap, passed + way
        passed += length
    return distance
