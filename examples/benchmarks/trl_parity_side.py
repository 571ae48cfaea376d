"""Compute the side of TRL in trl_parity.py.

    python trl_parity_side.py FOLDER

It runs in a virtual environment of its own, so it imports nothing of grpo-core. FOLDER holds the
model, the weights and the jobs; for each job a GRPOTrainer trains as it would, on completions that
it does not generate. Losses and gradients of its optimizer steps go to FOLDER/trl.pt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import trl.trainer.grpo_trainer
import trl.trainer.utils
from datasets import Dataset
from parity_float64 import compute_in_float64, gradients_of, set_weights, weights_of
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class ExactHead:
    """Computes log-probs and entropies in float64, where TRL's head computes in float32."""

    @staticmethod
    def apply(
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias: None,
        targets_N: Tensor,
        temperature: float,
        *_: Any,
    ) -> tuple[Tensor, Tensor, None, None, None]:
        """Return log-probs (N,) and entropies (N,); TRL asks for nothing else."""
        log_NV = torch.log_softmax(hidden_NH @ weight_VH.T / temperature, dim=-1)
        chosen_N = log_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
        return chosen_N, -(log_NV.exp() * log_NV).sum(dim=1), None, None, None


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Records the gradient of each optimizer step, and may then set the weights of the next."""

    def __init__(self, weights: list[dict[str, Tensor]] | None) -> None:
        self._next = weights and weights[1:]
        self.losses = [0.0]
        self.gradients: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        """Record the gradient."""
        self.gradients.append(gradients_of(model))
        self.losses.append(0.0)

    def on_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        """Set the weights of the next step."""
        if self._next:
            set_weights(model, self._next.pop(0))


def rewards_of(column: list[float | None], name: str) -> Any:
    """Return a reward function that pays each completion of the batch what was prepared."""

    def reward(**_: Any) -> list[float | None]:
        return column

    reward.__name__ = name
    return reward


def build(folder: Path, job: dict[str, Any], recorder: Recorder) -> GRPOTrainer:
    """Build the trainer of a job."""
    batch = job["batch"]
    fields = ("prompt_ids", "completion_ids", "logprobs", "env_mask")

    def rolled_out(prompts: list[str], _: GRPOTrainer) -> dict[str, Any]:
        assert prompts == batch["prompts"]
        return {name: batch[name] for name in fields if name in batch}

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[rewards_of(column, f"part_{k}") for k, column in enumerate(batch["rewards"])],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            optim="adamw_torch",
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            **job["trl"],
        ),
        train_dataset=Dataset.from_dict({"prompt": list(dict.fromkeys(batch["prompts"]))}),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        rollout_func=rolled_out,
        callbacks=[recorder],
    )
    if job["sampled_elsewhere"]:
        # What corrects for the sampler is only computed with vLLM, of which nothing else is used:
        # the weights of step 0, the only ones that completions are sampled with, count as loaded.
        trainer.use_vllm, trainer._last_loaded_step = True, 0
    return trainer


def computed(folder: Path, job: dict[str, Any], weights: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Train as the job says, and return losses, gradients and the change of the weights."""
    recorder = Recorder(None if job["moves"] is None else [weights[i] for i in job["moves"]])
    trainer = build(folder, job, recorder)
    set_weights(trainer.model, weights[0])
    compute_loss = trainer._compute_loss

    def summed(*arguments: Any) -> Tensor:
        loss: Tensor = compute_loss(*arguments)
        recorder.losses[-1] += loss.item()
        return loss

    trainer._compute_loss = summed
    trainer.train()
    end = weights_of(trainer.model)
    return {
        "losses": recorder.losses[:-1],
        "gradients": recorder.gradients,
        "change": {name: end[name] - weights[0][name] for name in end},
    }


def main(folder: Path) -> None:
    """Compute the jobs of the folder."""
    torch.set_default_dtype(torch.float64)  # of rewards and advantages
    compute_in_float64()
    # Rows stay in order, so that both sides have the same rows in an optimizer step.
    trl.trainer.grpo_trainer.shuffle_sequence_dict = lambda rows: rows
    own_head = trl.trainer.utils._ChunkedLogProbFunction
    weights = torch.load(folder / "weights.pt")
    results = {}
    for name, job in json.loads((folder / "jobs.json").read_text()).items():
        trl.trainer.utils._ChunkedLogProbFunction = own_head if job["own_head"] else ExactHead
        results[name] = computed(folder, job, weights)
    torch.save(results, folder / "trl.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
