"""What a run needs, said before it starts, and the ways to need less: quantised weights, recomputed layers, weights that stay elsewhere."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config, nested
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.compute.batch import Row
from grpo_core.train.compute.heap import ARENAS
from grpo_core.train.models.load import resolve
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.memory import Footprint
from grpo_core.train.policy.memory_estimate import Workload
from grpo_core.train.policy.ways import DecodingWay
from grpo_core.train.trainer import Trainer

from ..commandline import words
from .arrange import micro_batches, random_rollouts
from .letters import Letters
from .tiny import tiny_tokenizer

RECOMPUTED: dict[str, Any] = {"trainer.gradient_checkpointing": True}


def config(settings: dict[str, Any], **more: Any) -> Any:
    return build_config(
        [
            settings,
            nested({"steps": 3, "eval.tasks": 6, "checkpoint.every": 0, "kl.beta": 0.1}),
            nested(more),
        ]
    )


def run(settings: dict[str, Any], folder: Path, **more: Any) -> list[dict[str, float]]:
    Trainer(config(settings, **more), Letters(), folder=RunFolder(folder)).run()
    return list(read_lines(folder / "metrics.jsonl"))


def untimed(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    return [
        {
            name: value
            for name, value in line.items()
            if not name.startswith(("kind", "time/", "verify/", "memory/", "eval/"))
        }
        for line in lines
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [RECOMPUTED, {**RECOMPUTED, "model.offload": True}], ids=["recomputed", "offloaded"]
)
def test_less_memory_is_the_same_run(settings, tmp_path: Path, more: dict[str, Any]) -> None:
    plain = run(settings, tmp_path / "plain", **{"model.dtype": "float64"})
    lean = run(settings, tmp_path / "lean", **{"model.dtype": "float64", **more})
    assert len(plain) == len(lean) == 5
    for a, b in zip(untimed(plain), untimed(lean), strict=True):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6, nan_ok=True)
    assert plain[1]["loss"] != plain[3]["loss"]


def test_dropout_of_a_warm_start_is_the_same_in_a_recomputed_layer(settings) -> None:
    found = []
    for recomputed in (False, True):
        policy = Policy.load(
            config(
                settings,
                **{
                    "lora.dropout": 0.5,
                    "method": "sft",
                    "trainer.gradient_checkpointing": recomputed,
                },
            ),
            need_reference=False,
        )
        policy.model.train()
        torch.manual_seed(3)
        found.append(gradients(policy))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))


def gradients(policy: Policy) -> list[torch.Tensor]:
    rows = [
        Row(rollout.segments[0], 1.0, 1.0) for group in random_rollouts(2, 3) for rollout in group
    ]
    policy.model.zero_grad()
    for micro in micro_batches(rows, max_tokens=10_000, device=policy.device, dtype=torch.float32):
        policy.logprobs(micro, temperature=1.0)[0].sum().backward()
    return [
        parameter.grad.clone() for _, parameter in policy.trainable() if parameter.grad is not None
    ]


def test_a_recomputed_layer_keeps_only_what_enters_it(settings) -> None:
    plain, lean = (
        Footprint(Policy.load(config(settings, **more), need_reference=True))
        for more in ({}, RECOMPUTED)
    )
    assert lean.kept[1] < plain.kept[1] / 2
    assert lean.layer == pytest.approx(plain.layer, rel=0.3)


@pytest.fixture
def wide_folder(tmp_path: Path) -> Path:
    """Layers of multiples of 64, which is what quantised products are made for."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=104,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "wide")
    tiny_tokenizer().save_pretrained(tmp_path / "wide")
    return tmp_path / "wide"


@pytest.mark.slow
@pytest.mark.parametrize(("quantization", "most"), [("8bit", 1.1), ("4bit", 0.6)])
def test_quantised_weights_are_smaller_and_train_the_adapter(
    settings, wide_folder: Path, tmp_path: Path, quantization: str, most: float
):
    more = {
        "model.name": str(wide_folder),
        "model.quantization": quantization,
        "model.dtype": "float32",
    }
    policy = Policy.load(config(settings, **more), need_reference=True)
    layers = [
        module for name, module in policy.model.named_modules() if name.endswith("base_layer")
    ]
    assert sum(layer.weight.nbytes for layer in layers) < most * sum(
        layer.in_features * layer.out_features for layer in layers
    )
    lines = [line for line in run(settings, tmp_path / "run", **more) if "loss" in line]
    assert all(line["grad_norm"] > 0 for line in lines)
    # LLM.int8() rounds what enters a layer by the other rows, too, so that what is sampled is not exactly what is trained.
    assert max(line["sampling/logprob_gap"] for line in lines) < (
        0.05 if quantization == "8bit" else 1e-4
    )
    assert lines[-1]["kl"] > 0


@pytest.mark.slow
def test_wide_adapters_beside_4_bit_weights_in_bfloat16_train(
    settings, wide_folder: Path, tmp_path: Path
) -> None:
    """peft computes with their float32 matrices, which are as wide as what is laid out anew for decoding."""
    more = {
        "model.name": str(wide_folder),
        "model.quantization": "4bit",
        "model.dtype": "bfloat16",
        "lora.r": 64,
    }
    lines = run(settings, tmp_path / "run", **more)
    assert all(line["grad_norm"] > 0 for line in lines if "loss" in line)


def test_sampling_does_not_change_what_4_bit_weights_train(settings, wide_folder: Path) -> None:
    """bitsandbytes lays them out anew in the first pass without a gradient, on CPUs with units for bfloat16."""
    policy = Policy.load(
        config(settings, **{"model.name": str(wide_folder), "model.quantization": "4bit"}),
        need_reference=True,
    )
    before = gradients(policy)
    rows = [
        Row(rollout.segments[0], 1.0, 1.0) for group in random_rollouts(2, 3) for rollout in group
    ]
    for micro in micro_batches(rows, max_tokens=10_000, device=policy.device, dtype=torch.float32):
        policy.reference_logprobs(micro, temperature=1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(policy), strict=True))
    assert any(gradient.any() for gradient in before)


def test_the_estimate_is_said_logged_and_compared_with_the_peak(settings, tmp_path: Path) -> None:
    lines = run(settings, tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "at most, of" in log
    assert all(
        name in log
        for name in (
            "weights",
            "adapter",
            "gradients",
            "optimizer",
            "activations",
            "logits",
            "headroom",
        )
    )
    assert "had been estimated" in log
    (first,) = [line for line in lines if "memory/estimated_mb" in line]
    assert first["step"] == 1
    assert first["memory/estimated_mb"] == pytest.approx(
        lines[-2]["memory/peak_mb"], rel=0.5
    )  # examples/benchmarks/memory.py: 0.2


def test_the_estimate_expects_that_shorter_attempts_fill_a_pass_better(settings) -> None:
    """Four attempts of 40 tokens take a pass each; shorter ones would take up to `trainer.micro_batch_tokens` together."""
    policy = Policy.load(config(settings), need_reference=False)
    rows = [policy.longest_row((number + 1,) * 20, 20, number) for number in range(4)]

    def activations(most: int, count: int = 4) -> float:
        chosen = config(settings, **{"trainer.micro_batch_tokens": most})
        work = Workload(rows[:count], [(1, 1)], prompt=20, new=20)
        return Footprint(policy).estimate(policy, chosen, work).update["activations"]

    assert activations(40) == activations(60, count=1) < activations(60) < activations(79)


@pytest.mark.slow
def test_measuring_leaves_no_tensors_behind(settings) -> None:
    """A result that its operation keeps, and that a hook hands back as it is, is part of a cycle that nothing frees: 600 MiB with SmolLM2-135M in float32."""
    policy = Policy.load(config(settings), need_reference=True)

    def computed() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) and o.grad_fn is not None for o in gc.get_objects())

    before = computed()
    Footprint(policy)
    assert computed() == before


@pytest.mark.parametrize("sharded", [False, True], ids=["whole weights", "shared out"])
def test_the_estimate_counts_what_processes_share_and_sum(
    settings, monkeypatch, sharded: bool
) -> None:
    chosen = config(settings, **{"lora.enabled": False, "optimizer.lr": 1e-4})
    policy = Policy.load(chosen, need_reference=True)
    footprint = Footprint(policy)
    monkeypatch.setattr(policy, "sharded", sharded)
    work = Workload([policy.longest_row((1,) * 3, 2, 4)], [(4, 4)], prompt=3, new=2)
    alone, both = (footprint.estimate(policy, chosen, work, processes=n) for n in (1, 2))
    size = sum(p.nbytes for p in policy.model.parameters())
    layers = policy.model.model.layers
    assert len(layers) == 2  # so all of them are gathered at the same time, with their gradients
    expected = {
        name: alone.always[name] / (2 if sharded else 1)
        for name in ("weights", "reference", "gradients", "optimizer")
    }
    assert {name: both.always[name] for name in expected} == expected
    assert both.rollout["gathered weights"] == (size / 2 if sharded else 0)
    assert both.update["gathered weights"] == (size if sharded else 0)
    for logits in (both.update["logits"], alone.update["logits"]):
        assert logits <= policy.logits_bytes
    computing = sum(
        alone.update[name] for name in ("activations", "logits", "states of the reference")
    )
    assert alone.update["sums over processes"] == 0
    monkeypatch.setattr("grpo_core.train.policy.memory.BUCKET_BYTES", 10**12)
    found = footprint.estimate(policy, chosen, work, processes=2).update["sums over processes"]
    assert 2 * size > computing
    assert found == (0 if sharded else pytest.approx(2 * size - computing))


def test_a_model_without_a_cache_computes_whole_sequences_in_each_step(settings) -> None:
    policy = Policy.load(config(settings), need_reference=False)
    footprint = Footprint(policy)
    work = Workload([policy.longest_row((1,) * 90, 9, 4)], [(4, 4)], prompt=90, new=9)

    def rollout(way: DecodingWay) -> Mapping[str, float]:
        policy.sampling = way
        return footprint.estimate(policy, config(settings), work).rollout

    trees, rows, uncached = map(
        rollout, (DecodingWay.TREES, DecodingWay.PADDED, DecodingWay.UNCACHED)
    )
    assert rows["keys and values"] == pytest.approx(
        trees["keys and values"] * (16 * 99) / (4 * 90 + 16 * 9)
    )
    assert uncached["keys and values"] == 0
    assert uncached["decoding"] - trees["decoding"] == pytest.approx(
        (16 * 99 - 4 * 90) * footprint.layer
    )


def test_components_are_what_torch_says(settings) -> None:
    policy = Policy.load(
        config(settings, **{"lora.enabled": False, "optimizer.lr": 1e-4}), need_reference=True
    )
    trainer = Trainer(
        config(settings, **{"lora.enabled": False, "optimizer.lr": 1e-4}), Letters(), policy=policy
    )
    found = trainer.actor.footprint.estimate(
        policy, trainer.config, trainer.method.workload([(1,) * 10])
    ).always
    size = sum(p.nbytes for p in policy.model.parameters())
    assert (found["weights"], found["reference"], found["adapter"], found["gradients"]) == (
        size,
        size,
        0,
        size,
    )
    trainer.method.updater.update(
        [[Row(rollout.segments[0], 1.0, 1.0) for rollout in random_rollouts(1, 3)[0]]]
    )
    state = trainer.method.updater.optimizer.optimizer.state.values()
    assert found["optimizer"] == sum(
        tensor.nbytes for values in state for tensor in values.values() if tensor.ndim
    )


@pytest.mark.parametrize("name", ["adamw", "adamw8bit"])
def test_the_optimizers_state_is_counted_as_it_is(settings, wide_folder: Path, name: str) -> None:
    chosen = config(
        settings, **{"model.name": str(wide_folder), "optimizer.name": name, "lora.r": 64}
    )
    trainer = Trainer(chosen, Letters())
    found = trainer.actor.footprint.estimate(
        trainer.actor.policy, chosen, trainer.method.workload([(1,) * 10])
    ).always["optimizer"]
    trainer.method.updater.update(
        [[Row(rollout.segments[0], 1.0, 1.0) for rollout in random_rollouts(1, 3)[0]]]
    )
    state = [
        t
        for v in trainer.method.updater.optimizer.optimizer.state.values()
        for n, t in v.items()
        if getattr(t, "ndim", 0) and "qmap" not in n
    ]
    assert found == pytest.approx(sum(tensor.nbytes for tensor in state), rel=0.01)


def test_a_run_that_cannot_fit_is_refused_before_anything_is_written(
    settings, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("grpo_core.train.policy.memory.free_memory", lambda device: 100 * 2**20)
    with pytest.raises(
        ConfigError,
        match=r"estimated to need .* at most, of 100 MiB that are free: .*What would help most: .*memory_check",
    ):
        run(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()
    assert len(run(settings, tmp_path / "run", **{"trainer.memory_check": "warn"})) == 5


def test_weights_that_cannot_fit_are_refused_before_they_are_read(
    tiny_folder: Path, tmp_path: Path
) -> None:
    shape = json.loads((tiny_folder / "config.json").read_text())
    shape |= {
        "hidden_size": 65536,
        "intermediate_size": 262144,
        "num_hidden_layers": 200,
        "head_dim": 16384,
    }
    (tiny_folder / "config.json").write_text(json.dumps(shape))
    done = CliRunner().invoke(
        app,
        ["run", "--env", "arithmetic", "--model", str(tiny_folder), "--out", str(tmp_path / "run")],
    )
    assert done.exit_code == 2
    assert "GiB of memory, but only" in done.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model.quantization": "4bit", "lora.enabled": False}, "frozen weights"),
        ({"model.offload": True}, "gradient_checkpointing"),
        (
            {"model.offload": True, "model.quantization": "8bit", **RECOMPUTED},
            "do not work together",
        ),
        ({"model.quantization": "4bit", "trainer.shard": True}, "trainer.shard"),
    ],
)
def test_settings_that_exclude_each_other_say_so(
    settings, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(settings, **more)


@pytest.mark.slow
def test_an_adapter_on_quantised_weights_is_folded_into_full_ones(
    settings, wide_folder: Path, tmp_path: Path
) -> None:
    more = {"model.name": str(wide_folder), "model.quantization": "4bit"}
    run(settings, tmp_path / "run", **more)
    done = CliRunner().invoke(
        app,
        words(f"export {tmp_path / 'run'} --weights {tmp_path / 'merged'} --dtype float32"),
    )
    assert done.exit_code == 0, done.output
    model = Policy.load(
        config(settings, **{"model.name": str(tmp_path / "merged")}), need_reference=False
    ).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert resolve(str(tmp_path / "merged")).adapter_path is None


HEAPS = """
import ctypes, re, tempfile, threading
import torch
from grpo_core.train.compute.heap import share_heap

share_heap(torch.device("cpu"))
together = threading.Barrier(7)  # who has ended leaves a heap to the next
for _ in range(6):
    threading.Thread(target=lambda: [[torch.ones(10_000 + i) for i in range(20)], together.wait()]).start()
together.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(len(re.findall("<heap nr", open(file.name).read())))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")
def test_threads_share_few_heaps_unless_the_user_said_otherwise() -> None:
    def heaps(**more: str) -> int:
        environ = {
            name: value
            for name, value in os.environ.items()
            if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
        }
        return int(
            subprocess.run(
                [sys.executable, "-c", HEAPS],
                env=environ | more,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )

    assert heaps() <= ARENAS < heaps(MALLOC_ARENA_MAX="8")
    assert heaps(GLIBC_TUNABLES="glibc.malloc.arena_max=8") > ARENAS


HOLES = """
import torch
from grpo_core.train.models.device import used_memory
from grpo_core.train.compute.heap import Heap

cpu = torch.device("cpu")


def step(tensors):
    held = [torch.ones(25_000) for _ in range(tensors)]  # 100 KB each
    kept.append(held[-1])  # above the others: they leave a hole and no end of the heap
    del held
    heap.step_ended()
    print(used_memory(cpu) // 2**20)


kept = []
heap = Heap(cpu, expected=0.0)
for tensors in (10, 3000, 3000, 3000):
    step(tensors)
heap = Heap(cpu, expected=used_memory(cpu) + 2**30)
for tensors in (10, 6000):
    step(tensors)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")
def test_the_heap_is_emptied_when_it_has_grown_and_not_in_every_step() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], check=True, capture_output=True, text=True)
    at_first, grown, refilled, again, before, expected = map(int, done.stdout.split())
    assert grown < at_first + 100
    assert refilled > grown + 200
    assert again > grown + 200
    assert expected > before + 100
