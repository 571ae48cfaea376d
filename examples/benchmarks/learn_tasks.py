"""Train a small model from scratch on one environment: on references first, then by GRPO.

    python examples/benchmarks/learn_tasks.py --env fizzbuzz [--seed 0] [--shuffle]
    python examples/benchmarks/learn_tasks.py --env parentheses
    python examples/benchmarks/learn_tasks.py --env sql
    python examples/benchmarks/learn_tasks.py --env terminal
    python examples/benchmarks/learn_tasks.py --env fizzbuzz --name once --set kl.importance=false

The model has random weights, and the tokenizer's tokens are frequent pieces of the task's texts.
`grpo sft` trains on the environment's references until a third or a half of the held-out reward is
there; then GRPO verifies every attempt in the sandbox, or in a database. The bars: at least 10
points more held-out tasks pass, with an interval above 0, within 30 minutes of GRPO; with rewards
shuffled within each group (--shuffle) the interval of the gain contains 0 or lies below. --set
changes a setting of GRPO, in a run of the folder --name, which the last line then compares with the
run of the defaults. A finished run in the folder is read, an interrupted one is resumed. Exits with
1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from small import make_model, passed_tasks, pieces, train_or_read

from grpo_core import TaskKey
from grpo_core.config.overrides import parse_setting
from grpo_core.figures.gains import paired_gain
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost

POINTS, MINUTES = 0.1, 30.0
TEXTS = 2000
"""Training tasks whose texts the tokenizer is made of."""


@dataclass(frozen=True)
class Recipe:
    """Holds how a small model is trained on an environment."""

    warm_reward: float
    """The held-out reward at which the warm start ends."""
    warm_every: int
    """Steps of the warm start between two evaluations."""
    steps: int
    """Steps of GRPO."""
    group_size: int
    max_new_tokens: int
    max_dialogue_tokens: int | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the environment."""


RECIPES: Mapping[str, Recipe] = {
    "fizzbuzz": Recipe(0.5, 10, 60, 16, 96, env={"difficulty": 2}),
    "parentheses": Recipe(0.5, 10, 60, 16, 192, env={"difficulty": 2}),
    "sql": Recipe(0.3, 3, 40, 8, 48, max_dialogue_tokens=256),
    "terminal": Recipe(0.3, 3, 40, 8, 24, max_dialogue_tokens=160),
}


def texts(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield prompts, references and contents of files, for the tokenizer."""
    env = load_environment(PluginHost(), name, settings)
    for index in range(TEXTS):
        task = env.task(TaskKey(name, "train", index, 0, 0.0))
        yield from (message.content for message in task.prompt if not isinstance(message, str))
        reference = env.reference(task)
        yield from [reference] if isinstance(reference, str) else (reference or ())
        yield from (content for _, content in getattr(task.data, "files", ()))


def layers(
    recipe: Recipe, folder: Path, options: argparse.Namespace
) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Return the settings of both runs, those of the warm start and those of GRPO."""
    sampling: dict[str, Any] = {"max_new_tokens": recipe.max_new_tokens}
    if recipe.max_dialogue_tokens is not None:
        sampling["max_dialogue_tokens"] = recipe.max_dialogue_tokens
    task = {
        "environment": options.env,
        "env": dict(recipe.env),
        "seed": options.seed,
        "model": {"dtype": "float32"},
        "lora": {"enabled": False},
        "sampling": sampling,
        "eval": {"tasks": options.tasks},
    }
    warm = {
        "method": "sft",
        "steps": options.warm_steps,
        "model": {"name": str(folder / "model")},
        "sft": {"batch_size": 32},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "max_grad_norm": 0.3},
        "schedule": {"warmup": 20},
        "eval": {"every": recipe.warm_every, "tasks": 64},
        "stop": {"reward": recipe.warm_reward},
    }
    refined = {
        "steps": options.steps or recipe.steps,
        "prompts_per_step": 16,
        "group_size": recipe.group_size,
        "model": {"name": str(folder / "warm")},
        "optimizer": {"lr": 2e-4},
        "kl": {"beta": 0.04},
        "trainer": {"minibatches": 2, "shuffle_rewards": options.shuffle},
        "advantage": {"name": "grpo"},
    }
    return task, warm, refined


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", choices=RECIPES, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-steps", type=int, default=1000, help="most steps of the warm start")
    parser.add_argument("--steps", type=int, help="steps of GRPO")
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks of an evaluation")
    parser.add_argument("--shuffle", action="store_true", help="the control: shuffled rewards")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--name", help="folder of the run; default: grpo, or shuffled")
    options = parser.parse_args()
    recipe = RECIPES[options.env]
    name = options.name or ("shuffled" if options.shuffle else "grpo")
    folder = options.out / options.env / f"seed-{options.seed}"
    if not (folder / "model").is_dir():
        tokenizer = pieces(texts(options.env, recipe.env), 640)
        make_model(folder / "model", tokenizer, options.seed)
    task, warm, refined = layers(recipe, folder, options)
    settings = [parse_setting(text) for text in options.settings]
    train_or_read([task, warm, {"method": "sft"}], folder / "warm")
    run = folder / name
    lines = train_or_read([task, refined, *settings], run)
    minutes = sum(line.get("time/step", 0.0) + line.get("eval/seconds", 0.0) for line in lines) / 60
    before, after = passed_tasks(run)
    gain = paired_gain(before, after)
    assert gain is not None
    print(
        f"{options.env}, seed {options.seed}, {run.name}: {gain.before:.1%} -> {gain.after:.1%} of "
        f"{gain.tasks} held-out tasks pass, {gain.mean:+.1%} "
        f"({gain.low:+.1%} .. {gain.high:+.1%}), "
        f"{minutes:.1f} minutes of GRPO"
    )
    if options.name and (folder / "grpo" / "final").is_dir():
        difference = paired_gain(after, passed_tasks(folder / "grpo")[1])
        assert difference is not None
        print(
            f"the run of the defaults against it: {difference.mean:+.1%} "
            f"({difference.low:+.1%} .. {difference.high:+.1%})"
        )
    learned = gain.mean >= POINTS and gain.low > 0 and minutes <= MINUTES
    return 0 if (gain.low <= 0 if options.shuffle else learned) else 1


if __name__ == "__main__":
    sys.exit(main())
