"""Compare the time of an update with one setting and with another, on a few blocks of a model.

    python examples/benchmarks/update_in_turn.py --set trainer.stacked_layers=false
        [--setting short|long] [--blocks 2] [--repeats 60]

A step takes seconds, and the speed of a shared machine changes from second to second. Here both
sides keep only a few blocks of the model and compute a reference's log-probs, a loss and its
gradient in turn, tens of times. The lowest tenth of the times is what the code takes where nothing
else disturbs it. Prints the 10th percentile and the median of both sides, and their ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import workload
from sides import machine
from vs_trl import SETTINGS, Setting

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.compute.batch import MicroBatch, Row
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.protocol.types import Segment


def make_policy(setting: Setting, blocks: int, model: str, more: Mapping[str, Any]) -> Policy:
    """Return a policy whose model has its first `blocks` blocks only."""
    given = workload.settings(
        {"name": model, "device": "cpu"},
        prompts_per_step=setting.prompts,
        group_size=setting.group,
        new_tokens=setting.new_tokens,
        steps=1,
    )
    policy = load_policy(build_config([given, more]), need_reference=True)
    decoder = policy.model.get_base_model().model
    decoder.layers = decoder.layers[:blocks]
    decoder.config.num_hidden_layers = blocks
    return policy


def micro_batches(policy: Policy, setting: Setting) -> list[MicroBatch]:
    """Return the micro-batches of a step with random completions."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 5000, (count,), generator=generator).tolist())

    rows = []
    for _ in range(setting.prompts):
        prompt = tokens(setting.prompt_tokens)
        for _ in range(setting.group):
            completion = tokens(setting.new_tokens)
            zeros, ones = (0.0,) * len(completion), (1,) * len(completion)
            rows.append(Row(Segment(prompt, completion, zeros, ones), 1.0, 1.0))
    most = policy.tuning.micro_batch_tokens
    return list(policy.micro_batches(rows, max_tokens=most, dtype=torch.float32))


def update(policy: Policy, micros: list[MicroBatch]) -> float:
    """Return the seconds of a reference's log-probs, and of a loss with its gradient."""
    started = time.perf_counter()
    for micro in micros:
        with torch.no_grad():
            policy.reference_logprobs(micro, temperature=1.0)
        logprob_BT, _ = policy.logprobs(micro, temperature=1.0)
        (logprob_BT * micro.real_BT).sum().backward()
    seconds = time.perf_counter() - started
    policy.model.zero_grad()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", required=True, help="settings of one side alone")
    parser.add_argument("--setting", choices=SETTINGS, default="short")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--blocks", type=int, default=2, help="of the model that are kept")
    parser.add_argument("--repeats", type=int, default=60, help="after three of warm-up")
    options = parser.parse_args()

    setting = SETTINGS[options.setting]
    sides = {
        "default": {},
        " ".join(options.set): nested(dict(p.split("=", 1) for p in options.set)),
    }
    policies = {
        name: make_policy(setting, options.blocks, options.model, more)
        for name, more in sides.items()
    }
    micros = {name: micro_batches(policy, setting) for name, policy in policies.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repeats + 3):
        for name, policy in policies.items():
            times[name].append(update(policy, micros[name]))

    dtype = next(iter(policies.values())).compute_dtype
    print(
        f"{options.setting}, {options.blocks} blocks, {machine(str(dtype).removeprefix('torch.'))}"
    )
    found = {
        name: (statistics.quantiles(values[3:], n=10)[0], statistics.median(values[3:]))
        for name, values in times.items()
    }
    for name, (low, middle) in found.items():
        print(f"{name}: 10th percentile {1000 * low:.1f} ms, median {1000 * middle:.1f} ms")
    own, other = found.values()
    print(
        f"the default is {other[0] / own[0]:.3f} times as fast by the 10th percentile, "
        f"{other[1] / own[1]:.3f} by the median"
    )


if __name__ == "__main__":
    main()
