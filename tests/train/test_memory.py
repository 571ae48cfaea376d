"""What a run needs, said before it starts, and the ways to need less: quantised weights, recomputed layers, weights that stay elsewhere."""

import gc
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.compute.batch import MicroBatch, Row
from grpo_core.engine.compute.heap import ARENAS
from grpo_core.engine.models.load import resolve
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.memory import Footprint
from grpo_core.engine.policy.memory_estimate import Workload
from grpo_core.engine.policy.ways import DecodingWay
from grpo_core.protocol.errors import ConfigError

from ..commandline import words
from .arrange import micro_batches, random_rollouts
from .short_runs import QUICK, grpo, make, ran, steps_of
from .tiny import save_tiny

RECOMPUTED: dict[str, Any] = {"trainer.gradient_checkpointing": True}
CHANGES = {"steps": 3, "kl.beta": 0.1, "trainer.memory_check": "warn"}


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, **nested({**QUICK, **CHANGES})}


def config(settings: dict[str, Any], **more: Any) -> Any:
    return build_config([settings, nested(more)])


def loaded(settings: dict[str, Any], *, need_reference: bool = True, **more: Any) -> Policy:
    return load_policy(config(settings, **more), need_reference=need_reference)


def test_dropout_of_a_warm_start_is_the_same_in_a_recomputed_layer(settings):
    found = []
    for more in ({}, RECOMPUTED):
        dropout = {"lora.dropout": 0.5, "method": "sft", **more}
        policy = loaded(settings, need_reference=False, **dropout)
        policy.model.train()
        torch.manual_seed(3)
        found.append(gradients(policy))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))


def rows(prompts: int = 2) -> list[Row]:
    return [
        Row(rollout.segments[0], 1.0, 1.0)
        for group in random_rollouts(prompts, 3)
        for rollout in group
    ]


def micro(policy: Policy) -> Iterator[MicroBatch]:
    return micro_batches(rows(), max_tokens=10_000, device=policy.device, dtype=torch.float32)


def gradients(policy: Policy) -> list[torch.Tensor]:
    policy.model.zero_grad()
    for batch in micro(policy):
        policy.logprobs(batch, temperature=1.0)[0].sum().backward()
    return [weight.grad.clone() for _, weight in policy.trainable() if weight.grad is not None]


def test_a_recomputed_layer_keeps_only_what_enters_it(settings):
    plain, lean = (Footprint(loaded(settings, **more)) for more in ({}, RECOMPUTED))
    assert lean.kept[1] < plain.kept[1] / 2
    assert lean.layer == pytest.approx(plain.layer, rel=0.3)


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of multiples of 64, which is what quantised products are made for."""
    return save_tiny(tmp_path_factory.mktemp("wide"), width=128)


def quantised(wide_folder: Path, bits: str, dtype: str = "float32") -> dict[str, Any]:
    name = {"model.name": str(wide_folder), "model.quantization": bits, "model.dtype": dtype}
    return {**name, "trainer.memory_check": "off"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "dtype", "rank", "most", "gap"),
    [
        # LLM.int8() rounds what enters a layer by the other rows, too, so that what is sampled is
        # not exactly what is trained.
        ("8bit", "float32", 16, 1.1, 0.05),
        ("4bit", "float32", 16, 0.6, 1e-4),
        # peft computes with its float32 matrices, which are as wide as what is laid out anew for
        # decoding.
        ("4bit", "bfloat16", 64, 0.6, 1.0),
    ],
)
def test_quantised_weights_are_smaller_and_train_the_adapter(
    settings, wide_folder, tmp_path, bits, dtype, rank, most, gap
):
    more = {**quantised(wide_folder, bits, dtype), "lora.r": rank}
    trainer = make(settings, tmp_path / "run", more)
    modules = trainer.actor.policy.model.named_modules()
    layers = [module for name, module in modules if name.endswith("base_layer")]
    numbers = sum(layer.in_features * layer.out_features for layer in layers)
    assert sum(layer.weight.nbytes for layer in layers) < most * numbers
    trainer.run()
    lines = steps_of(tmp_path / "run")
    assert all(line["grad_norm"] > 0 for line in lines)
    assert max(line["sampling/logprob_gap"] for line in lines) < gap
    assert lines[-1]["kl"] > 0


def test_sampling_does_not_change_what_4_bit_weights_train(settings, wide_folder):
    """bitsandbytes lays them out anew in the first pass without a gradient, on CPUs with units for bfloat16."""
    policy = loaded(settings, **quantised(wide_folder, "4bit"))
    before = gradients(policy)
    for batch in micro(policy):
        policy.reference_logprobs(batch, temperature=1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(policy), strict=True))
    assert any(gradient.any() for gradient in before)


def test_the_estimate_is_said_logged_and_compared_with_the_peak(settings, tmp_path):
    ran(settings, tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()
    parts = words("weights adapter gradients optimizer activations logits headroom")
    for text in ("at most, of", *parts, "had been estimated"):
        assert text in log
    lines = steps_of(tmp_path / "run")
    assert ["memory/estimated_mb" in line for line in lines] == [True, False, False]
    # examples/benchmarks/memory.py: 0.2
    peak = lines[-1]["memory/peak_mb"]
    assert lines[0]["memory/estimated_mb"] == pytest.approx(peak, rel=0.5)


@pytest.mark.slow
def test_a_process_of_its_own_uses_at_most_what_was_estimated(tiny_folder, tmp_path):
    """Also with what environments and libraries take after the model was loaded."""
    more = "--steps 2 --prompts-per-step 4 --group-size 4 --set eval.tasks=8"
    text = f"run --env arithmetic --model {tiny_folder} --out {tmp_path / 'run'} {more}"
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", *words(text)]
    subprocess.run(command, check=True, capture_output=True)
    log = (tmp_path / "run" / "log.txt").read_text()
    found = re.search(r"at most (\d+) MiB were used; (\d+) MiB had been estimated", log)
    assert found
    used, estimated = map(int, found.groups())
    assert used <= estimated < 1.3 * used


def test_the_estimate_expects_that_shorter_attempts_fill_a_pass_better(settings):
    """Four attempts of 40 tokens take a pass each; shorter ones would take up to `trainer.micro_batch_tokens` together."""
    policy = loaded(settings, need_reference=False)
    longest = [policy.longest_row((number + 1,) * 20, 20, number) for number in range(4)]

    def activations(most: int, count: int = 4) -> float:
        chosen = config(settings, **{"trainer.micro_batch_tokens": most})
        work = Workload(longest[:count], [(1, 1)], prompt=20, new=20)
        return Footprint(policy).estimate(policy, chosen, work).update["activations"]

    assert activations(40) == activations(60, count=1) < activations(60) < activations(79)


@pytest.mark.slow
def test_measuring_leaves_no_tensors_behind(settings):
    """A result that its operation keeps, and that a hook hands back as it is, is part of a cycle that nothing frees: 600 MiB with SmolLM2-135M in float32."""
    policy = loaded(settings)

    def computed() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) and o.grad_fn is not None for o in gc.get_objects())

    before = computed()
    Footprint(policy)
    assert computed() == before


ALL_WEIGHTS = {"lora.enabled": False, "optimizer.lr": 1e-4}


@pytest.mark.parametrize("sharded", [False, True], ids=["whole weights", "shared out"])
def test_the_estimate_counts_what_processes_share_and_sum(settings, monkeypatch, sharded):
    chosen = config(settings, **ALL_WEIGHTS)
    policy = load_policy(chosen, need_reference=True)
    footprint = Footprint(policy)
    monkeypatch.setattr(policy, "sharded", sharded)
    work = Workload([policy.longest_row((1,) * 3, 2, 4)], [(4, 4)], prompt=3, new=2)
    alone, both = (footprint.estimate(policy, chosen, work, processes=n) for n in (1, 2))
    size = sum(p.nbytes for p in policy.model.parameters())
    # Both layers are gathered at the same time, with their gradients.
    assert len(policy.model.model.layers) == 2
    for name in ("weights", "reference", "gradients", "optimizer"):
        assert both.always[name] == alone.always[name] / (2 if sharded else 1)
    assert both.rollout["gathered weights"] == (size / 2 if sharded else 0)
    assert both.update["gathered weights"] == (size if sharded else 0)
    assert max(both.update["logits"], alone.update["logits"]) <= policy.logits_bytes
    steps = ("activations", "logits", "states of the reference")
    computing = sum(alone.update[name] for name in steps)
    assert alone.update["sums over processes"] == 0
    monkeypatch.setattr("grpo_core.engine.policy.memory.BUCKET_BYTES", 10**12)
    found = footprint.estimate(policy, chosen, work, processes=2).update["sums over processes"]
    assert 2 * size > computing
    assert found == (0 if sharded else pytest.approx(2 * size - computing))


def test_a_model_without_a_cache_computes_whole_sequences_in_each_step(settings):
    policy = loaded(settings, need_reference=False)
    footprint = Footprint(policy)
    work = Workload([policy.longest_row((1,) * 90, 9, 4)], [(4, 4)], prompt=90, new=9)

    def rollout(way: DecodingWay) -> Mapping[str, float]:
        policy.sampling = way
        return footprint.estimate(policy, config(settings), work).rollout

    ways = DecodingWay.TREES, DecodingWay.PADDED, DecodingWay.UNCACHED
    trees, padded, uncached = map(rollout, ways)
    share = (16 * 99) / (4 * 90 + 16 * 9)
    assert padded["keys and values"] == pytest.approx(trees["keys and values"] * share)
    assert uncached["keys and values"] == 0
    more = (16 * 99 - 4 * 90) * footprint.layer
    assert uncached["decoding"] - trees["decoding"] == pytest.approx(more)


@pytest.mark.parametrize("name", ["all weights", "adamw", "adamw8bit"])
def test_components_are_what_torch_says(settings, wide_folder, tmp_path, name):
    adapter = {"model.name": str(wide_folder), "optimizer.name": name, "lora.r": 64}
    is_full = name == "all weights"
    trainer = make(settings, tmp_path / "run", ALL_WEIGHTS if is_full else adapter)
    work = trainer.method.workload([(1,) * 10])
    estimate = trainer.actor.footprint.estimate(trainer.actor.policy, trainer.config, work)
    trainer.method.updater.update([rows(1)])
    state = trainer.method.updater.optimizer.optimizer.state.values()
    tensors = [(name, value) for values in state for name, value in values.items()]
    counted = [t.nbytes for name, t in tensors if getattr(t, "ndim", 0) and "qmap" not in name]
    found = estimate.always
    assert found["optimizer"] == pytest.approx(sum(counted), rel=0 if is_full else 0.01)
    if is_full:
        size = sum(p.nbytes for p in trainer.actor.policy.model.parameters())
        shown = [found[name] for name in ("weights", "reference", "adapter", "gradients")]
        assert shown == [size, size, 0, size]


def test_a_run_that_cannot_fit_is_refused_before_anything_is_written(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setattr("grpo_core.engine.policy.memory.free_memory", lambda device: 100 * 2**20)
    needed = r"estimated to need .* at most, of 100 MiB that are free: .*What would help most: .*memory_check"
    with pytest.raises(ConfigError, match=needed):
        ran(settings, tmp_path / "run", {"trainer.memory_check": "refuse"})
    assert not (tmp_path / "run" / "config.json").exists()
    assert ran(settings, tmp_path / "run", {"steps": 1}).folder.finished


def test_weights_that_cannot_fit_are_refused_before_they_are_read(tiny_folder, tmp_path):
    shape = json.loads((tiny_folder / "config.json").read_text())
    shape |= {"hidden_size": 2**16, "intermediate_size": 2**18, "head_dim": 2**14}
    (tiny_folder / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": 200}))
    options = words(f"--env arithmetic --model {tiny_folder} --out {tmp_path / 'run'}")
    assert "GiB of memory, but only" in grpo("run", *options, status=2).output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model.quantization": "4bit", "lora.enabled": False}, "frozen weights"),
        ({"model.offload": True}, "gradient_checkpointing"),
        ({**RECOMPUTED, "model.offload": True, "model.quantization": "8bit"}, "work together"),
        ({"model.quantization": "4bit", "trainer.shard": True}, "trainer.shard"),
    ],
)
def test_settings_that_exclude_each_other_say_so(settings, more, message):
    with pytest.raises(ConfigError, match=message):
        config(settings, **more)


@pytest.mark.slow
def test_an_adapter_on_quantised_weights_is_folded_into_full_ones(settings, wide_folder, tmp_path):
    ran(settings, tmp_path / "run", quantised(wide_folder, "4bit"))
    merged = tmp_path / "merged"
    grpo("export", tmp_path / "run", "--weights", merged, "--dtype", "float32")
    model = loaded(settings, need_reference=False, **{"model.name": str(merged)}).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert resolve(str(merged)).adapter_path is None


HEAPS = """
import ctypes, re, tempfile, threading
import torch
from grpo_core.engine.compute.heap import share_heap

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


def printed(program: str, env: Mapping[str, str] | None = None) -> str:
    """Return what a program prints in a process of its own."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")


@pytest.mark.slow
@only_glibc
def test_threads_share_few_heaps_unless_the_user_said_otherwise():
    settings = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
    plain = {name: value for name, value in os.environ.items() if name not in settings}

    def heaps(**more: str) -> int:
        return int(printed(HEAPS, {**plain, **more}))

    assert heaps() <= ARENAS < heaps(MALLOC_ARENA_MAX="8")
    assert heaps(GLIBC_TUNABLES="glibc.malloc.arena_max=8") > ARENAS


HOLES = """
import torch
from grpo_core.engine.models.device import used_memory
from grpo_core.engine.compute.heap import Heap

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
@only_glibc
def test_the_heap_is_emptied_when_it_has_grown_and_not_in_every_step():
    at_first, grown, refilled, again, before, expected = map(int, printed(HOLES).split())
    assert grown < at_first + 100
    assert refilled > grown + 200
    assert again > grown + 200
    assert expected > before + 100
