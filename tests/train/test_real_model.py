"""The promises that the other tests keep with a tiny model, kept by the default one: SmolLM2-135M in its own precision.

Heavy: the model is fetched if it is not in the cache. Where it computes in bfloat16, log-probs agree to that type's precision only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from grpo_core import TaskKey
from grpo_core.config.overrides import build_config
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.sampler import Request
from grpo_core.protocol.types import Segment
from grpo_core.train.compute.batch import Row
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.ways import Training
from grpo_core.train.rollout.draws import Draws

from ..commandline import words
from .arrange import micro_batches, sampled

pytestmark = pytest.mark.heavy
TOKENS = 12
FIRST_STEP_SECONDS = 60


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load(
        build_config([{"environment": "arithmetic", "model": {"dtype": "float32"}}]),
        need_reference=True,
    )


@pytest.fixture(scope="module")
def requests(policy: Policy) -> list[Request]:
    """Four attempts at each of eight tasks."""
    env = load_environment(PluginHost(), "arithmetic")
    keys = [TaskKey("arithmetic", "train", i) for i in range(8)]
    prefixes = [policy.encode(env.task(key).prompt) for key in keys]
    return [
        Request(prefix, Draws(key, seed=0, step=1, attempt=g, turn=0).uniforms(TOKENS))
        for key, prefix in zip(keys, prefixes, strict=True)
        for g in range(4)
    ]


sample = sampled


def test_greedy_tokens_equal_those_of_generate(policy: Policy, requests: list[Request]) -> None:
    for request, completion in zip(
        requests[::4], sample(policy, requests[::4], temperature=0.0), strict=True
    ):
        ids = torch.tensor([request.prefix], device=policy.device)
        arguments = {
            "max_new_tokens": TOKENS,
            "do_sample": False,
            "pad_token_id": policy.pad_id,
            "eos_token_id": list(policy.end_ids),
        }
        expected = policy.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), **arguments
        )
        assert completion.token_ids == expected[0, len(request.prefix) :].tolist()


def test_sampler_log_probs_equal_the_trainers_and_those_of_a_padded_batch(
    policy: Policy, requests: list[Request]
) -> None:
    completions = sample(policy, requests)
    rows = [
        Row(
            Segment(
                r.prefix,
                tuple(c.token_ids),
                tuple(c.logprobs),
                (1,) * len(c.token_ids),
            ),
            0.0,
            0.0,
        )
        for r, c in zip(requests, completions, strict=True)
    ]
    for shared in (True, False):
        policy.training = Training.TREES if shared else Training.PADDED
        try:
            for micro in micro_batches(
                rows,
                max_tokens=4096,
                device=policy.device,
                dtype=torch.float32,
                shared_prefix=shared,
            ):
                with torch.no_grad():
                    found, _ = policy.logprobs(micro, temperature=1.0)
                for row, logprob_T in zip(micro.rows, found, strict=True):
                    drawn = torch.tensor(row.segment.logprobs)
                    torch.testing.assert_close(
                        logprob_T[: len(drawn)].cpu(), drawn, atol=2e-3, rtol=0
                    )
        finally:
            policy.training = Training.TREES


def test_the_first_step_comes_within_a_minute_and_answers_are_not_cut_off(
    tmp_path: Path, policy: Policy
) -> None:
    """Everything as `grpo run --env arithmetic` has it but the number of steps; the model is cached (`policy` saw to that)."""
    command = [
        sys.executable,
        "-c",
        "from grpo_core.cli import main; main()",
        *words("run --env arithmetic --steps 1 --out run"),
    ]
    started = time.monotonic()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("step 1/1"):
                break
        seconds = time.monotonic() - started
        run.stdout.read()
    assert run.returncode == 0
    assert seconds < FIRST_STEP_SECONDS
    (step,) = [
        line
        for line in map(json.loads, (tmp_path / "run" / "metrics.jsonl").open())
        if "reward/mean" in line
    ]
    assert step["completion_length/clipped"] < 0.5
