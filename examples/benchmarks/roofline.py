"""Compare a step's time with the limits of the hardware: matrix products and reading of weights.

    python examples/benchmarks/roofline.py [--model smollm2-135m] [--out FILE.json]

Matrix products limit the update, and reading the weights limits decoding. Both limits are measured
in the same run: the speed of products of the model's own shapes, and of reading its weights. A
forward pass of N tokens counts as 2 N operations for each weight, and a backward pass through
frozen weights as the same number; attention is left out, so the share is a lower bound. A decode
step of R rows takes at least the time of its products and at least the time of reading all weights
once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import workload
from sides import machine

PROMPT, GROUP, TOKENS, PROMPTS = 57, 8, 24, 4


def seconds(call: Callable[[], object], *, repeats: int = 7) -> float:
    """Return the median time of a call in seconds, without the first one."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


@torch.inference_mode()
def products_per_second(model: torch.nn.Module, rows: int) -> float:
    """Measure the operations per second of all linear layers in sequence, on `rows` rows."""
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    weight = layers[0].weight
    inputs = {
        m.in_features: torch.randn(rows, m.in_features, dtype=weight.dtype, device=weight.device)
        for m in layers
    }
    operations = sum(2 * rows * m.weight.numel() for m in layers)
    return operations / seconds(lambda: [m(inputs[m.in_features]) for m in layers])


@torch.inference_mode()
def bytes_per_second(model: torch.nn.Module) -> float:
    """Measure the bytes per second of reading every weight once."""
    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    size = sum(w.numel() * w.element_size() for w in weights)
    return size / seconds(
        lambda: [
            w.view(torch.int16 if w.element_size() == 2 else torch.int32).sum() for w in weights
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after one of warm-up")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    from grpo_core.config.overrides import build_config
    from grpo_core.engine.models.load import load_model, resolve
    from grpo_core.engine.policy.choose import load_policy

    shape = {
        "prompts_per_step": PROMPTS,
        "group_size": GROUP,
        "new_tokens": TOKENS,
        "steps": options.steps + 1,
    }
    model = {"name": options.model, "dtype": options.dtype, "device": options.device}
    settings = workload.settings(model, **shape)
    policy = load_policy(build_config([settings]), need_reference=True)
    plain = load_model(resolve(options.model), dtype=policy.compute_dtype, device=policy.device)
    nodes, rows = PROMPTS * (PROMPT + GROUP * TOKENS), PROMPTS * GROUP
    weights = sum(m.weight.numel() for m in plain.modules() if isinstance(m, torch.nn.Linear))
    size = weights * plain.dtype.itemsize
    limits = {
        "update_operations_per_second": products_per_second(plain, nodes),
        "decode_operations_per_second": products_per_second(plain, rows),
        "bytes_per_second": bytes_per_second(plain),
    }
    del plain
    texts = [
        policy.tokenizer.decode(ids)
        for ids in workload.prompts(policy.tokenizer, PROMPTS * (options.steps + 1), PROMPT)
    ]
    measured = workload.steps(policy, settings, texts)[1:]
    update, rollout = (
        statistics.median(step[f"time/{name}"] for step in measured)
        for name in ("update", "rollout")
    )
    # The reference's forward pass, the policy's, and its backward pass, in which no gradients of
    # the frozen weights are computed.
    least_update = 3 * 2 * nodes * weights / limits["update_operations_per_second"]
    decode = max(
        2 * rows * weights / limits["decode_operations_per_second"],
        size / limits["bytes_per_second"],
    )
    least_rollout = (
        2 * PROMPTS * PROMPT * weights / limits["update_operations_per_second"]
        + (TOKENS - 1) * decode
    )
    shares = {"update": least_update / update, "rollout": least_rollout / rollout}
    for name, value in limits.items():
        print(f"{name}: {value / 1e9:.1f} G")
    print(
        f"update: {update:.2f} s, at least {least_update:.2f}: {shares['update']:.0%} of the limit"
    )
    print(
        f"rollout: {rollout:.2f} s, at least {least_rollout:.2f}: {shares['rollout']:.0%} of the "
        "limit"
    )
    if options.out:
        result = {
            "machine": machine(str(policy.compute_dtype)),
            "limits": limits,
            "seconds": {"update": update, "rollout": rollout},
        }
        options.out.write_text(json.dumps({**result, "share_of_limit": shares}, indent=2) + "\n")


if __name__ == "__main__":
    main()
