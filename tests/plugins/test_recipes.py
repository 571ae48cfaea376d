"""The recipes of the well-known algorithms: they load by name, are valid settings, and name their source."""

import tomllib
from pathlib import Path

import pytest

import grpo_recipes
from grpo_core.cli.run_config import read_config
from grpo_core.config.config import RunConfig

FOLDER = Path(grpo_recipes.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
HARDWARE = ["gpu-10gb"]


def test_there_are_those_of_the_field() -> None:
    assert (
        sorted([*HARDWARE, "grpo", "dr-grpo", "dapo", "gspo", "cispo", "rloo", "passk", "maxk"])
        == NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_found_by_its_name_and_every_setting_in_it_holds(name: str) -> None:
    config = read_config(["arithmetic"], [name], {}, []).model_dump()
    for section, settings in tomllib.loads((FOLDER / f"{name}.toml").read_text()).items():
        assert {key: config[section][key] for key in settings} == settings


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_opens_with_its_source(name: str) -> None:
    comment = (FOLDER / f"{name}.toml").read_text().partition("[")[0]
    assert comment.startswith("# ")
    assert "arXiv 2" in comment or (name in HARDWARE and "Source: " in comment)


def test_recipes_merge_with_others_and_with_settings() -> None:
    config = read_config(["arithmetic"], ["dapo", "passk"], {}, ["loss.clip_high=0.3"])
    assert (
        config.advantage.name,
        config.advantage.k,
        config.loss.clip_high,
        config.sampling.refills,
    ) == ("passk", 4, 0.3, 9)


def test_a_recipe_holds_nothing_that_is_the_default_model_or_task() -> None:
    for name in set(NAMES) - set(HARDWARE):
        given = tomllib.loads((FOLDER / f"{name}.toml").read_text())
        assert (
            given.keys()
            <= {"advantage", "loss", "kl", "sampling", "trainer"}
            <= RunConfig.model_fields.keys()
        )
