"""cards.json: a run says what its environments were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.overrides import build_config
from grpo_core.train.observe import Silent
from grpo_core.train.trainer import Trainer

from .letters import Config, Letters


class StopAtOnce(Silent):
    """Ends a run after its first step."""

    def step(self, step: int, total: int, metrics: Any) -> None:
        raise KeyboardInterrupt


def cards(folder: Path) -> Any:
    return json.loads((folder / "cards.json").read_text())


def test_a_run_writes_a_card_for_each_environment_before_its_first_step(settings, tmp_path):
    mixture = {"letters": {"weights": {"share": 2.0}}, "arithmetic": {"level": 0.4, "env": {"shots": 2}}}
    config = build_config([{**settings, "environment": None, "mixture": mixture, "seed": 3, "eval": {"tasks": 0}, "steps": 1}])
    trainer = Trainer(config, {"letters": Letters()}, folder=tmp_path / "run", observer=StopAtOnce())
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    found = cards(tmp_path / "run")
    assert list(found) == ["letters", "arithmetic"]
    letters, arithmetic = found["letters"], found["arithmetic"]
    assert (letters["origin"], letters["parts"], letters["floors"]) == (None, {"share": 2.0}, [])
    assert arithmetic["origin"]["distribution"] == "grpo-core"
    assert arithmetic["settings"] == {"shots": 2}
    assert (arithmetic["seed"], arithmetic["level"]) == (3, 0.4)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["provenance"]["environments"]
    assert stored == {name: card["fingerprint"] for name, card in found.items()}


def test_a_run_that_goes_on_with_another_verifier_has_its_card(settings, tmp_path):
    config = build_config([settings, {"steps": 2, "eval": {"tasks": 0}, "checkpoint": {"every": 1}}])
    Trainer(config, Letters(), folder=tmp_path / "run").run()
    first = cards(tmp_path / "run")["letters"]["fingerprint"]
    (tmp_path / "run" / "final").rename(tmp_path / "away")
    Trainer.resumed(tmp_path / "run", Letters(Config(fail_below=-2.0)), allow=["letters"]).run()
    assert cards(tmp_path / "run")["letters"]["fingerprint"] != first
    assert cards(tmp_path / "run")["letters"]["settings"] == {"fail_below": -2.0}
