"""Train on an environment with TRL's GRPOTrainer (written for TRL 1.16).

    from trl import GRPOConfig, GRPOTrainer
    from grpo_trl import dataset, opened, reward_functions, rollout_func

    with opened("arithmetic") as env:
        functions, weights = reward_functions(env)
        trainer = GRPOTrainer(
            model="HuggingFaceTB/SmolLM2-135M-Instruct",
            args=GRPOConfig(reward_weights=weights, max_completion_length=16, max_steps=100),
            train_dataset=dataset(env, "train", 400),
            reward_funcs=functions,
            rollout_func=rollout_func(env),
        )
        trainer.train()

`grpo env export NAME --to trl` writes such a script. Importing this module needs neither TRL nor
torch.
"""

from __future__ import annotations

from grpo_trl.opened import OpenEnvironment, opened
from grpo_trl.rewards import RewardFunction, reward_functions
from grpo_trl.rollout import rollout_func
from grpo_trl.rows import dataset, task_keys

__all__ = [
    "OpenEnvironment",
    "RewardFunction",
    "dataset",
    "opened",
    "reward_functions",
    "rollout_func",
    "task_keys",
]
