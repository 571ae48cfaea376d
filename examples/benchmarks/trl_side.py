"""The process of TRL in vs_trl.py.

    python trl_side.py SETTINGS-AS-JSON

It runs in a virtual environment of its own, so it imports nothing of grpo-core. Before each step it
waits for a line on its input; after it, it prints a line of JSON with the step's measurements.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def peak_mb() -> float:
    """Return the peak memory in MB: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


class Turns(TrainerCallback):  # type: ignore[misc]
    """Waits for its turn before each step, and prints the step's measurements."""

    def __init__(self) -> None:
        self.generation = 0.0
        self.started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not sys.stdin.readline():
            sys.exit()
        self.generation, self.started = 0.0, time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        seconds = time.perf_counter() - self.started
        peak = peak_mb()
        print(
            "@"
            + json.dumps(
                {
                    "seconds": seconds,
                    "rollout": self.generation,
                    "update": seconds - self.generation,
                    "peak_mb": peak,
                }
            ),
            flush=True,
        )


def main(given: str) -> None:
    settings = json.loads(given)
    attempts, rows = settings["group_size"], settings["prompts_per_step"] * settings["group_size"]
    micro = settings["trl_micro_batch"]
    turns = Turns()
    trainer = GRPOTrainer(
        model=settings["model"],
        reward_funcs=lambda completions, **_: [
            zlib.crc32(text.encode()) % 1000 / 1000 for text in completions
        ],
        args=GRPOConfig(
            output_dir=settings["out"],
            model_init_kwargs={"dtype": settings["dtype"]},
            bf16=settings["dtype"] == "bfloat16",
            use_cpu=settings["device"] == "cpu",
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=rows // micro,
            num_generations=attempts,
            max_completion_length=settings["max_new_tokens"],
            generation_kwargs={"min_new_tokens": settings["max_new_tokens"]},
            beta=settings["beta"],
            learning_rate=1e-6,
            max_steps=settings["steps"],
            gradient_checkpointing=settings["checkpointing"],
            shuffle_dataset=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        ),
        train_dataset=Dataset.from_dict({"prompt": settings["prompts"]}),
        peft_config=LoraConfig(
            r=settings["lora_r"],
            lora_alpha=2 * settings["lora_r"],
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
        callbacks=[turns],
    )
    generate = trainer._generate

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        generated = generate(*arguments)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        turns.generation += time.perf_counter() - started
        return generated

    trainer._generate = timed
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
