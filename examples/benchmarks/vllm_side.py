"""The process of vLLM in vs_vllm.py.

    python vllm_side.py SETTINGS-AS-JSON

It runs in a virtual environment of its own, so it imports nothing of grpo-core. Before each batch
it waits for a line on its input; after it, it prints a line of JSON with the batch's measurements.
"""

from __future__ import annotations

import json
import sys
import time


def main(given: str) -> None:
    from vllm import LLM, SamplingParams

    settings = json.loads(given)
    length = settings["max_new_tokens"]
    longest = max(map(len, settings["prompts"])) + length
    # gpu_memory_utilization is, on a CPU too, a share of the whole machine's memory, which the
    # other processes use as well.
    llm = LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=longest + 1,
        seed=0,
        gpu_memory_utilization=0.4,
    )
    sampling = SamplingParams(
        n=settings["group_size"],
        temperature=1.0,
        max_tokens=length,
        min_tokens=length,
        ignore_eos=True,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in settings["prompts"]]
    while sys.stdin.readline():
        started = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = sum(
            len(completion.token_ids) for output in outputs for completion in output.outputs
        )
        print("@" + json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
