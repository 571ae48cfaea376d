"""What a run is paid, by both formulas, and that none of the known tricks of physics is."""

import math
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("mujoco")

from grpo_env_besiege.levels import LEVELS, Goal, Place
from grpo_env_besiege.machines import MACHINES, PAPER_CAR, PAPER_CATAPULT, tree
from grpo_env_besiege.measure import measure
from grpo_env_besiege.physics import DEFAULT
from grpo_env_besiege.score import along, score, unfit
from grpo_env_besiege.simulation import simulate
from grpo_env_besiege.trajectory import Flight, Frame, Pose, Trajectory

from .besiege import CROSS, FIELD, ROAD, machine

STILL = (1.0, 0.0, 0.0, 0.0)
THROWER = tree((63, 0, 0), (30, 1, 7), (36, 2, 0))


def frame(
    seconds: float,
    *,
    root: Place = (0, 1, 0),
    centre: Place = (0, 1, 0),
    boulder: Place = (0, 2, 0),
    **more: Any,
) -> Frame:
    places = [root, root, root, boulder]
    return Frame(seconds, tuple(Pose(place, STILL) for place in places), centre, **more)


def thrown(
    *,
    start: Place,
    top: float,
    at: Place,
    root: Place = (0, 1, 0),
    centre: Place = (0, 1, 0),
    landed: float | None = 2.0,
) -> Trajectory:
    """A boulder that flies from one place to another, and where the machine is by then."""
    there = {"boulder": at, "root": root, "centre": centre}
    frames = (frame(0, boulder=start), frame(2, **there), frame(5, **there))
    return Trajectory(THROWER, frames, Flight(top, landed, at, centre))


def driven(*places: Place, root: Place | None = None, **more: Any) -> Trajectory:
    """A car whose centre of mass is at these places, every 0.2 s."""
    frames = tuple(
        frame(0.2 * number, root=root or place, centre=place, **more)
        for number, place in enumerate(places)
    )
    return Trajectory(PAPER_CAR[:4], frames)


# What is paid


def test_a_car_is_paid_by_its_signed_way_and_by_the_code_by_any_way() -> None:
    runs = [driven((0, 1, 0), place) for place in ((0, 1, 30), (0, 1, -30), (30, 1, 0))]
    assert [score(run, ROAD).value for run in runs] == [30, 0, 0]
    assert score(runs[1], ROAD).distance == -30
    assert [score(run, ROAD, "code").value for run in runs] == [30, 30, 30]


def test_on_a_bend_the_way_along_the_road_counts() -> None:
    path = ((0.0, 0.0), (0.0, 22.0), (70.0, 22.0), (70.0, 82.0))
    places = {(0, 0, -5): -5, (3, 0, 10): 10, (0, 0, 22): 22}
    places |= {(40, 0, 25): 62, (70, 0, 40): 110, (70, 0, 90): 160}
    assert {place: along(path, place) for place in places} == pytest.approx(places)
    assert LEVELS["car/curves"].path == path


AHEAD = {"root": (0, 1, 30), "centre": (0, 1, 30), "landed": None}
THROWS: dict[str, tuple[dict[str, Any], float, float, str]] = {
    "a throw, by its rise times its way": ({"start": (0, 2, -1), "top": 6, "at": (1, 1, 11)}, 48, 5 * math.hypot(1, 12), ""),
    "one that never came down": ({"start": (0, 2, -1), "top": 6, "at": (0, 5, 11), "landed": None}, 48, 60, ""),
    "one that was built high": ({"start": (0, 9, 0), "top": 9, "at": (0, 1, 8)}, 0, 8, ""),
    "a throw backwards": ({"start": (0, 2, 0), "top": 6, "at": (0, 1, -20)}, 0, 100, ""),
    "a throw aside": ({"start": (0, 2, 0), "top": 6, "at": (20, 1, 0)}, 0, 100, ""),
    "carrying": ({"start": (0, 4, 0), "top": 6, "at": (0, 5, 30), **AHEAD}, 0, 0, "not carried"),
    "carrying on a long boom": ({"start": (0, 4, 9), "top": 6, "at": (0, 5, 39), **AHEAD}, 0, 90, "not carried"),
    "flinging the whole machine": ({"start": (0, 4, 0), "top": 8, "at": (0, 1, 33), "root": (0, 1, 28), "centre": (0, 1, 28)}, 0, 0, "not carried"),
    "rolling": ({"start": (0, 1, 4), "top": 1.2, "at": (0, 1, 40)}, 0, 0, "the boulder rose to 1.2 m; it has to rise above 3 m"),
}  # fmt: skip
"""What a boulder does, what both formulas pay for it, and a part of the reason."""


@pytest.mark.parametrize("name", THROWS)
def test_a_throw_is_paid_and_what_only_looks_like_one_is_not(name: str) -> None:
    flight, paper, code, reason = THROWS[name]
    found = score(thrown(**flight), FIELD)
    assert found.value == pytest.approx(paper)
    assert reason in " ".join(found.reasons)
    assert score(thrown(**flight), FIELD, "code").value == pytest.approx(code)


def test_what_happens_behind_the_landing_does_not_count() -> None:
    landed = thrown(start=(0, 2, 0), top=6, at=(0, 1, 10), landed=2.0)
    rolled_on = replace(landed, frames=(*landed.frames, frame(5.2, boulder=(0, 1, 60))))
    for formula in ("paper", "code"):
        assert score(rolled_on, FIELD, formula) == score(landed, FIELD, formula)  # type: ignore[arg-type]


def test_with_a_goal_reaching_it_is_one_and_coming_nearer_up_to_a_half() -> None:
    ring = replace(FIELD, goal=Goal("ring", (0, 0, 20), 2))
    runs = [thrown(start=(0, 2, 0), top=6, at=(0, 1, z)) for z in (19, 9, 40)]
    assert [score(run, ring).value for run in runs] == pytest.approx([1, 0.25, 0])
    assert [score(run, ring, "code").value for run in runs] == [1, 0, 0]
    assert [score(run, ring).won for run in runs] == [True, False, False]


def test_a_hoop_has_to_be_flown_through_forwards() -> None:
    hoop = replace(FIELD, goal=Goal("hoop", (0, 5, 10), 3))
    through = thrown(start=(0, 3, 0), top=6, at=(0, 6, 15))
    beside = thrown(start=(0, 3, 0), top=9, at=(9, 9, 15))
    behind = thrown(start=(0, 3, 12), top=6, at=(0, 5, 9))
    assert [score(run, hoop).won for run in (through, beside, behind)] == [True, False, False]


def test_a_delivery_is_won_when_the_ball_is_in_the_zone() -> None:
    level, start = LEVELS["delivery/push"], frame(0, load=(0.0, 1.5, 12.0))
    runs = [
        Trajectory(PAPER_CAR[:4], (start, frame(5, load=(0.0, 1.5, end)))) for end in (38.0, 24.0)
    ]
    assert [score(run, level).value for run in runs] == [1, pytest.approx(0.25)]
    assert [score(run, level, "code").value for run in runs] == [1, 0]


# What is not


def test_a_boulder_that_still_lies_on_an_arm_was_not_thrown() -> None:
    """The arm is block 2 of the thrower, at the boulder's place; the code pays it."""
    run = thrown(start=(0, 4, -8), top=9, at=(0, 4, 8), landed=None)
    arm = (*run.frames[-1].blocks[:2], Pose((0, 2.5, 8), STILL), run.frames[-1].blocks[3])
    swung = replace(run, frames=(*run.frames[:-1], replace(run.frames[-1], blocks=arm)))
    assert score(run, FIELD).value > 0
    assert score(swung, FIELD).reasons == (
        "the boulder still lies on the machine: it has to be thrown, not carried",
    )
    assert score(swung, FIELD, "code").value > 0


def test_a_root_that_is_thrown_off_takes_no_car_with_it() -> None:
    shot = driven((0, 1, 0), (0, 1, 2), root=(0, 1, 50))
    assert score(shot, ROAD).value == 2
    apart = driven((0, 1, 0), (0, 1, 20), held=0.4)
    reason = "only 40% of the machine's mass still holds together with the root"
    assert (score(apart, ROAD).value, score(apart, ROAD).reasons) == (0, (reason,))


def test_a_catapult_has_exactly_one_boulder() -> None:
    none, two = tree((63, 0, 0)), tree((30, 0, 4), (36, 1, 0), (36, 0, 0))
    for built, count in ((none, 0), (two, 2)):
        assert list(map(str, unfit(built, FIELD))) == [
            f"the machine has {count} boulders; it has to have exactly one"
        ]
        assert score(Trajectory(built, ()), FIELD).value == 0
    assert unfit(PAPER_CATAPULT, FIELD) == ()


def test_a_level_allows_its_own_blocks_only() -> None:
    assert list(map(str, unfit(tree((46, 0, 2), (15, 0, 4)), ROAD))) == [
        "block 1: a Large powered wheel is not allowed in car/road"
    ]
    run = Trajectory(tree((46, 0, 2)), driven((0, 1, 0), (0, 1, 30)).frames)
    assert score(run, ROAD).value == 0


def test_a_run_that_blew_up_is_worth_nothing_in_any_family() -> None:
    fault = "it blew up after 0.4 s: the state is not a number"
    for level in (ROAD, FIELD, LEVELS["delivery/push"]):
        built = PAPER_CATAPULT if level.family == "catapult" else PAPER_CAR
        found = score(Trajectory(built, (), fault=fault), level)
        assert (found.value, found.reasons) == (0, (fault,))


# The same with real machines


def test_what_pays_only_in_coarse_steps_is_not_paid() -> None:
    """In steps of 0.04 s, this machine throws farther than in finer ones."""
    built, coarse = machine(MACHINES["band catapult"]), replace(DEFAULT, step_seconds=0.04)
    finer = score(simulate(built, FIELD, physics=replace(coarse, step_seconds=0.02)), FIELD).value
    assert score(simulate(built, FIELD, physics=coarse), FIELD).value > 2 * finer
    assert measure(built, FIELD, physics=coarse).score.value == finer


@pytest.mark.parametrize("inside", [36, 63, 2])
def test_what_is_built_into_a_container_gains_nothing_from_overlapping_it(inside: int) -> None:
    still = replace(DEFAULT, wheel_speed=0, spin_speed=0)
    found = simulate(machine(tree(*CROSS, (30, 0, 4), (inside, 5, 0))), FIELD, physics=still)
    assert found.fault is None
    for before, after in zip(found.frames[0].blocks, found.frames[-1].blocks, strict=True):
        assert math.dist(before.middle, after.middle) < 0.1
    assert found.frames[0].blocks[0].middle[1] == pytest.approx(0.5, abs=0.05)


def test_a_machine_that_the_level_forbids_is_not_simulated() -> None:
    found = measure(machine(PAPER_CAR), replace(ROAD, allowed=frozenset({"0", "1"})))
    assert found.trajectory.frames == ()
    blocks = [reason.split(":")[0] for reason in found.score.reasons]
    assert blocks == [f"block {number}" for number in (3, 4, 5, 6)]
