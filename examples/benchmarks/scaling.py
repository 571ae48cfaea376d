"""Measure the time and memory of a step as groups, prompts and completions grow.

    python examples/benchmarks/scaling.py [--model smollm2-135m] [--out FILE.json]
        [--groups 2,8,32] [--prompts 32,512] [--tokens 16,256]

From a middle setting (2 prompts of 128 tokens, 8 completions of 32) one size is varied at a time.
Seconds are those of the second of two steps. "Per token" refers to the tokens that were generated,
or trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import workload
from sides import machine

MIDDLE = {"group": 8, "prompt": 128, "tokens": 32}
RANGES = {"group": "2,4,8,16,32,64", "prompt": "32,128,512,2048", "tokens": "16,64,256,1024"}


def forget_peak() -> None:
    """Reset the peak of used memory."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if (references := Path("/proc/self/clear_refs")).exists():
        references.write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    for name, values in RANGES.items():
        parser.add_argument(
            f"--{name}s" if name != "tokens" else "--tokens", dest=name, default=values
        )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    from grpo_core.config.overrides import build_config
    from grpo_core.engine.policy.choose import load_policy

    model = {"name": options.model, "dtype": options.dtype, "device": options.device}
    shape = {"prompts_per_step": 2, "steps": 2}
    config = build_config([workload.settings(model, group_size=8, new_tokens=32, **shape)])
    policy = load_policy(config, need_reference=True)
    rows: list[dict[str, Any]] = []
    for varied in RANGES:
        for size in map(int, getattr(options, varied).split(",")):
            sizes = {**MIDDLE, varied: size}
            settings = workload.settings(
                model, group_size=sizes["group"], new_tokens=sizes["tokens"], **shape
            )
            texts = [
                policy.tokenizer.decode(ids)
                for ids in workload.prompts(policy.tokenizer, 4, sizes["prompt"])
            ]
            forget_peak()
            step = workload.steps(policy, settings, texts)[-1]
            generated = 2 * sizes["group"] * sizes["tokens"]
            rows.append(
                {
                    **sizes,
                    "rollout_seconds": step["time/rollout"],
                    "update_seconds": step["time/update"],
                    "peak_mb": step["memory/peak_mb"],
                    "rollout_ms_per_token": 1000 * step["time/rollout"] / generated,
                    "update_ms_per_token": 1000 * step["time/update"] / generated,
                }
            )
            print(", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    if options.out:
        options.out.write_text(
            json.dumps({"machine": machine(str(policy.compute_dtype)), "steps": rows}, indent=2)
            + "\n"
        )


if __name__ == "__main__":
    main()
