"""The sampler `vllm` with vLLM itself and SmolLM2-135M in float32, and the built-in engine beside it.

GRPO_VLLM_PYTHON names the Python of an environment with vLLM; `.ci/full` makes one. `-s` prints what was measured.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import IO, Any

import psutil
import pytest
import torch

from grpo_core import TaskKey, build_config
from grpo_core.config.config import RunConfig
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import choose_sampler, load_policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.engine.policy.weights import PolicyWeights
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.sampler import (
    Completion,
    Request,
    Sampler,
    SamplingParams,
    UnsupportedSchemaError,
)
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

from ..commandline import words

PYTHON = os.environ.get("GRPO_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not PYTHON, reason="GRPO_VLLM_PYTHON names no Python of an environment with vLLM"
    ),
]
COMMAND = [sys.executable, "-c", "from grpo_core.cli import main; main()"]
COMMAND += words("run --env arithmetic --dtype float32 --set sampler.name=vllm")
COMMAND += ["--set", f"sampler.settings.python={PYTHON}"]
SMALL = ["--set", "prompts_per_step=2", "--set", "group_size=4", "--set", "eval.tasks=0"]
GAP, SYNC_SECONDS, TOKENS = 0.02, 1.0, 12


def run(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The lines of the steps of a finished run."""
    subprocess.run([*COMMAND, *arguments, "--out", str(folder)], check=True)
    return steps_of(folder)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of ten steps."""
    folder = tmp_path_factory.mktemp("vllm") / "run"
    run(folder, "--steps", "10", *SMALL, "--set", "optimizer.lr=1e-3")
    return folder


def test_ten_steps_have_the_trainers_log_probs_and_adapters_travel_at_once(trained: Path) -> None:
    lines = steps_of(trained)
    gaps = [line["sampling/logprob_gap"] for line in lines]
    syncs = [line["time/sync"] for line in lines[1:]]
    print(
        f"\ngap per token: {max(gaps):.2g} nats at most; sync {min(syncs):.2f}..{max(syncs):.2f} s"
    )
    assert len(lines) == 10
    assert max(gaps) < GAP
    assert sorted(syncs)[len(syncs) // 2] < SYNC_SECONDS
    assert not leftovers()


def leftovers() -> list[str]:
    """Processes and files of servers."""
    servers = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if PYTHON in (process.info["cmdline"] or [])
    ]
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    files = [file for folder in folders for file in folder.glob("grpo-vllm-*")]
    return [*map(str, servers), *map(str, files)]


def drawn(sampler: Sampler, requests: Sequence[Request], policy: Policy) -> list[Completion]:
    async def all_of() -> list[Completion]:
        try:
            await sampler.sync(PolicyWeights(policy), 1)
            return await asyncio.gather(*map(sampler.generate, requests))
        finally:
            await sampler.close()

    return asyncio.run(all_of())


def configured(model: str) -> RunConfig:
    sampler = {"name": "vllm", "settings": {"python": PYTHON}}
    settings = {"environment": "arithmetic", "model": {"name": model, "dtype": "float32"}}
    return build_config([{**settings, "sampler": sampler}])


def prompts(policy: Policy, count: int) -> list[tuple[int, ...]]:
    env = load_environment(PluginHost(), "arithmetic")
    keys = [TaskKey("arithmetic", "eval", index) for index in range(count)]
    return [policy.encode(env.task(key).prompt) for key in keys]


def share_equal(left: Sequence[Completion], right: Sequence[Completion]) -> float:
    pairs = zip(left, right, strict=True)
    return sum(a.token_ids == b.token_ids for a, b in pairs) / len(left)


def test_what_it_draws_is_what_the_built_in_engine_finds_likely(trained: Path) -> None:
    config = configured(str(trained / "final"))
    policy = load_policy(config, need_reference=False)
    chosen = prompts(policy, 64)

    def asks(**params: Any) -> list[Request]:
        settings = SamplingParams(**params)
        return [Request(ids, [0.5] * TOKENS, settings, seed) for seed, ids in enumerate(chosen)]

    groups = [
        asks(temperature=0.0),
        asks(temperature=0.0, stop=(" ", "\n")),
        asks(),
        asks(temperature=0.7),
        asks(temperature=0.8, top_p=0.8, top_k=50),
        asks(),
        # More tokens than the server computes at a time: it must not fail at what is left over.
        [Request(tuple(range(seed, seed + 300)), [0.5] * 2, seed=seed) for seed in range(64)],
    ]
    sampler = choose_sampler(config, PluginHost())(policy, config)
    together = drawn(sampler, [request for group in groups for request in group], policy)
    greedy, stopped, plain, cool, narrow, again, long = (
        together[i : i + len(chosen)] for i in range(0, len(together), len(chosen))
    )
    engine = Engine(policy)
    equal = share_equal(greedy, drawn(engine, groups[0], policy))
    equal_stopped = share_equal(stopped, drawn(engine, groups[1], policy))
    untrained = load_policy(configured("smollm2-135m"), need_reference=False)
    base = share_equal(greedy, drawn(Engine(untrained), groups[0], untrained))
    print(
        f"\ngreedy completions equal to the built-in engine's: {equal:.0%}, with stop strings "
        f"{equal_stopped:.0%}; to the base model's: {base:.0%}"
    )
    assert equal >= 0.95
    assert equal_stopped >= 0.95
    assert base < 0.8
    assert all(
        completion.finish == "stop" for completion in stopped if len(completion.token_ids) < TOKENS
    )
    assert share_equal(plain, again) == 1.0  # equal seeds
    assert gap(policy, groups[6], long) < GAP
    assert share_equal(plain, greedy) < 0.8
    assert min(completion.kept_mass for completion in narrow) < 0.9
    for group, completions in ((groups[2], plain), (groups[3], cool), (groups[4], narrow)):
        assert gap(policy, group, completions) < GAP


def test_completions_that_have_to_be_json_are_json_with_the_trainers_log_probs() -> None:
    """With the built-in engine beside it: greedy tokens are the same where both allow the same."""
    config = configured("smollm2-135m")
    policy = load_policy(config, need_reference=False)
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }

    def asks(count: int, **params: Any) -> list[Request]:
        return [
            Request(ids, [0.5] * 40, SamplingParams(**params), seed, schema)
            for seed, ids in enumerate(prompts(policy, count))
        ]

    hot, greedy = asks(6), asks(4, temperature=0.0)
    refused = Request(hot[0].prefix, [0.5] * 8, json_schema={"type": "string", "pattern": "(?=a)"})
    sampler = choose_sampler(config, PluginHost())(policy, config)

    async def all_of() -> list[Any]:
        try:
            await sampler.sync(PolicyWeights(policy), 1)
            calls = map(sampler.generate, [*hot, *greedy, refused])
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await sampler.close()

    *completions, refusal = asyncio.run(all_of())
    print(f"\nrefused: {refusal}")
    assert isinstance(refusal, UnsupportedSchemaError)
    texts = [policy.decode(completion.token_ids) for completion in completions]
    ended = [text for text, done in zip(texts, completions, strict=True) if done.finish == "stop"]
    print(f"{len(ended)} of {len(texts)} ended: {texts[:3]}")
    assert (
        ended
    )  # the others filled their budget with whitespace, which llguidance before 1.8 does not bound
    for text in ended:
        assert json.loads(text).keys() == {"answer", "sure"}
    assert gap(policy, hot, completions[:6]) < GAP
    assert max(completion.kept_mass for completion in completions) < 1
    own = drawn(Engine(policy), greedy, policy)
    print(f"greedy completions equal to the engine's: {share_equal(completions[6:], own):.0%}")


@torch.no_grad()
def gap(policy: Policy, requests: Sequence[Request], completions: Sequence[Completion]) -> float:
    """The mean difference per token from the log-probs of a plain forward pass, in nats."""
    differences = []
    for request, completion in zip(requests, completions, strict=True):
        text = torch.tensor([[*request.prefix, *completion.token_ids]])
        logits_TV = policy.model(text).logits[0, len(request.prefix) - 1 : -1].float()
        logprob_TV = (logits_TV / request.params.temperature).log_softmax(-1)
        plain_T = logprob_TV[range(len(completion.token_ids)), completion.token_ids]
        differences += (plain_T - torch.tensor(completion.logprobs)).abs().tolist()
    print(f"gap at {requests[0].params}: {fmean(differences):.2g} nats per token")
    return fmean(differences)


def test_a_run_whose_server_is_killed_in_the_middle_of_a_step_completes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [*COMMAND, "--steps", "3", *SMALL, "--out", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        await_line(running.stderr, "is ready")
        metrics = folder / "metrics.jsonl"
        while not metrics.exists() or not steps_of(folder):
            time.sleep(0.05)
        (pid_file,) = Path(tempfile.gettempdir()).glob(f"grpo-vllm-*-{running.pid}-*/pid")
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        output = running.stderr.read()
    assert running.returncode == 0, output
    assert "the vLLM server failed and is started again" in (folder / "log.txt").read_text()
    assert len(steps_of(folder)) == 3
    assert max(line["sampling/logprob_gap"] for line in steps_of(folder)) < GAP
    versions = [line["versions"] for line in RunFolder(folder).rollout_lines()]
    assert versions == [[step] for step in range(3) for _ in range(8)]
    assert not leftovers()


def await_line(stream: IO[str], text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"the output ended without {text!r}")


def test_where_all_weights_are_trained_the_server_takes_all_of_them(tmp_path: Path) -> None:
    arguments = ["--set", "lora.enabled=false", "--set", "optimizer.lr=1e-5"]
    lines = run(tmp_path / "run", "--steps", "3", *SMALL, *arguments)
    print(f"\nsync of all weights: {[round(line['time/sync'], 2) for line in lines]} s")
    assert max(line["sampling/logprob_gap"] for line in lines) < GAP
