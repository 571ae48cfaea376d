"""What the kit finds by itself in a published library: the list is of reasoning-gym 0.1.25, and nothing in the kit knows of it."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from grpo_core.plugins.host import PluginHost

ROOT = Path(__file__).parents[2]
KNOWN: Mapping[str, list[str]] = json.loads(
    (Path(__file__).parent / "reasoning_gym_faults.json").read_text()
)
"""Datasets by check."""
SLOW = ("floor.other", "game_of_life")
"""A worker takes seconds to make its tasks again, so that a verdict may or may not come in time."""
SHOWN = {
    "game_of_life_halting": {"floor.junk", "floor.other", "floor.constant"},  # any text is True
    "puzzle24": {
        "floor.junk",
        "floor.other",
        "floor.constant",
        "safety.eval",
    },  # any four numbers that make 24, read by eval
    "prime_factorization": {"verdict.form", "floor.junk"},  # raises
    "emoji_mystery": {"floor.junk"},  # pays 0.01 for a banana
    "basic_arithmetic": set(),
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "check_reasoning_gym", ROOT / "examples" / "benchmarks" / "check_reasoning_gym.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), SHOWN.items())
def test_the_published_holes_are_found(name: str, expected: set[str], script: ModuleType) -> None:
    asked = {check: count for check, count in script.TASKS.items() if check != "task.process"}
    assert script.faults(name, asked).keys() == expected
    assert {check for check, names in KNOWN.items() if name in names} == expected


@pytest.mark.slow
def test_items_that_depend_on_the_order_of_a_set_are_found(script: ModuleType) -> None:
    assert script.faults("ransom_note", {"task.process": 40}).keys() == {"task.process"}
    assert "ransom_note" in KNOWN["task.process"]


@pytest.mark.heavy
def test_the_list_is_what_the_kit_finds_in_all_datasets(script: ModuleType) -> None:
    names = [
        offer.spec.name.partition("/")[2]
        for offer in PluginHost().specs("environment")
        if offer.spec.name.startswith("reasoning-gym/")
    ]
    assert len(names) == 105
    found: dict[str, list[str]] = {check: [] for check in script.TASKS}
    drifting = set(
        KNOWN["task.process"]
    )  # every other verdict on these depends on the hash seed of this process, too
    for name in names:
        for check in script.faults(name):
            if (check, name) != SLOW and (check == "task.process" or name not in drifting):
                found[check].append(name)
    assert {check: sorted(those) for check, those in found.items()} == KNOWN
