"""What only a GPU can show: the same results as on a CPU, few waits, and memory within the estimate.

`GRPO_GPU_DEVICE=cpu pytest -m heavy tests/train/test_gpu.py` tries the tests themselves where there is no GPU;
those that only a GPU can answer are skipped then.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.memory_estimate import TOLERANCE
from grpo_core.train.trainer import Trainer

from .arrange import sampled
from .killing import killed
from .letters import Letters
from .short_runs import QUICK, ran, steps_of
from .test_sampler import prompts, requests_for

DEVICE = os.environ.get("GRPO_GPU_DEVICE", "cuda")
ON_GPU = DEVICE != "cpu"
TOKENS = 40

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="needs a GPU"),
]
only_gpu = pytest.mark.skipif(not ON_GPU, reason="only a GPU can show it")


USUAL = {**QUICK, "steps": 3, "eval.tasks": 6, "kl.beta": 0.1, "model.device": DEVICE}
SHOWN = ("reward/mean", "loss", "kl", "grad_norm")


def config(settings: dict[str, Any], **more: Any) -> Any:
    return build_config([settings, nested({**USUAL, **more})])


def run(settings: dict[str, Any], folder: Path, **more: Any) -> list[dict[str, float]]:
    """Return the metrics of the steps of a run."""
    ran(settings, folder, {**USUAL, "trainer.memory_check": "warn", **more})
    return steps_of(folder)


def test_a_run_has_the_metrics_of_the_same_run_on_a_cpu(settings, tmp_path):
    found = []
    for device in (DEVICE, "cpu"):
        more = {"model.dtype": "float64", "model.device": device}
        found.append(run(settings, tmp_path / f"on-{len(found)}", **more))
        AcceleratorState._reset_state(reset_partial_state=True)  # one process has one device
    for here, there in zip(*found, strict=True):
        expected = pytest.approx([there[name] for name in SHOWN], rel=1e-6, abs=1e-9)
        assert [here[name] for name in SHOWN] == expected
    assert len({line["loss"] for line in found[0]}) == 3


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_tokens_and_log_probs_are_those_of_a_cpu(settings, stacked, graphs):
    long, short = (requests_for(prompts(16), 2, length=length) for length in (60, 35))
    requests = [*long, *short]
    found = []
    for device in (DEVICE, "cpu"):
        more = {"model.device": device, "trainer.stacked_layers": stacked}
        policy = load_policy(config(settings, **more), need_reference=False)
        found.append(sampled(policy, requests, cuda_graphs=graphs and device == DEVICE))
    equal = [(a, b) for a, b in zip(*found, strict=True) if a.token_ids == b.token_ids]
    assert len(equal) >= 0.95 * len(requests)
    for a, b in equal:
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-3)


@pytest.mark.parametrize("stacked", [False, True])
def test_what_is_sampled_in_bfloat16_is_what_is_trained(settings, tmp_path, stacked):
    more = {"model.dtype": "bfloat16", "trainer.stacked_layers": stacked}
    for line in run(settings, tmp_path / "run", **more):
        assert line["sampling/logprob_gap"] < 0.02
        assert line["grad_norm"] > 0


@only_gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_decoding_waits_once_a_token(settings, graphs):
    policy = load_policy(config(settings), need_reference=False)
    policy.end_ids = ()  # so that every completion has its full length

    def waits(length: int) -> int:
        requests = requests_for(prompts(4), 4, length=length)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                sampled(policy, requests, cuda_graphs=graphs)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in caught)

    waits(TOKENS)  # warm-up
    few = waits(TOKENS)
    assert 0 < waits(3 * TOKENS) - few <= 2 * TOKENS


@only_gpu
def test_a_model_that_cannot_be_recorded_is_computed_as_usual(settings):
    policy = load_policy(config(settings), need_reference=False)
    requests = requests_for(prompts(4), 4, length=TOKENS)
    expected = sampled(policy, requests, cuda_graphs=False)
    hook = policy.model.register_forward_pre_hook(
        lambda _, args, kwargs: kwargs["input_ids"].sum().item() and None, with_kwargs=True
    )
    with pytest.warns(UserWarning, match="cannot be recorded as a CUDA graph"):
        found = sampled(policy, requests, cuda_graphs=True)
    hook.remove()
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    again = sampled(policy, requests, cuda_graphs=True)
    assert [one.token_ids for one in again] == [one.token_ids for one in expected]


@only_gpu
@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_quantised_weights_train_the_adapter(settings, tmp_path, quantization):
    more = {"model.quantization": quantization, "model.dtype": "bfloat16"}
    assert all(line["grad_norm"] > 0 for line in run(settings, tmp_path / "run", **more))


@only_gpu
def test_the_peak_of_memory_is_within_the_estimate(settings, tmp_path):
    torch.cuda.reset_peak_memory_stats()
    first, *_, last = run(settings, tmp_path / "run")
    assert last["memory/peak_mb"] <= TOLERANCE * first["memory/estimated_mb"]


def test_a_killed_run_is_resumed(settings, tmp_path):
    more = {"checkpoint.every": 2, "model.dtype": "float64"}
    whole = run(settings, tmp_path / "whole", **more)
    with killed(tmp_path / "run", step=3) as observer:
        ran(settings, tmp_path / "run", {**USUAL, **more}, observer=observer)
    Trainer.resumed(tmp_path / "run", Letters()).run()
    resumed = steps_of(tmp_path / "run")
    assert len(resumed) == len(whole) == 3
    expected = pytest.approx([whole[-1][name] for name in SHOWN], rel=1e-6, abs=1e-9)
    assert [resumed[-1][name] for name in SHOWN] == expected
