"""Each check has a fault in the catalogue, a sample of which is found; a score that differs from the page is an error."""

import sys
from pathlib import Path

import pytest

from grpo_kit.run import catalogue as known_checks

sys.path.insert(0, str(Path(__file__).parent))

import bases
import catalogue
import page
import score


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a page of its own that says two faults were missed and one honest design condemned."""
    place = tmp_path / "README.md"
    monkeypatch.setattr(page, "PATH", place)
    marks = [f"<!-- scores: {part} -->\n<!-- end: {part} -->\n" for part in catalogue.PARTS]
    place.write_text("".join(["# A page\n", *marks]))
    page.write("dev", {"FoundAnywhere": (), "SeedsGlobally": (), "ShortList": ("a", "b")})
    return place


def entry_named(name: str) -> catalogue.Entry:
    (entry,) = [entry for entry in catalogue.entries() if entry.name == name]
    return entry


def named_checks() -> list[str]:
    """Return the checks that the faults of the catalogue name."""
    return [check for entry in catalogue.entries() for check in entry.checks]


def test_each_kind_of_the_fresh_part_is_one_of_the_development_part() -> None:
    kinds = {part: {entry.kind for entry in catalogue.faults(part)} for part in catalogue.PARTS}
    assert len(kinds["dev"]) > 200
    assert kinds["fresh10"] < kinds["dev"]


def test_every_fault_names_checks_that_exist() -> None:
    assert set(named_checks()) <= set(known_checks())


def test_every_check_finds_a_fault_of_the_catalogue_but_those_that_need_a_sandbox() -> None:
    others = {check for check in known_checks() if check.startswith("agent.")}  # test_kit_agents.py
    # in test_kit_sandbox.py, test_kit_startup.py, test_kit_mutants.py
    in_sandboxes = {"floor.code", "floor.changed", "episode.startup"}
    others.add("floor.mutants")  # asks for what the author names, as in test_kit_mutants.py
    assert set(known_checks()) - set(named_checks()) - others <= in_sandboxes


def test_a_check_that_does_not_exist_yet_has_found_nothing() -> None:
    entry = catalogue.Entry(bases.PlainSum, "dev", "a kind", ("task.unheard",))
    assert score.failed_checks(entry) == {}


@pytest.mark.slow
def test_a_sample_of_the_catalogue_is_scored_as_a_whole_part_is() -> None:
    names = ("FoundAnywhere", "SoundPlainSum", "UntypedTool")
    entries = [entry for entry in catalogue.entries() if entry.name in names]
    results = dict(score.score(entries))
    assert {name: [*result.failed] for name, result in results.items()} == {
        "FoundAnywhere": ["floor.listed"],
        "SoundPlainSum": [],
        "UntypedTool": ["tool.form"],
    }
    surprising = score.surprises(entries, results)
    assert surprising == {}
    assert "| **all** | 2 | 2 | 1 | 0 | 0 |" in page.table(entries, surprising)


def test_what_is_written_into_the_page_is_read_from_it_and_the_rest_of_it_stays(
    place: Path,
) -> None:
    said = {"FoundAnywhere": (), "SeedsGlobally": (), "ShortList": ("a", "b")}
    assert (page.said("dev"), page.said("fresh10")) == (said, {})
    page.write("dev", {})
    page.write("fresh10", {"FerryByTheInt": ()})
    assert (page.said("dev"), page.said("fresh10")) == ({}, {"FerryByTheInt": ()})
    assert place.read_text().startswith("# A page\n<!-- scores: dev -->\n| theme |")
    assert place.read_text().endswith("<!-- end: fresh10 -->\n")


def test_a_page_that_names_an_entry_that_does_not_exist_is_refused(place: Path) -> None:
    place.write_text(place.read_text().replace("FoundAnywhere", "FoundNowhere"))
    with pytest.raises(SystemExit, match=r"README\.md names FoundNowhere, .*the part dev"):
        page.said("dev")


def test_a_page_without_a_place_for_a_part_is_refused(place: Path) -> None:
    place.write_text(place.read_text().replace("<!-- end: dev -->", ""))
    with pytest.raises(SystemExit, match="no place for the part dev: add the lines"):
        page.said("dev")


def test_a_score_that_differs_from_the_page_for_better_or_worse_is_told() -> None:
    names = ("FoundAnywhere", "SeedsGlobally", "OutageIsWrong", "SoundPlainSum", "ShortList")
    entries = [entry_named(name) for name in names]
    results = {
        "FoundAnywhere": score.Result({"floor.listed": "paid"}, 1.0),
        "SeedsGlobally": score.Result({}, 1.0),
        "OutageIsWrong": score.Result({}, 1.0),
        "SoundPlainSum": score.Result({}, 1.0, "Killed"),
        "ShortList": score.Result({"task.variety": "few"}, 1.0),
    }
    measured = score.surprises(entries, results)
    said = {"FoundAnywhere": (), "SeedsGlobally": (), "ShortList": ("task.variety",)}
    assert score.differences(entries, measured, said) == [
        "FoundAnywhere was found; README.md says missed (--write changes it)",
        "OutageIsWrong was missed; README.md says found (--write changes it)",
        "SoundPlainSum was condemned by no result; README.md says passed (--write changes it)",
    ]
    assert "| **all** | 3 | 1 | 2 | 1 | 1 |" in page.table(entries, measured)


@pytest.mark.parametrize("output", ["", "bye\n", '{"floor.listed": "paid"}\n3\n'])
def test_a_process_that_ends_without_a_result_has_found_nothing(output: str) -> None:
    result = score.result_of(output, "", 1.0)
    assert (result.failed, result.failure[:10]) == ({}, "ended with")
    assert score.result_of('hello\n{"floor.listed": "paid"}\n', "", 1.0).failed
    assert not score.result_of('{"floor.listed": "paid"}\n', "took more than 300 s", 1.0).failed


@pytest.mark.slow
def test_the_command_fails_where_the_page_says_otherwise_until_it_is_written(place: Path) -> None:
    with pytest.raises(SystemExit, match=r"FoundAnywhere was found; README\.md says missed"):
        score.main(["--only", "FoundAnywhere"])
    score.main(["--only", "FoundAnywhere", "--write"])
    assert page.said("dev") == {"SeedsGlobally": (), "ShortList": ("a", "b")}
    score.main(["--part", "dev", "--only", "FoundAnywhere"])


@pytest.mark.parametrize("part", catalogue.PARTS)
def test_the_page_counts_the_entries_that_there_are(part: catalogue.Part) -> None:
    assert page.said_block(part) == page.block(part, page.said(part))
