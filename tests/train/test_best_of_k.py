"""Training for the best of k attempts: where the answer cannot be known, it keeps several guesses and the plain estimator keeps one.

`pytest -m heavy tests/train/test_best_of_k.py -s` prints the figures.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import pytest

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.figures.statistics import best_at, over_tasks, pass_at
from grpo_core.runs.folder import RunFolder
from grpo_core.train.trainer import Trainer

K, SEEDS, STEPS = 4, 3, 60
ANSWERS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
"""How often each letter is the hidden answer. Best for one guess: always "a", 40 %. Best for four: one of each, 100 %."""


class Hidden(Environment[str]):
    """Right is a completion whose first letter among a, b, c, d is the hidden one; an untrained model seldom writes any."""

    parts: ClassVar[Mapping[str, float]] = {"right": 1.0}
    max_new_tokens = 3
    trusted = True

    def task(self, key: TaskKey) -> Task[str]:
        (answer,) = key.rng().choices(list(ANSWERS), weights=list(ANSWERS.values()))
        return Task(key, "guess:", answer)

    def worth(self, guess: str | None, answer: str) -> float:
        return float(guess == answer)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        guess = next((letter for letter in rollout.text if letter in ANSWERS), None)
        value = self.worth(guess, task.data)
        return Verdict({"right": Reward(value)}, passed=value == 1.0)


class Graded(Hidden):
    """Letters next to the hidden one are worth something, too, and a guess of "a" or "d" a little for itself."""

    def worth(self, guess: str | None, answer: str) -> float:
        if guess is None:
            return 0.0
        return max(0.0, 1 - 0.6 * abs(ord(guess) - ord(answer)))


def trained(env: Hidden, settings: dict[str, Any], folder: Path) -> list[list[Verdict]]:
    """Verdicts of 16 samples of each of 200 held-out tasks after training."""
    trainer = Trainer(build_config([settings]), env, folder=RunFolder(folder))
    trainer.run()
    keys = [TaskKey("letters", "eval", index) for index in range(200)]
    return [list(group.verdicts) for group in trainer.verify(trainer.sample(keys, attempts=16))]


def passed_at_k(verdicts: list[Verdict]) -> float:
    return pass_at(K, [verdict.passed for verdict in verdicts])


def best_of_k(verdicts: list[Verdict]) -> float:
    return best_at(K, [verdict.total for verdict in verdicts])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("env", "name", "statistic"),
    [(Hidden(), "passk", passed_at_k), (Graded(), "maxk", best_of_k)],
    ids=["pass at k", "max at k"],
)
def test_training_for_the_best_of_k_raises_it_more_than_the_plain_estimator(
    settings, tmp_path, env, name, statistic
):
    sizes = {"steps": STEPS, "prompts_per_step": 12, "group_size": 8}
    settings = {**settings, **sizes, "kl": {"beta": 0.0}, "eval": {"tasks": 0}}
    for seed in range(SEEDS):
        found = {}
        for estimator in ({"name": "grpo"}, {"name": name, "k": K}):
            run = {**settings, "seed": seed, "advantage": estimator}
            verdicts = trained(env, run, tmp_path / f"{seed}-{estimator['name']}")
            found[estimator["name"]] = [statistic(of_task) for of_task in verdicts]
        pairs = zip(found["grpo"], found[name], strict=True)
        gain = over_tasks([after - before for before, after in pairs])
        interval = f"{gain.value:+.3f} ({gain.low:+.3f} .. {gain.high:+.3f})"
        means = {which: f"{fmean(values):.3f}" for which, values in found.items()}
        print(f"\nseed {seed}: {means}, difference {interval}")
        assert gain.low > 0
