"""What is read as a construction tree, what is wrong with one in its builder's own terms, and that no text does harm."""

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_env_besiege.blocks import BLOCKS
from grpo_env_besiege.growing import grow
from grpo_env_besiege.machines import MACHINES, PAPER_CAR, PAPER_CATAPULT
from grpo_env_besiege.reading import MAX_CHARS
from grpo_env_besiege.tree import MAX_BLOCKS, SPELLINGS, to_json
from grpo_env_besiege.validity import check, check_tree

ROOT = {"id": "0", "order_id": 0, "parent": -1, "bp_id": -1}
LINK = {"id": "15", "order_id": 1, "parent_a": 0, "bp_id_a": 0, "parent_b": 0, "bp_id_b": 1}


def block(kind: Any, number: int, parent: Any, point: Any) -> dict[str, Any]:
    return {"id": kind, "order_id": number, "parent": parent, "bp_id": point}


def reasons(*entries: Any) -> list[str]:
    return [str(fault) for fault in check(json.dumps([ROOT, *entries])).faults]


# What is read


def test_the_last_json_block_counts_whatever_stands_around_it() -> None:
    good, bad = to_json(PAPER_CAR), "[]"
    for text in (
        good,
        f"```json\n{good}\n```",
        f"<cot>long legs</cot>\nHere: ```json {good}``` done",
        f"```necessary_blocks\n[1]\n```\n```json\n{good}\n```",
        f"```json\n{bad}\n```\n```json\n{good}\n```",
        f"```python\n{good}\n```",
    ):
        assert check(text).valid, text
    assert not check(f"```json\n{good}\n```\n```json\n{bad}\n```").valid


def test_both_spellings_and_numbers_as_text_are_read() -> None:
    entries = json.loads(to_json(PAPER_CATAPULT))
    games, papers = (*SPELLINGS[0], *SPELLINGS[1]), (*SPELLINGS[2], *SPELLINGS[3])
    names = dict(zip(games, papers, strict=True))
    paper = [{names[key]: value for key, value in entry.items()} for entry in entries]
    assert list(paper[0]) == ["type", "id", "parent", "face_id"]
    as_text = [{key: str(value) for key, value in entry.items()} for entry in entries]
    as_numbers = [{**entry, "id": int(entry["id"])} for entry in entries]
    for written in (entries, paper, as_text, as_numbers):
        assert check(json.dumps(written)).machine.tree == PAPER_CATAPULT  # type: ignore[union-attr]


def test_python_literals_are_read_and_never_run() -> None:
    literal = repr(json.loads(to_json(PAPER_CAR)))
    assert "'id'" in literal
    fenced = f"```json\n{literal}\n```", f"```python\n[{literal[1:-1]},]  # a car\n```"
    for text in (literal, literal[:-1] + ",]", *fenced):
        assert check(text).valid, text
    for text in ("__import__('os').getpid()", "[{'id': 1 + 1}]", "{**{}}", "[x for x in ()]"):
        assert [fault.stage for fault in check(text).faults] == ["file"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "looked for JSON: the text is empty"),
        ("a car with four wheels", "looked for JSON: there is no list and no object"),
        (f"{to_json(PAPER_CAR)} or []", "several texts stand in brackets"),
        ("```json\nnone\n```", "no block between code fences begins with [ or {"),
        ("```json\n[", "never closed"),
        ("{}", "has to be a list of objects, one for each block; found a single object"),
        ("[1]", "found an entry that is none, number 0"),
        ("[]", "the list of blocks is empty"),
        ("[" * 1000, "is not valid JSON"),
        ("x" * (MAX_CHARS + 1), f"{MAX_CHARS + 1} characters; at most {MAX_CHARS} are read"),
    ],
)
def test_a_file_without_a_list_of_blocks_says_what_was_found(text: str, said: str) -> None:
    found = check(text)
    assert [fault.stage for fault in found.faults] == ["file"]
    assert said in str(found.faults[0])
    assert not any(found.passes(stage) for stage in ("file", "structure", "size", "spatial"))


# What is wrong with the structure


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (block("15", 1, 0, 6), "block 1: point 6 of a Starting block; it has 0..5"),
        (block("15", 1, 1, 0), "block 1: its parent is block 1; it has to be an earlier one, 0..0"),
        (
            block("15", 2, 0, 0),
            "block 1: its order_id is 2; blocks are numbered in build order, so this one is 1",
        ),
        (block("99", 1, 0, 0), 'block 1: there is no type "99"'),
        (block("15", 1, "zero", 0), 'block 1: parent has to be a whole number; found "zero"'),
        (block("9", 1, 0, 0), "block 1: a Rubber band has two parents, a and b; found 1"),
        (LINK, "block 1: a Small wooden block has one parent; found 2"),
        (
            {**block("15", 1, 0, 0), "scale": 2},
            'block 1: its keys are ["id", "order_id", "parent", "bp_id", "scale"]; '
            "a block has id, order_id, parent, bp_id, or parent_a, bp_id_a, parent_b, bp_id_b",
        ),
    ],
)
def test_a_fault_is_told_in_the_blocks_own_terms(entry: dict[str, Any], said: str) -> None:
    assert reasons(entry) == [said]


def test_what_is_built_on_an_illegal_block_is_illegal_too() -> None:
    assert reasons(block("15", 1, 0, 9), block("15", 2, 1, 0), block("15", 3, 0, 0)) == [
        "block 1: point 9 of a Starting block; it has 0..5",
        "block 2: its parent, block 1, is illegal",
    ]
    on_a_boulder = reasons(block("36", 1, 0, 4), block("15", 2, 1, 0))
    assert on_a_boulder == ["block 2: point 0 of a Boulder; it has none"]


@pytest.mark.parametrize("change", [{"id": "15"}, {"order_id": 1}, {"parent": 0}, {"bp_id": 0}])
def test_the_first_block_is_the_root(change: dict[str, Any]) -> None:
    found = check(json.dumps([{**ROOT, **change}]))
    assert [(fault.stage, fault.block) for fault in found.faults] == [("structure", 0)]


def test_a_machine_has_at_most_sixty_blocks() -> None:
    row = [block("15", number, 0, 0) for number in range(1, MAX_BLOCKS + 1)]
    said = f"the machine has {MAX_BLOCKS + 1} blocks; at most {MAX_BLOCKS} are allowed"
    assert reasons(*row) == [said]


@pytest.mark.parametrize(
    ("blocks", "passed"),
    [
        ([block("15", 1, 0, 0), block("15", 2, 0, 0)], ["file", "structure", "size"]),
        ([block("15", 1, 0, 6)], ["file"]),
    ],
)
def test_the_stages_pass_in_order(blocks: list[dict[str, Any]], passed: list[str]) -> None:
    found = check(json.dumps([ROOT, *blocks]))
    stages = ("file", "structure", "size", "spatial")
    assert [stage for stage in stages if found.passes(stage)] == passed


# No text does harm


def assert_judged_in_time(text: str) -> None:
    """In processor time: other tests want the processor, too."""
    started = time.process_time()
    found = check(text)
    assert time.process_time() - started < 1
    assert found.valid == (found.faults == ())
    assert all(str(fault) and len(str(fault)) < 1000 for fault in found.faults)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=2000))
def test_any_text_is_judged(text: str) -> None:
    assert_judged_in_time(text)
    assert_judged_in_time(f"```json{text}```")


NUMBERS = st.integers(-2, 14) | st.integers() | st.sampled_from(["1", "-1", "x", None, 1.5, True])
ENTRIES = st.fixed_dictionaries(
    {
        "id": st.sampled_from([*BLOCKS, 1, 63, "404"]),
        "order_id": NUMBERS,
        "parent": NUMBERS,
        "bp_id": NUMBERS,
    }
)
LINKS = st.fixed_dictionaries(
    {"id": st.sampled_from(["7", "9", "45", "1"]), "order_id": NUMBERS}
    | dict.fromkeys(("parent_a", "bp_id_a", "parent_b", "bp_id_b"), NUMBERS)
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(ENTRIES | LINKS, max_size=20), st.booleans())
def test_any_tree_is_judged(entries: list[dict[str, Any]], numbered: bool) -> None:
    if numbered:
        entries = [{**entry, "order_id": number} for number, entry in enumerate(entries, 1)]
    assert_judged_in_time(json.dumps([ROOT, *entries]))


@pytest.mark.parametrize(
    "text",
    [
        "[" * MAX_CHARS,
        "```json" * (MAX_CHARS // 7),
        "{'a':" * (MAX_CHARS // 5),
        "[" + "9" * (MAX_CHARS - 2) + "]",
        "[{}," * (MAX_CHARS // 4),
        "[" + ",".join(["{}"] * (MAX_CHARS // 3 - 1)) + "]",
        '[{"' + "k" * (MAX_CHARS - 10) + '":1}]',
    ],
)
def test_the_largest_hostile_texts_take_less_than_a_second(text: str) -> None:
    assert len(text) <= MAX_CHARS
    assert_judged_in_time(text)


# Machines that ship


@pytest.mark.parametrize("name", MACHINES)
def test_machines_to_compare_with_are_valid(name: str) -> None:
    assert check(to_json(MACHINES[name])).faults == ()


def test_random_machines_are_valid_and_of_the_wanted_size() -> None:
    for seed in range(20):
        one, again = (grow(random.Random(seed), size=12, types=sorted(BLOCKS)) for _ in range(2))
        assert (check_tree(one).valid, len(one)) == (True, 12)
        assert again == one
