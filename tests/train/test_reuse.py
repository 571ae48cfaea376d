"""A trainer that is used again: after a failure, after a stop, after a resume in the same process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.trainer import Trainer

from .letters import Letters

TIMED = ("time/", "verify/seconds/", "eval/verify/seconds/", "memory/", "eval/seconds")


def trainer(settings: dict[str, Any], folder: Path, **more: Any) -> Trainer:
    config = build_config([settings, nested({"steps": 5, "eval.tasks": 6, **more})])
    return Trainer(config, Letters(), folder=folder)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if not key.startswith(TIMED)}
        for line in read_lines(folder / "metrics.jsonl")
    ]


def fail_once(trainer: Trainer, *, step: int, at: str) -> None:
    """Make `collect` or `update` of a step fail, the first time."""
    whole = getattr(trainer.method, at)

    async def failing(first: Any, *others: Any) -> Any:
        number = first if at == "collect" else first.step
        result = await whole(first, *others)
        if number == step:
            setattr(trainer.method, at, whole)
            raise ValueError("broken once")
        return result

    setattr(trainer.method, at, failing)


@pytest.mark.parametrize("at", ["collect", "update"])
def test_a_run_that_failed_goes_on_from_its_checkpoint_as_if_nothing_had_happened(
    settings: dict[str, Any], tmp_path: Path, at: str
) -> None:
    trainer(settings, tmp_path / "whole", **{"checkpoint.every": 1}).run()
    broken = trainer(settings, tmp_path / "run", **{"checkpoint.every": 1})
    fail_once(broken, step=3, at=at)
    with pytest.raises(ValueError, match="broken once"):
        broken.run()
    broken.run()
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_failed_while_it_collected_its_first_batch_begins_with_the_same_tasks(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    trainer(settings, tmp_path / "whole").run()
    broken = trainer(settings, tmp_path / "run")
    fail_once(broken, step=1, at="collect")
    with pytest.raises(ValueError, match="broken once"):
        broken.run()
    broken.run()
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_a_run_that_was_refused_is_refused_again_and_writes_nothing(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    refused = trainer(settings, tmp_path / "run", **{"sampling.max_new_tokens": 100_000})
    for _ in range(2):
        with pytest.raises(ConfigError, match="exceed the model's context"):
            refused.run()
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_that_failed_before_any_checkpoint_does_not_start_again_with_other_weights(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    broken = trainer(settings, tmp_path / "run")
    fail_once(broken, step=1, at="update")
    with pytest.raises(ValueError, match="broken once"):
        broken.run()
    with pytest.raises(ConfigError, match="has no checkpoint, and training has changed the weight"):
        broken.run()
    # The lock is free: another trainer starts the run from its beginning.
    again = Trainer.resumed(tmp_path / "run", Letters())
    again.run()
    trainer(settings, tmp_path / "whole").run()
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_stop_rules_count_the_log_once_after_a_resume_in_the_same_process(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    rules = {
        "eval.every": 1,
        "stop.patience": 3,
        "optimizer.lr": 0.0,
        "checkpoint.every": 1,
        "steps": 9,
    }
    whole = trainer(settings, tmp_path / "whole", **rules)
    whole.run()
    assert 2 < whole.done < 9
    stopped = trainer(settings, tmp_path / "run", **rules)
    stopped.observer.step = lambda number, total, metrics: (  # type: ignore[method-assign]
        stopped.request_stop() if number == 2 and not stopped.end else None
    )
    stopped.run()
    assert stopped.resume() == 2
    stopped.run()
    assert stopped.done == whole.done


def test_an_environment_for_a_mixture_is_asked_for_its_name(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    mixture = {"environment": None, "mixture": {"letters": {}, "arithmetic": {}}}
    with pytest.raises(ConfigError, match=r"has the environments letters, arithmetic; give yours"):
        Trainer(build_config([settings, mixture]), Letters(), folder=tmp_path / "run")


def test_a_tracker_hears_no_end_of_a_run_that_was_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    warnings: list[str] = []

    class Recorder(Observer):
        def warn(self, text: str) -> None:
            warnings.append(text)

    config = build_config(
        [settings, nested({"log.trackers": ["tensorboard"], "sampling.max_new_tokens": 100_000})]
    )
    with pytest.raises(ConfigError, match="exceed the model's context"):
        Trainer(config, Letters(), folder=tmp_path / "run", observer=Recorder()).run()
    assert not [text for text in warnings if "RunEnded" in text]


def test_examples_longer_than_the_models_context_are_left_out_whatever_the_setting(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": "a", "completion": "b" * length} for length in (3, 100_000)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = build_config(
        [
            settings,
            nested({"method": "sft", "steps": 1, "eval.tasks": 0, "sft.batch_size": 2}),
            nested({"sft.data": str(data), "sft.max_length": 1_000_000}),
        ]
    )
    Trainer(config, Letters(), folder=tmp_path / "run").run()
    assert lines(tmp_path / "run")[0]["examples/too_long"] == 1.0


def test_a_warm_start_on_a_file_says_what_it_learned_from_and_misses_no_held_out_tasks(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "a", "completion": "bc"}) + "\n")
    warm = nested({"method": "sft", "steps": 1, "sft.batch_size": 1, "sft.data": str(data)})

    class NothingHeldOut(Letters):
        def size(self, split: str) -> int | None:
            return 0 if split == "eval" else None

    with pytest.raises(ConfigError, match="has no held-out tasks with these settings"):
        Trainer(build_config([settings, warm]), NothingHeldOut(), folder=tmp_path / "none")
    Trainer(build_config([settings, warm]), Letters(), folder=tmp_path / "run").run()
    assert "trained on examples by SFT" in (tmp_path / "run" / "final" / "README.md").read_text()
