"""The operations and waits of the built-in engine on a GPU stay within their bars.

They are counted on a CPU, with the functions of examples/benchmarks/operations.py: models of 2 and
4 layers give the operations of a layer and of the rest, and so those of 24 layers.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "examples" / "benchmarks"
BEFORE = 10_800
"""Operations of a micro-batch before layers were stacked and chunks were cut on the host."""
SMALLER = 100
"""Divides the vocabulary and the memory for its logits, which leaves as many chunks of logits."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("operations")


def at_24_layers(count: Callable[[int], float]) -> float:
    """Extrapolate a count, which is linear in the layers."""
    few, more = count(2), count(4)
    return few + (24 - 2) / (4 - 2) * (more - few)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stacked", "times"),
    [
        (True, 1.1),  # the bar, with the default of a GPU
        (False, 1.75),  # peft computes each adapter by itself
    ],
)
def test_a_decode_step_has_few_operations_and_waits_once(script, stacked, times):
    def count(layers: int) -> float:
        policy = script.make_policy(layers, script.DECODED, stacked=stacked)
        operations, waits = script.decode_step(policy)
        assert waits <= 1
        return operations

    assert at_24_layers(count) <= times * at_24_layers(script.plain_step)


@pytest.mark.slow
@pytest.mark.parametrize(("stacked", "share"), [(True, 0.5), (False, 0.63)])
def test_a_micro_batch_has_few_operations_and_never_waits(script, stacked, share):
    logits = {"logits_bytes": script.TUNING.logits_mb * 2**20 // SMALLER}

    def count(layers: int) -> float:
        policy = script.make_policy(layers, 152_000 // SMALLER, stacked=stacked, **logits)
        operations, waits = script.total(script.micro_batch(policy, script.settings(), 2048))
        assert waits == 0
        return operations

    assert at_24_layers(count) <= share * BEFORE


def test_what_makes_the_host_wait_is_counted(script):
    ones = torch.ones(3)
    with script.counting() as counted:
        for compute in (
            ones.sum().item,
            ones.tolist,
            lambda: ones[ones > 0],
            lambda: ones[[0, 1]],
            lambda: torch.unique(ones),
            lambda: torch.equal(ones, ones),
            lambda: torch.tensor([1.0], device="cpu"),
        ):
            before = counted.waits.total()
            compute()
            assert counted.waits.total() > before
    with script.counting() as counted:
        (ones + ones).view(3, 1)
    assert (counted.operations.total(), counted.waits.total()) == (1, 0)
