"""Train a small model from scratch on sums, on two CPU cores: a warm start, then GRPO.

    python examples/benchmarks/learn_small.py --out runs/small [--seed 0]

The model has 3.2 million weights and one token for each character; the warm start takes it to about
30 % exact. The task is that of the recipe `arithmetic` without solved examples in the prompt. The
warm start trains on answers of which 40 % are right and the others 1 or 2 off. So the model knows
the sums as a pretrained one does, among near misses, and the rewards show which of its answers are
right. The recipe is scaled to the model: a learning rate of 3e-4 that falls to 0 (random weights of
this size learn at 1e-3, a pretrained model at 1e-7), one pass over each batch in two optimizer
steps, and 48 prompts a step.

The bars: at least 70 % exact on all 339 held-out tasks, a KL to the start below 2 nats a
completion, and 15 minutes with the warm start. The KL is measured on the train_or_read policy's own
completions, as a mean of log-probability differences. The estimate that a run logs, by k3, is never
negative, but sometimes a single completion with tokens that have become very unlikely adds a
thousand. A finished run in the folder is read, an interrupted one is resumed. Exits with 1 if a bar
is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
from small import characters, make_model, train_or_read

from grpo_core import Message, TaskKey
from grpo_core.config.overrides import build_config
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.policy.choose import load_policy
from grpo_core.plugins.host import PluginHost
from grpo_core.runs.folder import RunFolder
from grpo_core.train.trainer import Trainer
from grpo_env_arithmetic.env import Arithmetic

TEACHER = {0: 0.4, 1: 0.2, -1: 0.2, 2: 0.1, -2: 0.1}
"""Errors of the answers in the warm start, with their shares."""
EXAMPLES = 20_000
EXACT, KL, MINUTES = 0.7, 2.0, 15.0
SAMPLES = 4
"""Completions of each held-out task on which the KL is measured."""


def write_examples(path: Path, seed: int) -> None:
    """Write answers to training tasks, some of them wrong, for `grpo sft --data`."""
    env, rng = Arithmetic(Arithmetic.Config(shots=0)), random.Random(seed)
    lines = []
    for index in range(EXAMPLES):
        task = env.task(TaskKey("arithmetic", "train", index, seed, 0.0))
        answer = task.data.answer + rng.choices(list(TEACHER), list(TEACHER.values()))[0]
        prompt = [
            {"role": message.role, "content": message.content}
            for message in task.prompt
            if isinstance(message, Message)
        ]
        lines.append(
            json.dumps({"prompt": prompt, "completion": f"<answer>{answer}</answer>"}) + "\n"
        )
    path.write_text("".join(lines), encoding="utf-8")


def warm_start(folder: Path, steps: int) -> dict[str, Any]:
    """Return the settings of the warm start on the model and the answers in `folder`."""
    return {
        "method": "sft",
        "steps": steps,
        "model": {"name": str(folder / "model"), "dtype": "float32"},
        "sft": {"batch_size": 64, "data": str((folder / "answers.jsonl").absolute())},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "max_grad_norm": 0.3},
        "schedule": {"name": "linear", "warmup": 20},
    }


def divergence(folder: Path, start: Path, tasks: int) -> tuple[float, float]:
    """Return the KL of a run's train_or_read policy to its start, in nats a completion.

    Returns:
        The mean and its standard error.
    """
    config = build_config(
        [RunFolder.open(folder).config(), {"model": {"name": str(folder / "final")}}]
    )
    trainer = Trainer(config, folder=folder.with_name("unused"))
    first = load_policy(
        config.model_copy(update={"model": config.model.model_copy(update={"name": str(start)})}),
        need_reference=False,
    )
    rows = [
        Row(segment, 0.0, 0.0)
        for group in trainer.sample(tasks, attempts=SAMPLES)
        for rollout in group.rollouts
        for segment in rollout.segments
    ]
    differences: list[float] = []
    for micro in trainer.actor.policy.micro_batches(rows, max_tokens=4096, dtype=torch.float32):
        with torch.no_grad():
            own_BT, other_BT = (
                policy.logprobs(micro, temperature=1.0)[0]
                for policy in (trainer.actor.policy, first)
            )
        differences += ((own_BT - other_BT) * micro.trainable_BT).sum(dim=1).tolist()
    return fmean(differences), stdev(differences) / math.sqrt(len(differences))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/small"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-steps", type=int, default=500, help="steps of the warm start")
    parser.add_argument("--steps", type=int, default=200, help="steps of GRPO")
    parser.add_argument("--tasks", type=int, default=339, help="held-out tasks of an evaluation")
    options = parser.parse_args()
    folder = options.out / f"seed-{options.seed}"
    if not (folder / "model").is_dir():
        make_model(folder / "model", characters(), options.seed)
        write_examples(folder / "answers.jsonl", options.seed)
    recipe: Mapping[str, Any] = PluginHost().load("recipe", "arithmetic")
    task = {
        "env": {"shots": 0},
        "seed": options.seed,
        "model": {"dtype": "float32"},
        "sampling": {"max_new_tokens": 24, "max_rows": 384},
        "eval": {"tasks": options.tasks},
    }
    warm = warm_start(folder, options.warm_steps)
    scaled = {
        "steps": options.steps,
        "prompts_per_step": 48,
        "model": {"name": str(folder / "warm")},
        "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95]},
        "schedule": {"name": "linear", "warmup": 10},
        "trainer": {"mu": 1, "minibatches": 2},
        "eval": {"every": 100},
    }
    warmed = train_or_read([recipe, task, warm, {"method": "sft"}], folder / "warm")
    lines = train_or_read([recipe, task, scaled], folder / "grpo")
    minutes = (
        sum(
            line.get("time/step", 0.0) + line.get("eval/seconds", 0.0) for line in [*warmed, *lines]
        )
        / 60
    )
    exact = [line["eval/pass_rate"] for line in lines if "eval/pass_rate" in line]
    logged = [line["kl/sequence"] for line in lines if "kl/sequence" in line]
    kl, error = divergence(folder / "grpo", folder / "warm", options.tasks)
    print(
        f"seed {options.seed}: {exact[0]:.1%} -> {exact[-1]:.1%} exact on {options.tasks} held-out "
        f"tasks, KL to the start {kl:.2f} +- {error:.2f} nats a completion (logged: median of the "
        f"last 20 steps {median(logged[-20:]):.2f}, highest {max(logged):.2f}), "
        f"{minutes:.1f} minutes with the warm start"
    )
    return 0 if exact[-1] >= EXACT and kl < KL and minutes <= MINUTES else 1


if __name__ == "__main__":
    sys.exit(main())
