"""Where blocks stand and which machines are valid: the published vectors, and a second checker that works another way."""

import json
import random
from collections import Counter
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pytest

from grpo_env_besiege.blocks import AXES, BLOCKS, TURNED, Facing
from grpo_env_besiege.geometry import bounds, ground_shift, place, turn
from grpo_env_besiege.machines import PAPER_CAR, PAPER_CATAPULT, tree
from grpo_env_besiege.tree import MachineFault, Tree
from grpo_env_besiege.validity import CheckedMachine, check, check_tree


def metres(values: Any) -> list[float]:
    return [value / 100 for value in values]


# The published vectors


def test_the_papers_catapult_stands_where_it_was_published() -> None:
    published = """1:(0,0,-.5)z- 2:(.5,0,-1)x+ 3:(-.5,0,-1)x- 4:(3,0,-1.5)z- 5:(-3,0,-.5)z+ 6:(2.5,0,-2)x- 7:(2,.5,-2)y+ 8:(2,1,-2.5)z-
        9:(2,1,-1.5)z+ 10:(2,1,-5.5)z- 11:(2,1.5,-6)y+ 12:(2,2.5,-6)y+ 13:(0,0,.5)z+"""
    placed = place(PAPER_CATAPULT)
    for entry in published.split():
        number, _, rest = entry.partition(":")
        at, _, facing = rest[1:].partition(")")
        assert (metres(placed[int(number)].at), placed[int(number)].facing) == (
            [float(value) for value in at.split(",")],
            facing,
        ), entry
    for number, start, end in ((14, (-0.5, 0, 1), (1.5, 1, -1)), (15, (-0.5, 0, 3), (2.5, 1, -1))):
        assert (metres(placed[number].at), metres(placed[number].to)) == (list(start), list(end))


def test_the_papers_machines_are_valid_and_have_the_published_size() -> None:
    catapult, car = check_tree(PAPER_CATAPULT), check_tree(PAPER_CAR)
    assert catapult.valid
    assert car.valid
    assert size(catapult) == [7.0, 4.9, 11.0]
    assert size(car) == [2.0, 2.0, 6.0]
    # The catapult's published height, 9.45, reaches down to the world's origin, 5.05 below the root, where the original keeps bands.
    top = bounds(place(PAPER_CATAPULT))[1][1] / 100
    assert top + 5.05 == pytest.approx(9.45)


def size(checked: CheckedMachine) -> list[float]:
    assert checked.machine is not None
    low, high = bounds(checked.machine.placed)
    return metres(b - a for a, b in zip(low, high, strict=True))


def test_on_the_ground_the_lowest_corner_is_half_a_metre_up_and_the_box_is_centred() -> None:
    placed = place(PAPER_CATAPULT)
    shift, (low, high) = ground_shift(placed), bounds(placed)
    assert low[1] + shift[1] == 50
    assert [low[axis] + shift[axis] + high[axis] + shift[axis] for axis in (0, 2)] == [0, 0]


@pytest.mark.parametrize("facing", TURNED)
def test_a_facing_turns_a_block_the_shortest_way(facing: Facing) -> None:
    turned = shortest_turn(np.array(AXES[facing])).round()
    for axis, own in enumerate(((1, 0, 0), (0, 1, 0), (0, 0, 1))):
        assert list(turn(own, facing)) == turned[:, axis].tolist()


@pytest.mark.parametrize(
    ("kind", "points", "box"),
    [("0", 6, (1, 1, 1)), ("1", 9, (1, 1, 2)), ("63", 13, (1, 1, 3)), ("46", 9, (3, 3, 1))],
)
def test_blocks_have_the_published_size_and_number_of_points(
    kind: str, points: int, box: tuple[int, ...]
) -> None:
    assert (len(BLOCKS[kind].points), metres(BLOCKS[kind].size)) == (points, list(box))


# The limits


def test_a_machine_may_be_as_large_as_the_limit_and_no_larger() -> None:
    logs = [(63, 0, 0), *((63, number, 0) for number in range(1, 5))]
    assert size(check_tree(tree(*logs, (1, 5, 0)))) == [1, 1, 18]
    assert [fault.stage for fault in check_tree(tree(*logs, (1, 5, 0))).faults] == ["size"]
    assert size(check_tree(tree(*logs, (15, 5, 0)))) == [1, 1, 17]
    assert check_tree(tree(*logs, (15, 5, 0))).valid
    up = [(63, 0, 4), (63, 1, 0)]
    assert check_tree(tree(*up, (1, 2, 0))).valid
    fault = check_tree(tree(*up, (63, 2, 0))).faults[0]
    assert str(fault) == "the machine is 10 high (y); at most 9.5 is allowed"


def test_what_touches_does_not_overlap() -> None:
    assert check_tree(tree((1, 0, 0), (1, 0, 1), (2, 1, 2), (2, 2, 2))).valid
    found = check_tree(tree((1, 0, 0), (2, 1, 1), (2, 1, 2))).faults
    assert list(map(str, found)) == ["block 3: a Powered wheel overlaps block 2, a Powered wheel"]


def test_what_stands_on_a_container_may_reach_into_it_and_nothing_else_may() -> None:
    assert check_tree(tree((30, 0, 4), (36, 1, 0))).valid
    beside = check_tree(tree((30, 0, 4), (1, 0, 2), (63, 2, 5)))
    assert [fault.stage for fault in beside.faults] == ["spatial"]


def test_a_band_takes_no_room() -> None:
    assert check_tree(tree((1, 0, 0), (15, 0, 1), (9, 1, 0, 2, 0), (9, 1, 0, 2, 0))).valid


# A second checker, written from the published rules: rotation matrices, floats rounded to 0.01, every corner of every box


SIZES = {
    "0": (1, 1, 1),
    "15": (1, 1, 1),
    "1": (1, 1, 2),
    "63": (1, 1, 3),
    "2": (2, 2, 0.5),
    "46": (3, 3, 1),
    "22": (1, 1, 1),
    "16": (1, 1, 2),
    "30": (2.4, 3, 2.8),
    "36": (1.9, 1.9, 1.9),
}
LINEAR = ("7", "9", "45")


def around(length: float, *places: float, out: float = 0.5) -> list[tuple[float, float, float]]:
    sides = [(-out, 0), (out, 0), (0, out), (0, -out)]
    return [(0, 0, length), *((x, y, z) for x, y in sides for z in places)]


ATTACH = {
    "0": [(0, 0, 0.5), (0, 0, -0.5), (-0.5, 0, 0), (0.5, 0, 0), (0, 0.5, 0), (0, -0.5, 0)],
    "15": around(1, 0.5),
    "1": around(2, 0.5, 1.5),
    "63": around(3, 0.5, 1.5, 2.5),
    "2": [(0, 0, 0.5)],
    "46": [
        (0, 0, 1),
        *((x, y, z) for z in (1, 0.5) for x, y in ((-1.5, 0), (1.5, 0), (0, 1.5), (0, -1.5))),
    ],
    "22": around(1, 0.5),
    "16": around(2, 1.5),
    "30": [(0, 0, 1)],
    "36": [],
    **{kind: [] for kind in LINEAR},
}


def shortest_turn(normal: Any) -> Any:
    """The rotation from z+ to the normal about the axis across both; for z-, half a turn about y."""
    ahead = np.array([0.0, 0.0, 1.0])
    cosine = float(ahead @ normal)
    if cosine < -0.5:
        return np.diag([-1.0, 1.0, -1.0])
    x, y, z = np.cross(ahead, normal)
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + across + across @ across / (1 + cosine)


def own_normal(kind: str, point: tuple[float, float, float]) -> Any:
    """The face a point lies on: the far end comes first, then the back, then the sides. A Container's is that of a unit cube."""
    x, y, z = point
    length = 1.0 if kind == "30" else SIZES[kind][2]
    start, end = (-0.5, 0.5) if kind == "0" else (0.0, length)
    if z in (start, end):
        return np.array([0, 0, 1.0 if z == end else -1.0])
    return np.array([np.sign(x), np.sign(y), 0.0])


class Placed(NamedTuple):
    kind: str
    parent: int
    middle: Any
    turn: Any


def slow_check(entries: Any) -> bool:
    blocks: list[Placed] = []
    for number, entry in enumerate(entries):
        if "type" in entry and "id" in entry and not any("bp_id" in key for key in entry):
            names = {"type": "id", "id": "order_id"}  # those of the paper
            entry = {names.get(k, k.replace("face_id", "bp_id")): v for k, v in entry.items()}
        linear = set(entry) == {"id", "order_id", "parent_a", "bp_id_a", "parent_b", "bp_id_b"}
        if not linear and set(entry) != {"id", "order_id", "parent", "bp_id"}:
            return False
        try:
            numbers = {key: int(value) for key, value in entry.items() if key != "id"}
        except (TypeError, ValueError):
            return False
        kind = str(entry["id"])
        if kind not in (LINEAR if linear else SIZES) or numbers["order_id"] != number:
            return False
        ends = [
            (numbers[f"parent{x}"], numbers[f"bp_id{x}"])
            for x in (("_a", "_b") if linear else ("",))
        ]
        if number == 0:
            if kind != "0" or ends != [(-1, -1)]:
                return False
            blocks.append(Placed(kind, -1, np.zeros(3), np.eye(3)))
            continue
        for parent, point in ends:
            if not 0 <= parent < number or not 0 <= point < len(ATTACH[blocks[parent].kind]):
                return False
        parent, point = ends[0]
        above, offset = blocks[parent], ATTACH[blocks[parent].kind][point]
        facing = shortest_turn(above.turn @ own_normal(above.kind, offset))
        at = above.middle + above.turn @ np.array(offset, dtype=float)
        blocks.append(Placed(kind, -1 if linear else parent, at, facing))
    return fits(blocks)


def fits(blocks: list[Placed]) -> bool:
    boxes = {}
    for number, block in enumerate(blocks):
        if block.kind not in LINEAR:
            x, y, z = SIZES[block.kind]
            back = -z / 2 if block.kind == "0" else 0.0
            sides = (-x / 2, x / 2), (-y / 2, y / 2), (back, back + z)
            turned = [block.turn @ np.array(corner) for corner in product(*sides)]
            corners = np.round(np.array([0, 5.05, 0]) + block.middle + np.array(turned), 2)
            boxes[number] = corners.min(axis=0), corners.max(axis=0)
    low, high = (np.array(corners) for corners in zip(*boxes.values(), strict=True))
    width, height, length = np.round(high.max(axis=0) - low.min(axis=0), 2)
    if width > 17 or length > 17 or height > 9.5:
        return False
    for a, b in combinations(boxes, 2):
        (low_a, high_a), (low_b, high_b) = boxes[a], boxes[b]
        overlap = bool((np.maximum(low_a, low_b) < np.minimum(high_a, high_b)).all())
        if overlap and not (blocks[a].kind == "30" and blocks[b].parent == a):
            return False
    return True


def some_entries(rng: random.Random) -> list[dict[str, Any]]:
    """Mostly a tree that grows as trees do, some of them with long logs, some with one thing wrong."""
    kinds = rng.choice(["63 63 63 1", " ".join([*SIZES, *LINEAR]), "15 2 30 36 63 9", "1 46 22 16"])
    found: list[dict[str, Any]] = [{"id": "0", "order_id": 0, "parent": -1, "bp_id": -1}]
    kept, straight = ["0"], rng.random() < 0.2
    for number in range(1, rng.randint(1, 9)):
        kind = rng.choice([kind for kind in kinds.split() if kind != "0"])
        open_ones = [place for place, above in enumerate(kept) if ATTACH[above]]
        ends = [
            (parent, rng.randrange(len(ATTACH[kept[parent]])))
            for parent in (rng.choice(open_ones[-3:]), rng.choice(open_ones))
        ]
        if straight and ATTACH[kept[-1]]:
            kind, ends = "63", [(number - 1, 0)] * 2
        entry: dict[str, Any] = {"id": rng.choice([kind, int(kind)]), "order_id": number}
        (parent, point), (other, its_point) = ends
        if kind in LINEAR:
            entry |= {"parent_a": parent, "bp_id_a": point}
            entry |= {"parent_b": other, "bp_id_b": its_point}
        else:
            entry |= {"parent": parent, "bp_id": rng.choice([point, str(point)])}
        found.append(entry)
        kept.append(kind)
    if rng.random() < 0.25:
        spoil(rng, rng.choice(found), len(found))
    if rng.random() < 0.3:
        found = [in_the_papers_names(entry) for entry in found]
    return found


def spoil(rng: random.Random, entry: dict[str, Any], count: int) -> None:
    key = rng.choice(list(entry))
    if rng.random() < 0.2:
        entry[rng.choice(["scale", "parent_a", "type"])] = entry.pop(key)
    else:
        kinds, numbers = ["404", 99, None, "36", 15], [-2, -1, 0, 1, 3, 6, 9, 13, count]
        entry[key] = rng.choice(kinds if key == "id" else [*numbers, "two", "9", None, [1]])


def in_the_papers_names(entry: dict[str, Any]) -> dict[str, Any]:
    names = {"id": "type", "order_id": "id"}
    return {names.get(key, key.replace("bp_id", "face_id")): value for key, value in entry.items()}


@pytest.mark.slow
def test_ten_thousand_random_trees_are_judged_as_by_the_second_checker() -> None:
    rng = random.Random(20251)
    counts = Counter[str]()
    for number in range(10_000):
        entries = some_entries(rng)
        found = check(json.dumps(entries))
        assert found.valid == slow_check(entries), (number, entries, list(map(str, found.faults)))
        counts[found.faults[0].stage if found.faults else "valid"] += 1
    # All kinds of outcome were really among them.
    assert min(counts[kind] for kind in ("valid", "structure", "size", "spatial")) > 300, counts


def test_size_and_overlap_are_reported_together() -> None:
    built: Tree = tree(*((63, number, 0) for number in range(6)), (15, 1, 1), (15, 1, 1))
    assert {fault.stage for fault in check_tree(built).faults} == {"size", "spatial"}
    assert all(isinstance(fault, MachineFault) for fault in check_tree(built).faults)
