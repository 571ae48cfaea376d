"""cards.json: a run says what its environments were."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Task, TaskKey
from grpo_core.train.trainer import Trainer

from .killing import killed
from .letters import Config, Letters
from .trained import make, trained

SHORT = {"steps": 1, "eval": {"tasks": 0}}


def cards(folder: Path) -> Any:
    return json.loads((folder / "cards.json").read_text())


def test_a_run_writes_a_card_for_each_environment_before_its_first_step(settings, tmp_path):
    shots = {"level": 0.4, "env": {"shots": 2}}
    mixture = {"letters": {"weights": {"share": 2.0}}, "arithmetic": shots}
    more = {"environment": None, "mixture": mixture, "seed": 3}
    run, env = tmp_path / "run", {"letters": Letters()}
    with killed(run, step=1) as observer:
        make(run, settings, SHORT, more, env=env, observer=observer).run()
    letters, arithmetic = cards(run).values()
    assert list(cards(run)) == ["letters", "arithmetic"]
    assert (letters["origin"], letters["parts"], letters["floors"]) == (None, {"share": 2.0}, [])
    assert arithmetic["origin"]["distribution"] == "grpo-core"
    assert arithmetic["settings"] == {"shots": 2}
    assert (arithmetic["seed"], arithmetic["level"]) == (3, 0.4)
    stored = json.loads((run / "config.json").read_text())["provenance"]["environments"]
    assert stored == {name: card["fingerprint"] for name, card in cards(run).items()}


class Untold(Letters):
    def size(self, split: str) -> int | None:
        if split == "eval":
            raise FileNotFoundError("there is no held-out file")
        return None


def test_a_run_that_needs_no_held_out_tasks_goes_on_without_a_card(settings, tmp_path):
    _, heard = trained(tmp_path / "run", settings, SHORT, env=Untold())
    assert cards(tmp_path / "run") == {}
    (warning,) = [text for text in heard.warnings if "no card of 'letters'" in text]
    assert "there is no held-out file" in warning
    assert (tmp_path / "run" / "final").is_dir()


class Held(Letters):
    """Only for evaluation."""

    def task(self, key: TaskKey) -> Task[str]:
        if key.split == "train":
            raise LookupError("there are no training tasks")
        return super().task(key)


@pytest.mark.slow
def test_the_card_of_what_is_only_evaluated_shows_a_held_out_task(settings, tmp_path):
    more = {"steps": 1, "eval": {"tasks": 2, "also": ["arithmetic"]}}
    env = {"letters": Letters(), "arithmetic": Held()}
    trained(tmp_path / "run", settings, more, env=env)
    assert cards(tmp_path / "run")["arithmetic"]["prompt"].startswith("letters ")


@pytest.mark.slow
def test_a_run_that_goes_on_with_another_verifier_has_its_card(settings, tmp_path):
    trained(tmp_path / "run", settings, SHORT, {"steps": 2, "checkpoint": {"every": 1}})
    first = cards(tmp_path / "run")["letters"]["fingerprint"]
    (tmp_path / "run" / "final").rename(tmp_path / "away")
    Trainer.resumed(tmp_path / "run", Letters(Config(fail_below=-2.0)), allow=["letters"]).run()
    card = cards(tmp_path / "run")["letters"]
    assert card["fingerprint"] != first
    assert card["settings"] == {"fail_below": -2.0}
