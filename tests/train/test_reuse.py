"""A trainer that is used again: after a failure, after a stop, after a resume in the same process."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import nested
from grpo_core.protocol.errors import ConfigError
from grpo_core.train.trainer import Trainer

from .letters import Letters
from .short_runs import QUICK, Heard, make, ran, run_until, tiny_settings, untimed

SMALL = {**QUICK, "steps": 3, "prompts_per_step": 2, "group_size": 4, "eval.tasks": 3}


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, **nested(SMALL)}


def failing_once(trainer: Trainer, *, step: int, at: str) -> Trainer:
    """Run a trainer whose `collect` or `update` of a step fails the first time; return it."""
    whole = getattr(trainer.method, at)

    async def failing(first: Any, *others: Any) -> Any:
        number = first if at == "collect" else first.step
        result = await whole(first, *others)
        if number == step:
            setattr(trainer.method, at, whole)
            raise ValueError("broken once")
        return result

    setattr(trainer.method, at, failing)
    with pytest.raises(ValueError, match="broken once"):
        trainer.run()
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The metrics of a run that nothing disturbs."""
    place = tmp_path_factory.mktemp("whole")
    ran(tiny_settings(place), place / "run", SMALL)
    return untimed(place / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "step", "every"),
    [
        ("collect", 2, 1),
        ("update", 2, 1),
        pytest.param("collect", 1, 0, marks=pytest.mark.slow),  # the first batch
    ],
)
def test_a_run_that_failed_goes_on_from_its_checkpoint_as_if_nothing_had_happened(
    settings, tmp_path, whole, at, step, every
):
    broken = make(settings, tmp_path / "run", {"checkpoint.every": every})
    failing_once(broken, step=step, at=at).run()
    assert untimed(tmp_path / "run") == whole


def test_a_run_that_was_refused_is_refused_again_and_writes_nothing(settings, tmp_path):
    """Its trackers do not hear of an end."""
    pytest.importorskip("tensorboard")
    changes = {"sampling.max_new_tokens": 100_000, "log.trackers": ["tensorboard"]}
    refused = make(settings, tmp_path / "run", changes, observer=(heard := Heard()))
    for _ in range(2):
        with pytest.raises(ConfigError, match="exceed the model's context"):
            refused.run()
    assert not (tmp_path / "run" / "config.json").exists()
    assert not [text for text in heard.warnings if "RunEnded" in text]


def test_a_run_that_failed_before_any_checkpoint_does_not_start_again_with_other_weights(
    settings, tmp_path, whole
):
    broken = failing_once(make(settings, tmp_path / "run"), step=1, at="update")
    with pytest.raises(ConfigError, match="has no checkpoint, and training has changed the weight"):
        broken.run()
    # The lock is free: another trainer starts the run from its beginning.
    Trainer.resumed(tmp_path / "run", Letters()).run()
    assert untimed(tmp_path / "run") == whole


@pytest.mark.slow
def test_stop_rules_count_the_log_once_after_a_resume_in_the_same_process(settings, tmp_path):
    stops = {"eval.every": 1, "stop.patience": 3, "optimizer.lr": 0.0}
    rules = {**stops, "checkpoint.every": 1, "steps": 9, "eval.tasks": 6}
    whole = ran(settings, tmp_path / "whole", rules)
    assert 2 < whole.done < 9
    stopped = run_until(make(settings, tmp_path / "run", rules), 2)
    assert stopped.resume() == 2
    stopped.run()
    assert stopped.done == whole.done


def test_an_environment_for_a_mixture_is_asked_for_its_name(settings, tmp_path):
    mixture = {"environment": None, "mixture": {"letters": {}, "arithmetic": {}}}
    with pytest.raises(ConfigError, match=r"has the environments letters, arithmetic; give yours"):
        make(settings, tmp_path / "run", mixture)


def warm(data: Path, *completions: str) -> dict[str, Any]:
    """Write examples; return the settings of a warm start on them."""
    rows = [{"prompt": "a", "completion": text} for text in completions]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    count = len(completions)
    return {"method": "sft", "steps": 1, "sft.batch_size": count, "sft.data": str(data)}


def test_examples_longer_than_the_models_context_are_left_out_whatever_the_setting(
    settings, tmp_path
):
    changes = warm(tmp_path / "rows.jsonl", "bbb", "b" * 100_000)
    ran(settings, tmp_path / "run", {**changes, "eval.tasks": 0, "sft.max_length": 1_000_000})
    assert untimed(tmp_path / "run")[0]["examples/too_long"] == 1.0


def test_a_warm_start_on_a_file_says_what_it_learned_from_and_misses_no_held_out_tasks(
    settings, tmp_path
):
    class NothingHeldOut(Letters):
        def size(self, split: str) -> int | None:
            return 0 if split == "eval" else None

    changes = warm(tmp_path / "rows.jsonl", "bc")
    with pytest.raises(ConfigError, match="has no held-out tasks with these settings"):
        make(settings, tmp_path / "none", changes, env=NothingHeldOut())
    ran(settings, tmp_path / "run", changes)
    assert "trained on examples by SFT" in (tmp_path / "run" / "final" / "README.md").read_text()
