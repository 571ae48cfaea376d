"""`grpo compare` and `grpo rescore`: paired differences, and saved rollouts that are judged again."""

import json
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grpo_core import TaskKey, Trainer
from grpo_core.config.overrides import build_config
from grpo_core.figures.gains import paired_gain
from grpo_core.figures.statistics import t_quantile
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_report.comparison import read_evaluation, sign_flip_p_value

from .short_runs import grpo
from .tiny import save_tiny

ENV = """
from grpo_core import Environment, Reward, Task, Verdict


class Words(Environment):
    parts = {"long": 0.5, "even": 0.5}
    levels = False

    def task(self, key):
        return Task(key, "say something", key.rng().randint(1, 4))

    def verify(self, task, rollout):
        text = rollout.text
        return Verdict(
            {"long": Reward(len(text) > task.data), "even": Reward(len(text) % 2 == 0)},
            passed=len(text) > LIMIT,
            answer=text,
        )
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and two versions of their environment."""
    folder = tmp_path_factory.mktemp("runs")
    save_tiny(folder / "model")
    (folder / "words.py").write_text(ENV.replace("LIMIT", "8"))
    (folder / "stricter.py").write_text(ENV.replace("LIMIT", "10"))
    settings = {
        "environment": f"{folder}/words.py:Words",
        "model": {"name": str(folder / "model"), "dtype": "float32"},
        "steps": 1,
        "prompts_per_step": 3,
        "group_size": 4,
        "optimizer": {"lr": 0.05},
        "sampling": {"max_new_tokens": 12},
        "eval": {"tasks": 8},
    }
    for seed in (0, 1):
        config = build_config([settings, {"seed": seed}])
        Trainer(config, folder=folder / f"run-{seed}").run()
    return folder


def said(*arguments: Any) -> Any:
    return json.loads(grpo(*arguments, "--json").stdout)


@pytest.mark.slow
def test_unchanged_settings_give_the_live_verdicts_exactly(runs):
    result = said("rescore", runs / "run-0", "--out", runs / "again.jsonl")
    lines = list(RunFolder(runs / "run-0").rollout_lines())
    assert result["rollouts"] == len(lines) == 3 * 4 + 2 * 8
    assert (result["changed"], result["left_out"]) == (0, 0)
    for line, pair in zip(lines, read_lines(runs / "again.jsonl"), strict=True):
        assert pair["before"] == line["verdict"]
        for verdict in (pair["before"], pair["after"]):
            for part in verdict["rewards"].values():
                del part["seconds"]
        assert pair["before"] == pair["after"]


def test_other_weights_are_applied_to_the_recorded_parts(runs):
    result = said("rescore", runs / "run-0", "--set", "weights.even=0")
    lines = [line["verdict"] for line in RunFolder(runs / "run-0").rollout_lines()]
    even = [verdict["rewards"]["even"]["value"] for verdict in lines]
    assert result["changed"] == result["changes"]["total"] == sum(even)
    assert result["reward"][1] == pytest.approx(result["reward"][0] - 0.5 * sum(even) / len(lines))
    assert "even" in grpo("rescore", runs / "run-0", "--set", "weights.evn=0", status=2).output


def test_a_new_version_of_the_environment_judges_the_same_tasks(runs):
    new = f"{runs}/stricter.py:Words"
    result = said("rescore", runs / "run-0", "--env", new, "--step", 1, "--trust")
    lines = [line for line in RunFolder(runs / "run-0").rollout_lines() if line["step"] == 1]
    flips = sum(8 < len(line["verdict"]["answer"]) <= 10 for line in lines)
    assert result["rollouts"] == len(lines)
    assert result["changes"] == ({"fails": flips} if flips else {})
    assert result["reward"][0] == result["reward"][1]


def test_two_runs_are_compared_on_the_tasks_that_both_have(runs):
    result = said("compare", runs / "run-0", runs / "run-1")
    a, b = (read_evaluation(runs / name, None) for name in ("run-0", "run-1"))
    gain = paired_gain(*({k: fmean(task.rewards) for k, task in e.tasks.items()} for e in (a, b)))
    assert gain is not None
    assert result["tasks"] == 8
    assert result["reward"]["mean"] == pytest.approx(gain.mean)
    assert (result["reward"]["low"], result["reward"]["high"]) == (gain.low, gain.high)
    better = [key for key in a.tasks if b.tasks[key].pass_rate > a.tasks[key].pass_rate]
    assert {TaskKey(**key) for key in result["better"]} == set(better)
    same = said("compare", runs / "run-0", runs / "run-0")
    assert (same["reward"]["mean"], same["reward"]["p"], same["better"]) == (0.0, 1.0, [])
    assert "8 tasks" in grpo("compare", runs / "run-0", runs / "run-1").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "nothing", "nothing"], "does not exist"),
        (["compare", "{runs}/model/config.json", "{runs}/run-0"], "damaged"),
        (["compare", "{runs}/run-0/metrics.jsonl", "{runs}/run-0"], "are no attempts"),
        (["compare", "{runs}/run-0", "{runs}/run-1", "--step", "7"], "steps 0, 1, not after 7"),
        (["rescore", "{runs}/model"], "holds no run"),
        (["rescore", "{runs}/run-0", "--step", "9"], "no saved rollouts"),
    ],
)
def test_what_cannot_be_compared_is_said(runs, arguments, words):
    shown = grpo(*(word.replace("{runs}", str(runs)) for word in arguments), status=2)
    assert words in shown.output.replace("\n", " ")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tasks", [8, 64])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_95_percent_interval_covers_the_truth_in_93_to_97_of_100_draws(tasks, samples):
    """Pass rates of two policies, of which B passes each task 0.1 more often."""
    rng, covered, draws = random.Random(tasks + samples), 0, 1500

    def rate(chance: float) -> float:
        return sum(rng.random() < chance for _ in range(samples)) / samples

    for _ in range(draws):
        chances = [rng.uniform(0.2, 0.7) for _ in range(tasks)]
        before = {task: rate(chance) for task, chance in enumerate(chances)}
        after = {task: rate(chance + 0.1) for task, chance in enumerate(chances)}
        gain = paired_gain(before, after)
        assert gain is not None
        covered += gain.low <= 0.1 <= gain.high
    assert 0.93 <= covered / draws <= 0.97


@pytest.mark.slow
def test_the_p_value_is_that_of_all_signs_and_uniform_without_a_difference():
    assert sign_flip_p_value([1.0, 1.0, 1.0]) == 2 / 8
    assert sign_flip_p_value([0.0, 0.0]) == 1.0
    rng = random.Random(3)
    values = [
        sign_flip_p_value([rng.choice((-1, 1)) * rng.random() for _ in range(9)])
        for _ in range(800)
    ]
    assert 0.03 <= sum(value <= 0.05 for value in values) / len(values) <= 0.07
    large = [rng.gauss(0.5, 1) for _ in range(60)]
    assert sign_flip_p_value(large) == sign_flip_p_value(large) < 0.05


def test_quantiles_of_students_t_are_those_of_the_tables():
    table = {1: 12.706, 2: 4.303, 4: 2.776, 7: 2.365, 10: 2.228, 30: 2.042, 120: 1.980}
    for freedom, value in table.items():
        assert t_quantile(0.975, freedom) == pytest.approx(value, rel=1e-3)
