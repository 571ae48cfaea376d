"""What a run is worth: a pure function of its trajectory, with the ways closed in which physics can be made to pay for nothing.

| trick | what stands against it |
| --- | --- |
| carrying the boulder, or flinging it with the whole machine | it has to gain a quarter of its way on the machine's centre of mass |
| swinging it around without letting go | it has to come down, or to be clear of every block at the end |
| rolling it | it has to rise above 3 m; its way ends where it first comes down |
| going anywhere | the way is signed: forwards, or along the level's path |
| building the boulder's place high | height counts from where the boulder stood when there was power |
| several boulders, blocks that the level does not allow | nothing is paid |
| throwing the root off | a car is where its whole mass is, and more than half has to hold together |
| a solver that blows up | the run has a fault; `measure` runs twice, the second time in finer steps, and pays the lower score |

formula "paper": a car's way; a boulder's rise x its way (the paper's performance, its height taken from the start); with a goal, 1 for
reaching it, and up to 0.5 for the share of the way that is closed. "code": what the published reward code means to pay, undirected and by
the root, with its own gates alone (3 m; boulder and root a quarter of the way apart); with a goal 1 or 0.
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
from grpo_env_besiege.tree import Fault, Tree

Formula = Literal["paper", "code"]
HIGH = 3.0
APART = 0.25
CLEAR = 2.5
HELD = 0.5
NEAR = 0.5


@dataclass(frozen=True, slots=True)
class Score:
    """distance: metres in the direction that counts; height: metres that the boulder rose; reasons: why `value` is 0 although the machine
    did something."""

    value: float
    distance: float = 0.0
    height: float = 0.0
    won: bool = False
    reasons: tuple[str, ...] = ()


def unfit(tree: Tree, level: Level) -> tuple[Fault, ...]:
    """What the level forbids, of a machine that is otherwise valid."""
    faults = [
        Fault("task", f"a {BLOCKS[block.type].name} is not allowed in {level.name}", number)
        for number, block in enumerate(tree)
        if block.type not in level.allowed
    ]
    boulders = sum(block.type == BOULDER for block in tree)
    if level.family == "catapult" and boulders != 1:
        faults.append(
            Fault("task", f"the machine has {boulders} boulders; it has to have exactly one")
        )
    return tuple(faults)


def score(trajectory: Trajectory, task: Level, formula: Formula = "paper") -> Score:
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
    reasons = tuple(_falls_apart(last))
    return Score(0.0 if reasons else max(0.0, distance), distance, reasons=reasons)


def _catapult(trajectory: Trajectory, task: Level, formula: Formula) -> Score:
    flight, first = trajectory.flight, trajectory.frames[0]
    boulder = next(number for number, block in enumerate(trajectory.tree) if block.type == BOULDER)
    start = first.blocks[boulder].middle
    if flight is None:
        raise ValueError("the run of a catapult has a boulder, but no flight of it")
    height = max(0.0, flight.top - start[1])
    flown = _until(trajectory.frames, flight, boulder)
    if formula == "code":
        distance = max(math.dist(_flat(start), _flat(place)) for place in flown)
        reasons = tuple(_code_gates(trajectory, flight, distance))
        value = (1 + height) * distance
    else:
        distance = flight.at[2] - start[2]
        reasons = tuple(_paper_gates(trajectory, flight, boulder, distance))
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
    reasons = tuple(_falls_apart(trajectory.frames[-1])) if formula == "paper" else ()
    won = not reasons and _reached(task.goal, places, True)
    distance = places[-1][2] - places[0][2]
    return Score(
        0.0 if reasons else _goal_value(task.goal, places, won, formula),
        distance,
        won=won,
        reasons=reasons,
    )


def _falls_apart(last: Frame) -> Iterator[str]:
    if last.held <= HELD:
        yield f"only {last.held:.0%} of the machine's mass still holds together with the root"


def _paper_gates(
    trajectory: Trajectory, flight: Flight, boulder: int, distance: float
) -> Iterator[str]:
    first, last = trajectory.frames[0], trajectory.frames[-1]
    start = first.blocks[boulder].middle
    if flight.top <= HIGH:
        yield f"the boulder rose to {flight.top:.1f} m; it has to rise above {HIGH:g} m"
    gained = (flight.at[2] - flight.centre[2]) - (start[2] - first.centre[2])
    if distance > 0 and gained < APART * distance:
        yield f"of the boulder's {distance:.1f} m, the machine went {distance - gained:.1f} m along: it has to be thrown, not carried"
    elif math.dist(flight.at, flight.centre) < APART * abs(distance):
        yield "the boulder came down beside the machine: it has to be thrown, not carried"
    others = (pose.middle for number, pose in enumerate(last.blocks) if number != boulder)
    if flight.landed is None and min(math.dist(flight.at, other) for other in others) < CLEAR:
        yield "the boulder still lies on the machine: it has to be thrown, not carried"


def _code_gates(trajectory: Trajectory, flight: Flight, distance: float) -> Iterator[str]:
    if flight.top < HIGH:
        yield f"the boulder rose to {flight.top:.1f} m; it has to rise to {HIGH:g} m"
    moment = trajectory.frames[-1].seconds if flight.landed is None else flight.landed
    root = min(trajectory.frames, key=lambda frame: abs(frame.seconds - moment)).blocks[0].middle
    if math.dist(flight.at, root) < APART * distance:
        yield "the boulder came down beside the root: it has to be thrown, not carried"


def _until(frames: Sequence[Frame], flight: Flight, boulder: int) -> list[Place]:
    """Where the boulder was, up to where it came down."""
    flown = [
        frame.blocks[boulder].middle
        for frame in frames
        if flight.landed is None or frame.seconds < flight.landed
    ]
    return [*flown, flight.at]


def _goal_value(goal: Goal, places: Sequence[Place], won: bool, formula: Formula) -> float:
    if won or formula == "code":
        return float(won)
    ways = [
        _way(goal, place) for place in (places if goal.kind != "ring" else (places[0], places[-1]))
    ]
    return NEAR * max(0.0, 1 - min(ways) / ways[0]) if ways[0] > 0 else 0.0


def _way(goal: Goal, place: Place) -> float:
    """How far a place is from the goal: over the ground, except from a hoop."""
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
        return landed and _way(goal, places[-1]) == 0
    return any(_way(goal, place) == 0 for place in places)


def _passes(goal: Goal, before: Place, after: Place) -> bool:
    """Whether the way from one place to the next leads forwards through the hoop."""
    if not before[2] < goal.middle[2] <= after[2]:
        return False
    share = (goal.middle[2] - before[2]) / (after[2] - before[2])
    x, y = (a + share * (b - a) for a, b in zip(before[:2], after[:2], strict=True))
    return math.dist((x, y), goal.middle[:2]) <= goal.radius


def _flat(place: Place) -> tuple[float, float]:
    return place[0], place[2]


def along(path: Sequence[tuple[float, float]], place: Place) -> float:
    """How far along a path the point of it is that is nearest to a place; the path's ends go on straight."""
    best, found, passed = math.inf, 0.0, 0.0
    for number, (a, b) in enumerate(pairwise(path)):
        length = math.dist(a, b)
        way = ((place[0] - a[0]) * (b[0] - a[0]) + (place[2] - a[1]) * (b[1] - a[1])) / length
        way = max(way, 0.0) if number else way
        way = min(way, length) if number < len(path) - 2 else way
        nearest = (a[0] + (b[0] - a[0]) * way / length, a[1] + (b[1] - a[1]) * way / length)
        if (gap := math.dist(nearest, _flat(place))) < best:
            best, found = gap, passed + way
        passed += length
    return found
