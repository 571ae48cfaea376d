"""Log-probs in chunks: the same values and gradients as from all logits at once, whatever the chunk, in bounded memory."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grpo_core.engine.compute.logprob import Head, ReferenceHead, Shaping

HIDDEN, VOCABULARY = 5, 11
# Distributions that are used twice or thrice, for equal tokens and others; one not at all.
PLACE = torch.tensor([4, 0, 1, 1, 1, 3, 0])
TOKENS = torch.tensor([9, 2, 0, 6, 0, 5, 3])
DRAWN = PLACE.tolist(), TOKENS.tolist()


def head(*, bias: bool = False, trained: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(HIDDEN, VOCABULARY, bias=bias, dtype=torch.float64).requires_grad_(trained)


def states_of(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, HIDDEN, dtype=torch.float64, generator=generator)


def hidden() -> Tensor:
    return states_of(1).requires_grad_()


def whole(module: nn.Linear, hidden_KH: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    plain = torch.log_softmax(module(hidden_KH) / temperature, dim=-1)
    return plain[PLACE, TOKENS], -(plain.exp() * plain).sum(-1)[PLACE]


WEIGHT = torch.linspace(-1, 2, len(PLACE), dtype=torch.float64)


def assert_same_slopes(
    module: nn.Linear, loss: Callable[..., Tensor], ours: Sequence[Tensor], theirs: Sequence[Tensor]
) -> None:
    """Compare the gradients of the inputs, which come last, and of the trained weights."""
    trained = [p for p in module.parameters() if p.requires_grad]
    found, expected = (
        torch.autograd.grad(loss(*values), [inputs, *trained]) for *values, inputs in (ours, theirs)
    )
    assert_equal(found, expected, rtol=1e-10)


def assert_equal(found: Any, expected: Any, *, rtol: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize(
    "max_bytes", [1, 600, 2**20], ids=["one row a chunk", "two rows", "one chunk"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "options", [{}, {"bias": True}, {"trained": True}, {"bias": True, "trained": True}], ids=str
)
@pytest.mark.parametrize("entropy", [False, True])
def test_chunks_change_neither_values_nor_gradients(max_bytes, temperature, options, entropy):
    module = head(**options)

    def loss(logprob: Tensor, surprise: Tensor) -> Tensor:
        return (WEIGHT * logprob).sum() + (0.3 * surprise.square().sum() if entropy else 0.0)

    ours, theirs = hidden(), hidden()
    found = Head(module, VOCABULARY, temperature, max_bytes, entropy).values(ours, *DRAWN)[:2]
    expected = whole(module, theirs, temperature)
    assert_equal(found, expected)
    assert_same_slopes(module, loss, (*found, ours), (*expected, theirs))
    with torch.no_grad():
        plain = Head(module, VOCABULARY, temperature, max_bytes).values(ours, *DRAWN)[:2]
    assert_equal(plain, expected)


def test_a_frozen_head_keeps_nothing_of_the_vocabularys_size_and_gets_no_gradient():
    module = head()
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprob = Head(module, VOCABULARY, 1.0, 2**20).values(hidden(), *DRAWN).logprob
    logprob.sum().backward()
    assert module.weight.grad is None
    assert kept
    assert all(VOCABULARY not in shape for shape in kept)


def test_nothing_to_predict_gives_nothing():
    logprob, entropy, *_ = Head(head(), VOCABULARY, 1.0, 600).values(hidden()[:0], [], [])
    assert logprob.shape == entropy.shape == (0,)


def reference_head(module: nn.Linear) -> ReferenceHead:
    """A reference whose last hidden states are others, with the head itself."""
    return ReferenceHead(1.5 * states_of(2), lambda: nullcontext(module))


@pytest.mark.parametrize("max_bytes", [1, 1000, 2**20], ids=["one row", "two rows", "one chunk"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {}),
        ({"bias": True}, {"shaping": Shaping(scale=1.5)}),
        ({}, {"entropy": True}),
        ({"trained": True}, {}),
        ({"bias": True, "trained": True}, {"entropy": True}),
        ({}, {"shaping": Shaping(scale=0.7, cap=2.0)}),
    ],
    ids=str,
)
def test_the_kl_over_the_vocabulary_and_its_gradient_are_those_of_the_definition(
    max_bytes, temperature, options, more
):
    """The sum over all tokens of p (log p - log q), and torch's gradient of it, in float64."""
    module = head(**options)
    reference = reference_head(module)
    shape = more.get("shaping", Shaping()).logits

    def defined(states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = torch.log_softmax(shape(module(states)) / temperature, dim=-1)
        with torch.no_grad():
            other = torch.log_softmax(shape(module(reference.hidden_KH)) / temperature, dim=-1)
        kl = (own.exp() * (own - other)).sum(-1)
        return own[PLACE, TOKENS], other[PLACE, TOKENS], kl[PLACE]

    def loss(logprob: Tensor, kl: Tensor) -> Tensor:
        return (WEIGHT * logprob).sum() + (WEIGHT.flip(0) * kl).sum() + kl.square().sum()

    ours, theirs = hidden(), hidden()
    measured = Head(module, VOCABULARY, temperature, max_bytes, kl=True, **more)
    found = measured.values(ours, *DRAWN, reference)
    expected = defined(theirs)
    assert_equal((found.logprob, found.reference, found.kl), expected)
    own = (found.logprob, found.kl, ours)
    assert_same_slopes(module, loss, own, (expected[0], expected[2], theirs))


@pytest.mark.parametrize("trained", [False, True])
def test_a_kl_that_is_only_logged_changes_no_gradient(trained):
    module, found = head(trained=trained), []
    for reference in (None, reference_head(module)):
        states = hidden()
        values = Head(module, VOCABULARY, 0.7, 600).values(states, *DRAWN, reference)
        found.append(torch.autograd.grad(values.logprob.square().sum(), states)[0])
    assert_equal(*found)


@pytest.mark.parametrize("trained", [False, True])
def test_the_kl_to_itself_is_exactly_zero_and_no_rounding_makes_one_negative(trained):
    torch.manual_seed(0)
    module = nn.Linear(64, 5000, bias=False).requires_grad_(trained)
    states = 3 * torch.randn(40, 64)
    drawn = list(range(40)), list(range(40))
    near = states + 1e-6 * torch.randn(40, 64)
    with torch.no_grad():
        kl, near_kl = (
            Head(module, 5000, 1.0, 2**20).values(states, *drawn, reference).kl
            for reference in (ReferenceHead(h, lambda: nullcontext(module)) for h in (states, near))
        )
    assert (kl == 0).all()
    assert (near_kl >= 0).all()
    assert (near_kl < 1e-5).all()


@pytest.mark.parametrize("trained", [False, True])
def test_tokens_that_neither_policy_can_draw_leave_entropy_and_kl_finite(trained):
    """Logits of -inf, as some models give unused tokens."""
    module = head(bias=True, trained=trained)
    with torch.no_grad():
        module.bias[2] = -torch.inf
    logprob, entropy, *_ = Head(module, VOCABULARY, 1.0, 600).values(hidden(), *DRAWN)
    assert logprob[1] == -torch.inf
    assert entropy.isfinite().all()
    states, drawn = hidden(), ([0, 1, 2], [1, 3, 4])
    values = Head(module, VOCABULARY, 1.0, 600, kl=True).values(
        states, *drawn, reference_head(module)
    )
    assert values.kl.isfinite().all()
    assert torch.autograd.grad(values.kl.sum(), states)[0].isfinite().all()


PEAK = """
import sys, torch
from grpo_core.engine.compute.logprob import Head, ReferenceHead, Shaping
torch.set_num_threads(1)
vocabulary, rows = int(sys.argv[1]), int(sys.argv[2])
module = torch.nn.Linear(32, vocabulary, bias=False).requires_grad_(False)
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
def run(count):
    hidden = torch.randn(count, 32, requires_grad=True)
    places, tokens = list(range(count)), torch.randint(vocabulary, (count,)).tolist()
    Head(module, vocabulary, 1.0, 96 * 2**20).values(hidden, places, tokens)[0].sum().backward()
run(1)
before = peak()
run(rows)
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_is_flat_in_vocabulary_and_tokens():
    """From 8,000 to 150,000 tokens in the vocabulary and 2,000 to 8,000 in the batch: at most 20 % more than the least."""
    sizes = [(8_000, 2_000), (8_000, 8_000), (50_000, 2_000), (150_000, 2_000)]
    peaks = {
        size: int(subprocess.check_output([sys.executable, "-c", PEAK, *map(str, size)]))
        for size in sizes
    }
    assert max(peaks.values()) <= 1.2 * min(peaks.values()), peaks
