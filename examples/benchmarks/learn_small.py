"""From nothing to sums on two CPU cores: a model of 3.2 million weights that spells, a warm start to about 30 % exact, then GRPO.

    python examples/benchmarks/learn_small.py --out runs/small [--seed 0]

The task is that of the recipe `arithmetic` without solved examples in the prompt. The warm start shows answers as a careless teacher gives
them: 40 % are right, the others 1 or 2 off. So the model comes to know the sums as a pretrained one does, among near misses, and the
rewards tell it which of its answers to keep. The recipe is scaled to the model: a rate of 3e-4 that falls to 0 (random weights of this
size learn at 1e-3, a pretrained model at 1e-7), one pass over each batch in two optimizer steps, and 48 prompts a step. The bars: at
least 70 % exact on all 339 held-out tasks, a KL to the start below 2 nats a completion, 15 minutes with the warm start. The KL is that of
the trained policy on completions of its own, as a mean of log-prob differences: what a run logs, by k3, is never negative, but now and
then a single completion whose tokens the policy has all but given up adds a thousand. A folder that holds a finished run is read, an
interrupted one is resumed. Exits with 1 if a bar is missed.
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
from small import characters, make_model, trained

from grpo_core import Message, TaskKey
from grpo_core.config.overrides import build_config
from grpo_core.plugins.host import PluginHost
from grpo_core.runs.folder import RunFolder
from grpo_core.train.compute.batch import Row
from grpo_core.train.policy.causal import Policy
from grpo_core.train.sft import WarmStart
from grpo_core.train.trainer import Trainer
from grpo_env_arithmetic.env import Arithmetic

TEACHER = {0: 0.4, 1: 0.2, -1: 0.2, 2: 0.1, -2: 0.1}
"""How far the shown answers are off, and how often."""
SHOWN = 20_000
EXACT, KL, MINUTES = 0.7, 2.0, 15.0
ATTEMPTS = 4
"""At each held-out task, to measure the KL on."""


def show(path: Path, seed: int) -> None:
    """The teacher's answers to training tasks, as `grpo sft --data` reads them."""
    env, rng = Arithmetic(Arithmetic.Config(shots=0)), random.Random(seed)
    lines = []
    for index in range(SHOWN):
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


def divergence(folder: Path, start: Path, tasks: int) -> tuple[float, float]:
    """Nats a completion by which the trained policy of a run has left its start, and the standard error."""
    config = build_config(
        [RunFolder.open(folder).config(), {"model": {"name": str(folder / "final")}}]
    )
    trainer = Trainer(config, folder=folder.with_name("unused"))
    first = Policy.load(
        config.model_copy(update={"model": config.model.model_copy(update={"name": str(start)})}),
        need_reference=False,
    )
    rows = [
        Row(rollout, 0.0, 0.0)
        for group in trainer.sample(tasks, attempts=ATTEMPTS)
        for rollout in group.rollouts
    ]
    found: list[float] = []
    for micro in trainer.policy.micro_batches(rows, max_tokens=4096, dtype=torch.float32):
        with torch.no_grad():
            own_BT, other_BT = (
                policy.logprobs(micro, temperature=1.0)[0] for policy in (trainer.policy, first)
            )
        found += ((own_BT - other_BT) * micro.trainable_BT).sum(dim=1).tolist()
    return fmean(found), stdev(found) / math.sqrt(len(found))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/small"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-steps", type=int, default=500, help="of the warm start")
    parser.add_argument("--steps", type=int, default=200, help="of GRPO")
    parser.add_argument("--tasks", type=int, default=339, help="held-out tasks of an evaluation")
    options = parser.parse_args()
    folder = options.out / f"seed-{options.seed}"
    if not (folder / "model").is_dir():
        make_model(folder / "model", characters(), options.seed)
        show(folder / "answers.jsonl", options.seed)
    recipe: Mapping[str, Any] = PluginHost().load("recipe", "arithmetic")
    task = {
        "env": {"shots": 0},
        "seed": options.seed,
        "model": {"dtype": "float32"},
        "sampling": {"max_new_tokens": 24, "max_rows": 384},
        "eval": {"tasks": options.tasks},
    }
    warm = {
        "method": "sft",
        "steps": options.warm_steps,
        "model": {"name": str(folder / "model")},
        "sft": {"batch_size": 64, "data": str((folder / "answers.jsonl").absolute())},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "max_grad_norm": 0.3},
        "schedule": {"name": "linear", "warmup": 20},
    }
    scaled = {
        "steps": options.steps,
        "prompts_per_step": 48,
        "model": {"name": str(folder / "warm")},
        "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95]},
        "schedule": {"name": "linear", "warmup": 10},
        "trainer": {"mu": 1, "minibatches": 2},
        "eval": {"every": 100},
    }
    warmed = trained(WarmStart, [recipe, task, warm], folder / "warm")
    lines = trained(Trainer, [recipe, task, scaled], folder / "grpo")
    minutes = (
        sum(
            line.get("time/step", 0.0) + line.get("eval/seconds", 0.0) for line in [*warmed, *lines]
        )
        / 60
    )
    exact = [line["eval/pass_rate"] for line in lines if "eval/pass_rate" in line]
    logged = [line["kl/sequence"] for line in lines if "kl/sequence" in line]
    left, error = divergence(folder / "grpo", folder / "warm", options.tasks)
    print(
        f"seed {options.seed}: {exact[0]:.1%} -> {exact[-1]:.1%} exact on {options.tasks} held-out tasks, KL to the start {left:.2f} "
        f"+- {error:.2f} nats a completion (logged: median of the last 20 steps {median(logged[-20:]):.2f}, highest {max(logged):.2f}), "
        f"{minutes:.1f} minutes with the warm start"
    )
    return 0 if exact[-1] >= EXACT and left < KL and minutes <= MINUTES else 1


if __name__ == "__main__":
    sys.exit(main())
