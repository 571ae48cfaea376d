"""What a run logs of its rollouts by the options of the log, and that logging changes nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from grpo_core import Group
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.index import RolloutIndex
from grpo_core.runs.index_place import index_path
from grpo_core.train.compute.batch import Row
from grpo_core.train.trainer import Trainer
from grpo_core.train.update.updater import Updater

from .arrange import collate, random_rollouts, run_config, tiny_policy
from .killing import killed
from .letters import Letters
from .test_algorithm import spoken
from .test_options import untimed

STEPS = 3


class Recorded(RunFolder):
    """A run folder that keeps the groups it is given."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.groups: list[tuple[int, Group[Any]]] = []

    def rollouts(self, step: int, group: Group[Any], *more: Any, **fields: Any) -> None:
        self.groups.append((step, group))
        super().rollouts(step, group, *more, **fields)


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "steps": STEPS, "eval": {"tasks": 5, "every": 2}}


def trained(settings: dict[str, Any], folder: Path, **log: Any) -> Recorded:
    recorded = Recorded(folder)
    config = build_config([settings, {"log": log}])
    Trainer(config, Letters(), folder=recorded).run()
    return recorded


def raw_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_ratio_and_entropy_of_each_token_equal_those_of_one_sequence_at_a_time() -> None:
    """In the second pass the policy has moved once; a twin that made one pass is where it is then."""
    sections = {
        "optimizer": {"lr": 0.05},
        "schedule": {"name": "constant", "warmup": 0},
        "kl": {"beta": 0.0},
        "trainer": {"mu": 2, "micro_batch_tokens": 64},
        "log": {"ratios": True},
    }
    rollouts_PG = random_rollouts(3, 4)
    advantage_PG = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4)
    scored_PG = torch.ones(3, 4, dtype=torch.bool)
    scored_PG[1, 2] = False

    def rows() -> list[list[Row]]:
        return collate(rollouts_PG, advantage_PG, scored_PG, aggregation="token_mean", max_length=9)

    start, twin, policy = tiny_policy(), tiny_policy(), tiny_policy()
    Updater(twin, run_config(**{**sections, "trainer": {"mu": 1}}), steps=1).update(rows())
    updater = Updater(policy, run_config(**sections), steps=1)
    updater.update(rows())
    with torch.no_grad():
        before, moved = spoken(start, rollouts_PG, 1.0), spoken(twin, rollouts_PG, 1.0)
    assert updater.token_values is not None
    seen = {
        (p, *place): values
        for p, by_place in updater.token_values.by_prompt()
        for place, values in by_place.items()
    }
    assert (1, 2, 0) not in seen
    moved_most = 0.0
    for p, group in enumerate(rollouts_PG):
        for g, rollout in enumerate(group):
            if not scored_PG[p, g]:
                continue
            mask = torch.tensor(rollout.trainable, dtype=torch.bool)
            ratios, entropies = seen[p, g, 0]
            old, (new, entropy, _) = before[rollout.token_ids][0], moved[rollout.token_ids]
            torch.testing.assert_close(
                torch.tensor(ratios, dtype=torch.float64), (new - old).exp()[mask].double()
            )
            torch.testing.assert_close(
                torch.tensor(entropies, dtype=torch.float64), entropy[mask].double()
            )
            moved_most = max([moved_most, *(abs(ratio - 1) for ratio in ratios)])
    assert moved_most > 0.01


def test_tokens_are_logged_as_they_were_sampled(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(settings, tmp_path / "run", tokens=True, ratios=True)
    rollouts = [rollout for _, group in folder.groups for rollout in group.rollouts]
    vocabulary = folder.vocabulary()
    assert vocabulary is not None
    lines = list(folder.rollout_lines())
    for line, rollout in zip(lines, rollouts, strict=True):
        (tokens,) = line["policy_tokens"]
        assert tuple(tokens["ids"]) == rollout.token_ids  # one turn: the policy wrote all of them
        as_float32 = torch.tensor(rollout.logprobs, dtype=torch.float32)
        assert torch.equal(torch.tensor(tokens["logprobs"], dtype=torch.float32), as_float32)
        assert tokens["turns"] == [len(rollout.token_ids)]
        shown = "".join(vocabulary[token_id] for token_id in tokens["ids"])
        text = re.sub(r"<\|(pad|im_end)\|>", "", shown)  # what ends a turn or pads has no text
        assert line["messages"][-1]["content"] == text


def test_each_update_is_logged_after_it_and_agrees_with_the_metrics(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = trained(settings, tmp_path / "run", ratios=True)
    metrics = {
        line["step"]: line for line in folder.metric_lines() if "entropy" in line and line["step"]
    }
    for step in range(1, STEPS + 1):
        lines = [line for line in raw_lines(folder.path) if line["step"] == step]
        updates = [line for line in lines if "attempts" in line]
        entropies = [
            value
            for line in updates
            for attempt in line["attempts"]
            for segment in attempt["entropies"]
            for value in segment
        ]
        ratios = [
            value
            for line in updates
            for attempt in line["attempts"]
            for segment in attempt["ratios"]
            for value in segment
        ]
        assert len(entropies) == len(ratios) == metrics[step]["tokens/trained"]
        assert set(ratios) == {1.0}  # with one pass the policy is the one that sampled
        assert sum(entropies) / len(entropies) == pytest.approx(metrics[step]["entropy"], rel=1e-5)
        kinds = ["attempts" in line for line in lines if line.get("key", {}).get("split") != "eval"]
        assert kinds == sorted(kinds)
    with RolloutIndex.open(folder.path) as index:
        for group in index.groups():
            trained_on = [line for line in index.read(group.id)["rollouts"] if "ratios" in line]
            assert len(trained_on) == (0 if group.split == "eval" else 6)


def test_options_of_the_log_change_neither_metrics_nor_weights(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    plain = trained(settings, tmp_path / "plain")
    for number, log in enumerate(
        ({"tokens": True, "ratios": True}, {"rollouts": "none"}, {"rollouts": "sample"})
    ):
        other = trained(settings, tmp_path / f"other-{number}", **log)
        assert untimed(other.path) == untimed(plain.path)
        weights = [
            (folder.path / "final" / "adapter_model.safetensors").read_bytes()
            for folder in (plain, other)
        ]
        assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_sample_keeps_some_groups_of_each_step_and_whole_evaluations(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**settings, "steps": 4}
    whole = trained(settings, tmp_path / "whole", ratios=True)
    log: dict[str, Any] = {"rollouts": "sample", "sample_groups": 2, "ratios": True}
    sampled, again = (trained(settings, tmp_path / name, **log) for name in ("a", "b"))

    def places(folder: RunFolder, split: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for line in folder.rollout_lines():
            if line["key"]["split"] == split:
                found.setdefault(line["step"], []).append(line["group"])
        return found

    kept = places(sampled, "train")
    assert kept == places(again, "train")
    assert [len(set(numbers)) for numbers in kept.values()] == [2] * 4
    assert len({tuple(numbers) for numbers in kept.values()}) > 1  # not the same ones always
    assert places(sampled, "eval") == places(whole, "eval")
    updates = [line for line in raw_lines(sampled.path) if "attempts" in line]
    assert all(line["group"] in kept[line["step"]] for line in updates)


@pytest.mark.slow
def test_without_rollouts_only_verdicts_of_evaluations_are_kept(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    whole = trained(settings, tmp_path / "whole")
    folder = trained(settings, tmp_path / "none", rollouts="none", tokens=True)
    lines = list(folder.rollout_lines())
    assert {line["key"]["split"] for line in lines} == {"eval"}
    for line, own in zip(
        lines,
        [line for line in whole.rollout_lines() if line["key"]["split"] == "eval"],
        strict=True,
    ):
        assert line["verdict"]["total"] == own["verdict"]["total"]
        assert (line["messages"], line["verdict"]["answer"]) == ([], None)
    assert "letters " not in (folder.path / "rollouts.jsonl").read_text()  # of the prompts
    shown = CliRunner().invoke(app, ["compare", str(whole.path), str(folder.path), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["reward"]["mean"] == 0
    shown = CliRunner().invoke(app, ["rescore", str(folder.path)])
    assert shown.exit_code == 2
    assert "logged no completions (log.rollouts=none)" in f"{shown.exception} {shown.output}"
    with RolloutIndex.open(folder.path) as index:
        assert index.count().rollouts == len(lines)
        assert index.read(1)["prompt"] is None


def test_a_resumed_run_logs_and_indexes_what_an_undisturbed_one_does(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    log = {"tokens": True, "ratios": True, "rollouts": "sample", "part_mb": 0.01}
    options = [{**settings, "steps": 7, "checkpoint": {"every": 2}}, {"log": log}]
    Trainer(build_config(options), Letters(), folder=RunFolder(tmp_path / "whole")).run()
    run = tmp_path / "parts"
    with killed(run, step=5) as observer:
        Trainer(build_config(options), Letters(), folder=RunFolder(run), observer=observer).run()
    assert list(run.glob("rollouts-*.jsonl.gz"))
    with RolloutIndex.open(run) as index:
        assert index.facets().steps.high == 5  # which the resume takes back
    Trainer.resumed(run, Letters()).run()

    def content(folder: Path) -> list[str]:
        with RolloutIndex.open(folder) as index:
            groups = [index.read(group.id) for group in index.groups(limit=-1)]
        return [re.sub(r'"seconds": [^,}]*', "", json.dumps(group)) for group in groups]

    assert content(run) == content(tmp_path / "whole")
    index_path(run).rename(tmp_path / "kept")
    assert content(run) == content(tmp_path / "whole")


def test_at_the_end_of_a_run_its_index_is_complete(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = trained(settings, tmp_path / "run")
    with RolloutIndex.open(folder.path, extend=False) as index:
        assert index.count().rollouts == len(list(folder.rollout_lines()))
        assert index.extend() == 0


def test_an_index_that_cannot_be_written_is_said_once_and_stops_nothing(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(settings, tmp_path / "plain")
    monkeypatch.setattr("grpo_core.runs.tables.SUM_UP_GROUPS", "nonsense")
    monkeypatch.setattr("grpo_core.runs.indexing.SUM_UP_GROUPS", "nonsense")
    folder = trained(settings, tmp_path / "run")
    assert untimed(folder.path) == untimed(plain.path)
    assert (folder.path / "log.txt").read_text().count("is not indexed any further") == 1
    assert not index_path(folder.path).exists()
