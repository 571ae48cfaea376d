"""What a run logs of its rollouts by the options of the log, and that logging changes nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core import Group
from grpo_core.config.overrides import nested
from grpo_core.engine.compute.batch import Row
from grpo_core.runs.folder import RunFolder
from grpo_core.train.trainer import Trainer
from grpo_core.train.update.updater import Updater
from grpo_report.indexes.index import RolloutIndex
from grpo_report.indexes.index_place import index_path

from .arrange import collate, random_rollouts, run_config, tiny_policy
from .killing import killed
from .letters import Letters
from .short_runs import QUICK, grpo, ran, untimed
from .test_algorithm import spoken

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
    usual = {**QUICK, "steps": STEPS, "eval.tasks": 3, "eval.every": 2}
    return {**settings, "prompts_per_step": 3, "group_size": 4, **nested(usual)}


def trained(settings: dict[str, Any], folder: Path, **log: Any) -> Recorded:
    recorded = Recorded(folder)
    ran(settings, recorded, {"log": log})
    return recorded


def raw_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_ratio_and_entropy_of_each_token_equal_those_of_one_sequence_at_a_time():
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
    most = 0.0
    for p, g in scored_PG.nonzero().tolist():
        rollout = rollouts_PG[p][g]
        mask = torch.tensor(rollout.trainable, dtype=torch.bool)
        ratios, entropies = (torch.tensor(v, dtype=torch.float64) for v in seen[p, g, 0])
        old, (new, entropy, _) = before[rollout.token_ids][0], moved[rollout.token_ids]
        torch.testing.assert_close(ratios, (new - old).exp()[mask].double())
        torch.testing.assert_close(entropies, entropy[mask].double())
        most = max([most, *(ratios - 1).abs().tolist()])
    assert most > 0.01


def test_tokens_are_logged_as_they_were_sampled(settings, tmp_path):
    folder = trained({**settings, "steps": 1}, tmp_path / "run", tokens=True, ratios=True)
    rollouts = [rollout for _, group in folder.groups for rollout in group.rollouts]
    vocabulary = folder.vocabulary()
    assert vocabulary is not None
    for line, rollout in zip(folder.rollout_lines(), rollouts, strict=True):
        (tokens,) = line["policy_tokens"]
        assert tuple(tokens["ids"]) == rollout.token_ids  # one turn: the policy wrote all of them
        as_float32 = torch.tensor(rollout.logprobs, dtype=torch.float32)
        assert torch.equal(torch.tensor(tokens["logprobs"], dtype=torch.float32), as_float32)
        assert tokens["turns"] == [len(rollout.token_ids)]
        shown = "".join(vocabulary[token_id] for token_id in tokens["ids"])
        text = re.sub(r"<\|(pad|im_end)\|>", "", shown)  # what ends a turn or pads has no text
        assert line["messages"][-1]["content"] == text


def test_each_update_is_logged_after_it_and_agrees_with_the_metrics(settings, tmp_path):
    folder = trained(settings, tmp_path / "run", ratios=True)
    metrics = {line["step"]: line for line in folder.metric_lines() if "entropy" in line}
    for step in range(1, STEPS + 1):
        lines = [line for line in raw_lines(folder.path) if line["step"] == step]
        attempts = [attempt for line in lines for attempt in line.get("attempts", ())]
        ratios, entropies = (
            [value for attempt in attempts for segment in attempt[name] for value in segment]
            for name in ("ratios", "entropies")
        )
        assert len(entropies) == len(ratios) == metrics[step]["tokens/trained"]
        assert set(ratios) == {1.0}  # with one pass the policy is the one that sampled
        assert sum(entropies) / len(entropies) == pytest.approx(metrics[step]["entropy"], rel=1e-5)
        kinds = ["attempts" in line for line in lines if line.get("key", {}).get("split") != "eval"]
        assert kinds == sorted(kinds)
    with RolloutIndex.open(folder.path) as index:
        assert index.count().rollouts == len(list(folder.rollout_lines()))
        for group in index.groups():
            trained_on = [line for line in index.read(group.id)["rollouts"] if "ratios" in line]
            assert len(trained_on) == (0 if group.split == "eval" else 4)


@pytest.mark.slow
def test_options_of_the_log_change_neither_metrics_nor_weights(settings, tmp_path):
    shorter = {**settings, "steps": 2}
    logs = ({}, {"tokens": True, "ratios": True}, {"rollouts": "none"}, {"rollouts": "sample"})
    runs = [trained(shorter, tmp_path / f"run{i}", **log).path for i, log in enumerate(logs)]
    files = [(run / "final" / "adapter_model.safetensors").read_bytes() for run in runs]
    for run, weights in zip(runs, files, strict=True):
        assert untimed(run) == untimed(runs[0])
        assert weights == files[0]


@pytest.mark.slow
def test_a_sample_keeps_some_groups_of_each_step_and_whole_evaluations(settings, tmp_path):
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
def test_without_rollouts_only_verdicts_of_evaluations_are_kept(settings, tmp_path):
    whole = trained(settings, tmp_path / "whole")
    folder = trained(settings, tmp_path / "none", rollouts="none", tokens=True)
    lines = list(folder.rollout_lines())
    expected = [line for line in whole.rollout_lines() if line["key"]["split"] == "eval"]
    assert {line["key"]["split"] for line in lines} == {"eval"}
    for line, own in zip(lines, expected, strict=True):
        assert line["verdict"]["total"] == own["verdict"]["total"]
        assert (line["messages"], line["verdict"]["answer"]) == ([], None)
    assert "letters " not in (folder.path / "rollouts.jsonl").read_text()  # of the prompts
    shown = grpo("compare", whole.path, folder.path, "--json")
    assert json.loads(shown.stdout)["reward"]["mean"] == 0
    refused = grpo("rescore", folder.path, status=2)
    assert "logged no completions (log.rollouts=none)" in f"{refused.exception} {refused.output}"
    with RolloutIndex.open(folder.path) as index:
        assert index.count().rollouts == len(lines)
        assert index.read(1)["prompt"] is None


@pytest.mark.slow
def test_a_resumed_run_logs_and_indexes_what_an_undisturbed_one_does(settings, tmp_path):
    log = {"tokens": True, "ratios": True, "rollouts": "sample", "part_mb": 0.01}
    changes = {"steps": 5, "checkpoint.every": 2, "log": log}
    ran(settings, tmp_path / "whole", changes)
    run = tmp_path / "parts"
    with killed(run, step=3) as observer:
        ran(settings, run, changes, observer=observer)
    assert list(run.glob("rollouts-*.jsonl.gz"))
    with RolloutIndex.open(run) as index:
        assert index.facets().steps.high == 3  # which the resume takes back
    Trainer.resumed(run, Letters()).run()

    def content(folder: Path) -> list[str]:
        with RolloutIndex.open(folder) as index:
            groups = [index.read(group.id) for group in index.groups(limit=-1)]
        return [re.sub(r'"seconds": [^,}]*', "", json.dumps(group)) for group in groups]

    assert content(run) == content(tmp_path / "whole")
    index_path(run).rename(tmp_path / "kept")
    assert content(run) == content(tmp_path / "whole")
