"""What the blocks do once there is power, that a run is the same to the bit everywhere, and that one that blows up is a fault."""

import hashlib
import math
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco")

from grpo_env_besiege.blocks import BLOCKS
from grpo_env_besiege.growing import grow
from grpo_env_besiege.levels import LEVELS, Roller
from grpo_env_besiege.machines import MACHINES, PAPER_CAR, PAPER_CATAPULT, tree
from grpo_env_besiege.measure import measure
from grpo_env_besiege.physics import DEFAULT, Physics
from grpo_env_besiege.score import score
from grpo_env_besiege.simulation import simulate
from grpo_env_besiege.trajectory import Frame, Pose, Trajectory

from .besiege import CROSS, FIELD, ROAD, machine


def run(*blocks: tuple[str | int, ...], physics: Physics = DEFAULT) -> Trajectory:
    found = simulate(machine(tree(*blocks)), FIELD, physics=physics)
    assert found.fault is None
    return found


def pose(found: Trajectory, block: int, frame: int = -1) -> Pose:
    return found.frames[frame].blocks[block]


def risen(found: Trajectory, block: int) -> float:
    return pose(found, block).middle[1] - pose(found, block, 0).middle[1]


def turned(found: Trajectory, block: int, frame: int = -1) -> float:
    """Degrees since it was built."""
    return math.degrees(2 * math.acos(min(1.0, abs(pose(found, block, frame).turn[0]))))


# What the blocks do


def test_a_machine_at_rest_stays_where_it_stands() -> None:
    found = run(*CROSS, (15, 0, 4), (35, 5, 0))
    assert [frame.seconds for frame in found.frames] == pytest.approx(
        [0.2 * number for number in range(26)]
    )
    for block in range(7):
        assert math.dist(pose(found, block).middle, pose(found, block, 0).middle) < 0.01
        assert turned(found, block) < 0.5
    assert pose(found, 0, 0).middle == pytest.approx((0, 0.5, 0), abs=0.03)
    assert found.frames[0].centre == pytest.approx(
        (0, (4.25 * 0.5 + 0.3 * 1.5 + 3 * 2.5) / 7.55, 0), abs=0.03
    )


@pytest.mark.parametrize(
    ("side", "other", "way"), [(2, 3, (0, 1)), (3, 2, (0, 1)), (0, 1, (-1, 0)), (1, 0, (1, 0))]
)
def test_wheels_drive_as_their_facing_says(side: int, other: int, way: tuple[int, int]) -> None:
    """Facing x+ or x- to z+, facing z+ to x-, facing z- to x+; a free wheel on the other side rolls along."""
    assert turned(run(*CROSS, (2, 0, 4)), 5) < 1  # one that faces up gives no drive
    found = run((2, 0, side), (40, 0, other), (63, 0, 4), physics=replace(DEFAULT, wheel_speed=1.0))
    x, z = (pose(found, 0, 3).middle[axis] - pose(found, 0, 0).middle[axis] for axis in (0, 2))
    assert x * way[0] + z * way[1] > 0.05


def test_the_torque_of_a_rotating_block_turns_its_parent_the_other_way() -> None:
    smooth = replace(DEFAULT, ground_friction=0.02, block_friction=0.02)
    found = run((22, 0, 4), (63, 1, 1), (63, 1, 2), physics=smooth)
    arm, root = pose(found, 2, 1).turn, pose(found, 0, 1).turn
    assert abs(root[2]) > 0.05
    assert arm[2] * root[2] < 0


def test_a_rotating_block_turns_what_is_on_its_sides_and_not_what_is_in_front() -> None:
    sides = run(*CROSS, (15, 0, 4), (22, 5, 0), (63, 6, 1))
    assert turned(sides, 7, 1) > 20
    front = run(*CROSS, (15, 0, 4), (22, 5, 0), (63, 6, 0))
    assert max(turned(front, 7, frame) for frame in range(26)) < 5


def test_a_hinge_swings_about_its_own_x_and_at_most_ninety_degrees() -> None:
    found = run(*CROSS, (15, 0, 4), (5, 5, 3), (63, 6, 0))
    assert 5 < turned(found, 7) < 95
    _, x, y, z = pose(found, 7).turn
    assert abs(x) > 20 * max(abs(y), abs(z))


def test_a_swivel_turns_about_its_facing_and_a_ball_joint_falls_over() -> None:
    found = run(*CROSS, (15, 0, 4), (19, 5, 3), (63, 6, 1))
    _, x, y, z = pose(found, 7).turn
    assert abs(z) > 0.1 > max(abs(x), abs(y))
    fallen = run(*CROSS, (15, 0, 4), (63, 5, 0), (44, 6, 1), (15, 7, 0), (35, 8, 0))
    assert turned(fallen, 9) > 60


def test_steering_blocks_hold_still_because_nobody_steers() -> None:
    for kind in (28, 13):
        found = run(*CROSS, (15, 0, 4), (kind, 5, 3), (63, 6, 0))
        assert turned(found, 7) < 5


def test_a_suspension_gives_way_under_load() -> None:
    light = run(*CROSS, (16, 0, 4), (15, 5, 0))
    heavy = run(*CROSS, (16, 0, 4), (35, 5, 0), (35, 6, 0))
    assert pose(light, 6).middle[1] > pose(heavy, 6).middle[1] + 0.05


def test_pistons_move_by_their_stroke_once_there_is_power() -> None:
    assert risen(run(*CROSS, ("18_1", 0, 4), (35, 5, 0)), 6) == pytest.approx(1.1, abs=0.1)
    assert risen(run(*CROSS, ("18", 0, 4), (35, 5, 0)), 6) == pytest.approx(-1.1, abs=0.1)


ARM = (*CROSS, (15, 0, 4), (5, 5, 3), (63, 6, 0), (63, 1, 9))
"""Block 7 is an arm on a hinge, block 8 a mast in front of it."""


@pytest.mark.parametrize("link", [9, 45])
def test_bands_and_winches_pull_their_ends_together(link: int) -> None:
    assert risen(run(*ARM), 7) < 0.1
    assert risen(run(*ARM, (link, 8, 0, 7, 9), (link, 8, 0, 7, 8)), 7) > 0.5


def test_a_brace_holds_what_would_swing() -> None:
    assert turned(run(*ARM, (7, 7, 9, 5, 0)), 7) < 1 < turned(run(*ARM), 7)


def test_a_free_end_that_meets_a_face_is_joined() -> None:
    """An arm on a hinge whose far end touches a post cannot swing; with the post a metre further away, it can."""
    arm = (*CROSS, (15, 0, 4), (15, 5, 0), (5, 6, 3), (1, 7, 0))
    assert turned(run(*arm, (15, 2, 0), (63, 9, 3)), 8) < 1
    assert turned(run(*arm, (15, 2, 0), (15, 9, 0), (63, 10, 3)), 8) > 20


def test_a_boulder_lies_in_its_container_until_it_is_thrown() -> None:
    resting = run(*CROSS, (30, 0, 4), (36, 5, 0))
    assert math.dist(pose(resting, 6).middle, pose(resting, 6, 0).middle) < 0.05
    thrown = simulate(machine(PAPER_CATAPULT), FIELD)
    container, boulder = pose(thrown, 11), pose(thrown, 12)
    assert math.dist(container.middle, boulder.middle) > 4


def test_ballast_slows_a_machine_down() -> None:
    heavy, plain = (
        simulate(machine(MACHINES[name]), ROAD).frames[5].centre[2]
        for name in ("heavy car", "paper car")
    )
    assert heavy < plain - 0.2


def test_the_published_examples_land_in_the_published_range() -> None:
    assert measure(machine(PAPER_CAR), ROAD).score.distance == pytest.approx(34, abs=2)
    for name in ("paper catapult", "rotor catapult", "short catapult", "band catapult"):
        assert 5 < measure(machine(MACHINES[name]), FIELD).score.distance < 22, name


# Levels


@pytest.mark.parametrize("name", LEVELS)
def test_every_level_runs_for_its_time(name: str) -> None:
    level = LEVELS[name]
    built = MACHINES["rotor catapult" if level.family == "catapult" else "paper car"]
    found = simulate(machine(built), level)
    assert found.fault is None
    assert found.frames[-1].seconds == pytest.approx(level.seconds)
    assert (found.frames[-1].load is not None) == (level.load is not None)


def test_the_difficulty_orders_the_levels_of_a_family() -> None:
    for family in ("car", "catapult", "delivery"):
        values = [level.difficulty for level in LEVELS.values() if level.family == family]
        assert (values[0], values[-1], values) == (0, 1, sorted(set(values)))


def test_nothing_stands_where_the_largest_machine_is_set_down() -> None:
    """Within 8.5 m of the middle; what overlaps at the start would push itself away."""
    for level in LEVELS.values():
        for one in level.obstacles:
            if isinstance(one, Roller):
                half = (one.length / 2, one.radius)
            elif one.turn:
                half = (math.hypot(one.size[0], one.size[2]) / 2,) * 2
            else:
                half = (one.size[0] / 2, one.size[2] / 2)
            assert (
                max(abs(one.middle[axis]) - half[side] for side, axis in enumerate((0, 2))) > 8.5
            ), (level.name, one)
        assert level.load is None or level.load[2][2] - level.load[0] > 8.5


def test_obstacles_are_in_the_way() -> None:
    """A car loses way on each; the highest point of its root shows that it went over them."""
    plain, *others = (
        simulate(machine(PAPER_CAR), LEVELS[f"car/{name}"]).frames
        for name in ("road", "quarter-cylinder", "quarter-pipe", "gap")
    )
    for frames in others:
        top, of_plain = (max(f.blocks[0].middle[1] for f in run) for run in (frames, plain))
        assert top > of_plain + 0.3
        assert frames[-1].centre[2] < plain[-1].centre[2]


def test_walls_keep_a_car_on_the_road_and_lead_it_around_the_bend() -> None:
    found = simulate(machine(PAPER_CAR), LEVELS["car/curves"])
    assert all(-10 < frame.centre[0] < 80 and frame.centre[2] < 92 for frame in found.frames)
    assert found.frames[-1].centre[0] > 5


def test_the_wind_takes_a_boulder_back() -> None:
    still, windy = (
        simulate(machine(MACHINES["rotor catapult"]), LEVELS[f"catapult/{name}"])
        for name in ("fence", "wind")
    )
    assert windy.flight.at[2] < still.flight.at[2] - 2  # type: ignore[union-attr]


def test_a_car_pushes_the_ball_into_the_goal() -> None:
    level = LEVELS["delivery/push"]
    assert score(simulate(machine(PAPER_CAR), level), level).won
    sled = score(simulate(machine(MACHINES["sled"]), level), level)
    assert (sled.won, sled.value) == (False, pytest.approx(0, abs=0.02))


# The same everywhere


def fingerprint(names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        level = FIELD if "catapult" in name else ROAD
        found = measure(machine(MACHINES[name]), level)
        digest.update(repr((found.trajectory, found.score, found.disagreement)).encode())
    return digest.hexdigest()


@pytest.mark.slow
def test_a_run_is_the_same_to_the_bit_on_repeat_in_any_order_and_in_another_process() -> None:
    names = ["paper car", "paper catapult", "band catapult", "sprung car"]
    first = fingerprint(names)
    fingerprint(names[::-1])
    assert fingerprint(names) == first
    code = f"from {__name__} import fingerprint; print(fingerprint({names}))"
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    assert subprocess.check_output(command, text=True, timeout=60, cwd=root).strip() == first


# What goes wrong


@pytest.mark.parametrize(
    "wild", [{"band_stiffness": 1e7, "band_force": 1e9}, {"spin_torque": 1e9, "spin_speed": 1e5}]
)
def test_a_run_that_blows_up_is_a_fault_and_leaves_no_log_behind(
    wild: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = simulate(machine(PAPER_CATAPULT), FIELD, physics=Physics(**wild))  # type: ignore[arg-type]
    assert (found.fault or "").startswith("it blew up after 0.2 s")
    assert score(found, FIELD).reasons == (found.fault,)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_any_valid_machine_of_any_blocks_can_be_simulated() -> None:
    """Three hundred of them, briefly; whatever they do, nothing raises and places stay numbers."""
    level = replace(FIELD, seconds=0.4, allowed=frozenset(BLOCKS))
    rng = random.Random(7)
    for _ in range(300):
        built = grow(rng, size=rng.randint(1, 16), types=rng.sample(sorted(BLOCKS), 8))
        physics = replace(DEFAULT, breakable=rng.random() < 0.3)
        found = simulate(machine(built), level, physics=physics)
        if found.fault is None:
            blocks = [block for frame in found.frames for block in frame.blocks]
            assert all(math.isfinite(value) for one in blocks for value in (*one.middle, *one.turn))


def test_with_breakage_an_overloaded_mount_comes_off_and_a_strong_one_holds() -> None:
    def last(**physics: Any) -> Frame:
        return simulate(machine(PAPER_CAR), ROAD, physics=replace(DEFAULT, **physics)).frames[-1]

    strong, weak = last(breakable=True), last(breakable=True, mount_force=40)
    assert (strong.broken, strong.held) == ((), 1.0)
    assert strong.centre[2] == pytest.approx(last().centre[2], rel=0.05)
    assert weak.broken
    assert set(weak.broken) <= {3, 4, 5, 6}
    assert weak.held == pytest.approx(1 - len(weak.broken) * 1.1 / 5.65, abs=0.01)


# Speed


@pytest.mark.heavy
def test_sixty_four_machines_take_less_than_a_second_and_a_half_on_two_idle_cores() -> None:
    """They give the same as one process."""
    rng = random.Random(0)
    machines = [machine(grow(rng, size=rng.randint(8, 30), types=ROAD.allowed)) for _ in range(64)]
    assert sum(len(one.tree) for one in machines) > 64 * 15
    expected = [measure(one, ROAD) for one in machines]
    assert sum(one.score.value > 1 for one in expected) > 5
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        seconds = []
        for _ in range(4):
            started = time.perf_counter()
            assert list(pool.map(measure, machines, [ROAD] * 64, chunksize=2)) == expected
            seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.5, seconds
