"""cards.json: a run says what its environments were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Task, TaskKey
from grpo_core.config.overrides import build_config
from grpo_core.runs.observer import Observer
from grpo_core.train.trainer import Trainer

from .letters import Config, Letters


class StopAtOnce(Observer):
    """Ends a run after its first step."""

    def step(self, step: int, total: int, metrics: Any) -> None:
        raise KeyboardInterrupt


class Told(Observer):
    def __init__(self) -> None:
        self.warnings = list[str]()

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def cards(folder: Path) -> Any:
    return json.loads((folder / "cards.json").read_text())


def test_a_run_writes_a_card_for_each_environment_before_its_first_step(settings, tmp_path):
    mixture = {
        "letters": {"weights": {"share": 2.0}},
        "arithmetic": {"level": 0.4, "env": {"shots": 2}},
    }
    config = build_config(
        [
            {
                **settings,
                "environment": None,
                "mixture": mixture,
                "seed": 3,
                "eval": {"tasks": 0},
                "steps": 1,
            }
        ]
    )
    trainer = Trainer(
        config, {"letters": Letters()}, folder=tmp_path / "run", observer=StopAtOnce()
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    found = cards(tmp_path / "run")
    assert list(found) == ["letters", "arithmetic"]
    letters, arithmetic = found["letters"], found["arithmetic"]
    assert (letters["origin"], letters["parts"], letters["floors"]) == (None, {"share": 2.0}, [])
    assert arithmetic["origin"]["distribution"] == "grpo-core"
    assert arithmetic["settings"] == {"shots": 2}
    assert (arithmetic["seed"], arithmetic["level"]) == (3, 0.4)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["provenance"][
        "environments"
    ]
    assert stored == {name: card["fingerprint"] for name, card in found.items()}


class Untold(Letters):
    def size(self, split: str) -> int | None:
        if split == "eval":
            raise FileNotFoundError("there is no held-out file")
        return None


def test_a_run_that_needs_no_held_out_tasks_goes_on_without_a_card(settings, tmp_path):
    told = Told()
    config = build_config([settings, {"steps": 1, "eval": {"tasks": 0}}])
    Trainer(config, Untold(), folder=tmp_path / "run", observer=told).run()
    assert cards(tmp_path / "run") == {}
    assert (
        len(
            [
                text
                for text in told.warnings
                if "no card of 'letters'" in text and "there is no held-out file" in text
            ]
        )
        == 1
    )
    assert (tmp_path / "run" / "final").is_dir()


class Held(Letters):
    """Only for evaluation."""

    def task(self, key: TaskKey) -> Task[str]:
        if key.split == "train":
            raise LookupError("there are no training tasks")
        return super().task(key)


@pytest.mark.slow
def test_the_card_of_what_is_only_evaluated_shows_a_held_out_task(settings, tmp_path):
    told = Told()
    more = {"steps": 1, "eval": {"tasks": 2, "also": ["arithmetic"]}}
    Trainer(
        build_config([settings, more]),
        {"letters": Letters(), "arithmetic": Held()},
        folder=tmp_path / "run",
        observer=told,
    ).run()
    assert cards(tmp_path / "run")["arithmetic"]["prompt"].startswith("letters ")


@pytest.mark.slow
def test_a_run_that_goes_on_with_another_verifier_has_its_card(settings, tmp_path):
    config = build_config(
        [settings, {"steps": 2, "eval": {"tasks": 0}, "checkpoint": {"every": 1}}]
    )
    Trainer(config, Letters(), folder=tmp_path / "run").run()
    first = cards(tmp_path / "run")["letters"]["fingerprint"]
    (tmp_path / "run" / "final").rename(tmp_path / "away")
    Trainer.resumed(tmp_path / "run", Letters(Config(fail_below=-2.0)), allow=["letters"]).run()
    assert cards(tmp_path / "run")["letters"]["fingerprint"] != first
    assert cards(tmp_path / "run")["letters"]["settings"] == {"fail_below": -2.0}
