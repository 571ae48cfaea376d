"""The promises that the other tests keep with a tiny model, kept by the default one: SmolLM2-135M in its own precision.

Heavy: the model is fetched if it is not in the cache. Where it computes in bfloat16, log-probs agree to that type's precision only.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from grpo_core import TaskKey
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.ways import Training
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.sampler import Request
from grpo_core.protocol.types import Segment
from grpo_core.train.rollout.draws import Draws

from ..commandline import words
from .arrange import micro_batches, sampled
from .short_runs import steps_of

pytestmark = pytest.mark.heavy
TOKENS = 12
FIRST_STEP_SECONDS = 60
REVERSE = f"{Path(__file__).parents[2] / 'examples' / '02_write_an_environment.py'}:Reverse"


@pytest.fixture(scope="module")
def policy() -> Policy:
    config = build_config([{"environment": "arithmetic", "model": {"dtype": "float32"}}])
    return load_policy(config, need_reference=True)


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


def test_greedy_tokens_equal_those_of_generate(policy, requests):
    greedy = sampled(policy, requests[::4], temperature=0.0)
    for request, completion in zip(requests[::4], greedy, strict=True):
        ids = torch.tensor([request.prefix], device=policy.device)
        expected = policy.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=policy.pad_id,
            eos_token_id=list(policy.end_ids),
        )
        assert completion.token_ids == expected[0, len(request.prefix) :].tolist()


@pytest.mark.parametrize("shared", [True, False])
def test_sampler_log_probs_equal_the_trainers_and_those_of_a_padded_batch(
    policy, requests, monkeypatch, shared
):
    rows = []
    for request, drawn in zip(requests, sampled(policy, requests), strict=True):
        ids = tuple(drawn.token_ids)
        segment = Segment(request.prefix, ids, tuple(drawn.logprobs), (1,) * len(ids))
        rows.append(Row(segment, 0.0, 0.0))
    monkeypatch.setattr(policy, "training", Training.TREES if shared else Training.PADDED)
    size = {"max_tokens": 4096, "device": policy.device, "dtype": torch.float32}
    for micro in micro_batches(rows, shared_prefix=shared, **size):
        with torch.no_grad():
            found, _ = policy.logprobs(micro, temperature=1.0)
        for row, logprob_T in zip(micro.rows, found, strict=True):
            drawn_T = torch.tensor(row.segment.logprobs)
            logprob_T = logprob_T[: len(drawn_T)].cpu()
            torch.testing.assert_close(logprob_T, drawn_T, atol=2e-3, rtol=0)


def test_the_first_step_comes_within_a_minute_and_answers_are_not_cut_off(tmp_path, policy):
    """Everything as `grpo run --env arithmetic` has it but the number of steps; the model is cached (`policy` saw to that)."""
    program = "from grpo_core.cli import main; main()"
    command = [sys.executable, "-c", program, *words("run --env arithmetic --steps 1 --out run")]
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
    (step,) = steps_of(tmp_path / "run")
    assert step["completion_length/clipped"] < 0.5


# `grpo env probe` tells what training would have told after an hour: words backwards are beyond the
# model, small sums are not.


def probed(name: str) -> tuple[int, Any]:
    """Status and report of 24 x 8 attempts at the easiest level."""
    options = words("--model smollm2-135m --level 0 --tasks 24 --json")
    done = CliRunner().invoke(app, ["env", "probe", name, *options])
    return done.exit_code, json.loads(done.stdout)


def test_words_backwards_are_untrainable_although_their_rewards_differ():
    status, found = probed(REVERSE)
    (level,) = found["levels"]
    assert (status, found["trainable"]) == (1, False)
    assert "an attempt that passes, so there is no success to learn from" in found["reason"]
    assert level["mixed_reward"] > 0.2


def test_small_sums_are_trainable():
    status, found = probed("arithmetic")
    (level,) = found["levels"]
    assert (status, found["trainable"], found["level"]) == (0, True, 0.0)
    assert 0.03 < level["pass_rate"] < 0.2
    assert level["pass_at"]["8"] > 0.3
    assert found["group_size"] in (8, 16)
    assert found["max_new_tokens"] <= 24
