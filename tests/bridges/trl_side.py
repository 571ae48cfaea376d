"""The process of TRL in test_trl_real.py: trains a few steps through the bridge and writes what the trainer was told.

    python trl_side.py SETTINGS-AS-JSON

It runs in an environment of its own, with TRL 1.16 and grpo-core.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from grpo_core.calls.wire import encode
from grpo_trl import dataset, opened, reward_functions, rollout_func


def recorded(function: Any, calls: list[dict[str, Any]]) -> Any:
    """Return the reward function with a record of its calls."""

    def call(**keywords: Any) -> list[float | None]:
        values: list[float | None] = function(**keywords)
        calls.append(
            {
                "part": function.__name__,
                "step": keywords["trainer_state"].global_step + 1,
                "keys": keywords["task_key"],
                "completions": keywords["completions"],
                "completion_ids": keywords["completion_ids"],
                "rollouts": [encode(rollout) for rollout in keywords.get("rollout", ())],
                "errors": [rollout.error for rollout in keywords.get("rollout", ())],
                "values": values,
            }
        )
        return values

    call.__name__ = function.__name__
    return call


def main(given: str) -> None:
    options = json.loads(given)
    calls: list[dict[str, Any]] = []
    with opened(options["environment"], options["settings"]) as env:
        functions, weights = reward_functions(env)
        trainer = GRPOTrainer(
            model=options["model"],
            train_dataset=dataset(env, "train", 8),
            eval_dataset=dataset(env, "eval", 2),
            reward_funcs=[recorded(function, calls) for function in functions],
            rollout_func=rollout_func(env),
            args=GRPOConfig(
                output_dir=options["out"],
                max_steps=options["steps"],
                reward_weights=weights,
                num_generations=4,
                per_device_train_batch_size=4,
                per_device_eval_batch_size=4,
                gradient_accumulation_steps=2,
                max_completion_length=options["length"],
                learning_rate=1e-3,
                beta=0.04,
                logging_steps=1,
                seed=1,
                use_cpu=True,
                bf16=False,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                **options["more"],
            ),
        )
        before = [weight.detach().clone() for weight in trainer.model.parameters()]
        masks: list[list[list[int]]] = []
        score = trainer._generate_and_score_completions

        def scored(inputs: Any) -> Any:
            output = score(inputs)
            if "tool_mask" in output:
                masks.append((output["tool_mask"] * output["completion_mask"]).tolist())
            return output

        trainer._generate_and_score_completions = scored
        trainer.train()
        evaluated = trainer.evaluate()
    moved = max(
        float((new.detach() - old).abs().max())
        for new, old in zip(trainer.model.parameters(), before, strict=True)
    )
    report = {
        "calls": calls,
        "weights": weights,
        "log": trainer.state.log_history,
        "evaluated": evaluated,
        "steps": trainer.state.global_step,
        "moved": moved,
        "finite": all(bool(torch.isfinite(w).all()) for w in trainer.model.parameters()),
        "masks": masks,
    }
    Path(options["report"]).write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
