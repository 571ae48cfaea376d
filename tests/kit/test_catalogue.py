"""The catalogue of planted faults is large enough, and its page says what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grpo_core.kit.result import catalogue as known_checks

sys.path.insert(0, str(Path(__file__).parent))

import bases
import catalogue
import score


def entries() -> tuple[list[catalogue.Entry], list[catalogue.Entry]]:
    """Return all faults and all honest designs."""
    return (
        [entry for part in catalogue.PARTS for entry in catalogue.faults(part)],
        [entry for part in catalogue.PARTS for entry in catalogue.honest_designs(part)],
    )


def test_there_are_enough_faults_of_enough_kinds_and_honest_designs() -> None:
    faults, honest = entries()
    kinds = {entry.kind for entry in faults}
    assert len(faults) >= 240
    assert len(kinds) >= 120
    assert len(honest) >= 120


def test_every_fault_names_checks_that_exist() -> None:
    faults, _ = entries()
    named = {check for entry in faults for check in entry.checks}
    assert named <= set(known_checks())


def test_every_check_finds_a_fault_of_the_catalogue_but_those_that_need_a_sandbox() -> None:
    faults, _ = entries()
    named = {check for entry in faults for check in entry.checks}
    others = {check for check in known_checks() if check.startswith("agent.")}  # test_kit_agents.py
    # in test_kit_sandbox.py, test_kit_startup.py, test_kit_mutants.py
    in_sandboxes = {"floor.code", "floor.changed", "episode.startup"}
    others.add("floor.mutants")  # asks for what the author names, as in test_kit_mutants.py
    assert set(known_checks()) - named - others <= in_sandboxes


@pytest.mark.parametrize("part", catalogue.PARTS)
def test_the_page_holds_the_scores_that_are_stored(part: catalogue.Part) -> None:
    scores = score.stored(part)
    assert scores is not None, f"the part {part} has not been scored"
    assert score.block(scores) in score.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("part", catalogue.PARTS)
def test_the_stored_scores_are_those_of_the_whole_part(part: catalogue.Part) -> None:
    scores = score.stored(part)
    assert scores is not None, f"the part {part} has not been scored"
    assert set(scores["faults"]) == {entry.name for entry in catalogue.faults(part)}
    assert set(scores["honest"]) == {entry.name for entry in catalogue.honest_designs(part)}


@pytest.mark.parametrize("part", ["dev", "fresh"])
def test_of_the_parts_that_were_mended_after_nearly_all_faults_are_found(
    part: catalogue.Part,
) -> None:
    scores = score.stored(part)
    assert scores is not None
    assert score.share_found(scores) >= 0.95
    assert score.condemned(scores) == []


def test_of_the_last_fresh_part_nearly_all_faults_were_found_at_first() -> None:
    scores = score.stored("fresh10")
    assert scores is not None
    assert score.share_found(scores) >= 0.95


def test_a_check_that_does_not_exist_yet_has_found_nothing() -> None:
    entry = catalogue.Entry(bases.PlainSum, "dev", "a kind", ("task.unheard",))
    assert score.checked(entry) == {"found": {}}


def test_a_sample_is_scored_as_a_whole_part_is() -> None:
    names = ("FoundAnywhere", "SeedsGlobally", "OutageIsWrong", "SoundPlainSum")
    sample = [entry for name in names for entry in score.chosen("dev", name)]
    scores = score.score("dev", sample)
    assert {name: list(result["found"]) for name, result in scores["faults"].items()} == {
        "FoundAnywhere": ["floor.listed"],
        "SeedsGlobally": ["task.random"],
        "OutageIsWrong": ["verdict.outage"],
    }
    assert scores["honest"]["SoundPlainSum"]["alarms"] == {}
    assert "| **all** | 3 | 3 | 1 | 0 | 0 |" in score.table(scores)
