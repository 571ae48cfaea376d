"""Layers that are computed together, with their adapters, give what peft gives, and its gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.stacked import Stacks
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.selfcheck import random_texts
from grpo_core.engine.policy.ways import Text

from .arrange import random_rollouts, run_config, sampled
from .test_sampler import prompts, requests_for
from .tiny import tiny_model, tiny_tokenizer

TOKENS = torch.randint(4, 100, (3, 7), generator=torch.Generator().manual_seed(0))


def adapted(dtype: torch.dtype = torch.float64, *, bias: bool = False) -> Any:
    """A tiny model with random adapters on all layers, in the model's type."""
    base = tiny_model(dtype=dtype)
    if bias:
        for module in [m for m in base.modules() if isinstance(m, torch.nn.Linear)][:-1]:
            module.bias = torch.nn.Parameter(
                torch.linspace(-1, 1, module.out_features, dtype=dtype)
            )
    model = add_adapter(base, run_config().lora, ModelSource("tiny", "tiny"))
    randomize(model, seed=1)
    return model.to(torch.float64) if dtype == torch.float64 else model


@torch.no_grad()
def randomize(model: Any, *, seed: int, of: str = "lora_") -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if of in name:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def stacked(model: Any, *, joined: bool = False) -> Stacks:
    with torch.no_grad():
        stacks = Stacks(model, lambda: model(input_ids=TOKENS[:1]), joined=joined)
    stacks.refresh()
    return stacks


def results(model: Any) -> list[Tensor]:
    """Logits without and with a graph, and the gradients of all adapters."""
    with torch.no_grad():
        plain = model(input_ids=TOKENS).logits
    model.zero_grad()
    logits = model(input_ids=TOKENS).logits
    logits.square().sum().backward()
    return [plain, logits, *(p.grad for p in model.parameters() if p.requires_grad)]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_stacks_give_the_values_and_gradients_of_peft(bias: bool, joined: bool) -> None:
    plain, ours = adapted(bias=bias), adapted(bias=bias)
    stacks = stacked(ours, joined=joined)
    # Two layers: queries, keys and values; the output; gate and up; down.
    assert [len(stack.outs) for stack in stacks._stacks] == [3, 1, 2, 1] * 2
    torch.testing.assert_close(results(ours), results(plain), rtol=1e-9, atol=1e-11)
    for model in (plain, ours):
        randomize(model, seed=2)
    stacks.refresh()
    torch.testing.assert_close(results(ours), results(plain), rtol=1e-9, atol=1e-11)


def add_other(model: Any, **changes: Any) -> None:
    """Add a second adapter with other numbers, and make it the active one."""
    model.add_adapter("other", replace(model.peft_config["default"], **changes))
    model.set_adapter("other")
    randomize(model, seed=3, of=".other.")
    model.to(torch.float64)


class CallsOfPeft:
    """Counts the calls of adapters' own layers."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        for name, module in model.named_modules():
            if ".lora_A." in name:
                module.register_forward_hook(self._called)

    def _called(self, *_: Any) -> None:
        self.count += 1


def test_an_adapter_that_is_off_is_computed_as_by_peft() -> None:
    plain, ours = adapted(), adapted()
    stacked(ours)
    with plain.disable_adapter(), ours.disable_adapter(), torch.no_grad():
        torch.testing.assert_close(ours(TOKENS).logits, plain(TOKENS).logits)


def assert_same_logits(ours: Any, plain: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS).logits, plain(TOKENS).logits)


@pytest.mark.parametrize(
    ("changes", "taken"), [({}, True), ({"lora_alpha": 99}, False), ({"r": 3}, False)]
)
def test_another_adapter_takes_the_place_of_the_trained_one_if_only_its_numbers_differ(
    changes, taken
):
    plain, ours = adapted(), adapted()
    stacks = stacked(ours)
    for model in (plain, ours):
        add_other(model, **changes)
    calls = CallsOfPeft(ours)
    assert_same_logits(ours, plain)
    assert calls.count == 14  # before `refresh`, peft computes
    with torch.no_grad():
        stacks.refresh()
    assert_same_logits(ours, plain)
    assert calls.count == (14 if taken else 28)
    torch.testing.assert_close(results(ours), results(plain))  # its own gradients, too
    for model in (plain, ours):
        model.set_adapter("default")
    assert_same_logits(ours, plain)
    stacks.refresh()
    before = calls.count
    torch.testing.assert_close(results(ours), results(plain))
    assert calls.count == before


def test_the_kl_to_an_equal_reference_is_exactly_0() -> None:
    model = adapted(torch.bfloat16)
    model.add_adapter("reference", model.peft_config["default"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".reference." in name:
                parameter.copy_(model.get_parameter(name.replace(".reference.", ".default.")))
    policy = Policy(model, tiny_tokenizer())
    rows = [Row(r.segments[0], 1.0, 1.0) for r in random_rollouts(1, 4)[0]]
    (micro,) = policy.micro_batches(rows, max_tokens=10_000, dtype=torch.float32)
    with torch.no_grad():
        reference_BT = policy.reference_logprobs(micro, temperature=1.0)
    present_BT, _ = policy.logprobs(micro, temperature=1.0)
    assert torch.equal(present_BT.detach(), reference_BT)


def test_the_weights_are_views_and_layers_compute_by_themselves_once_stacks_are_removed() -> None:
    plain, ours = adapted(), adapted()
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    stacks = stacked(ours)
    assert all(torch.equal(before[name], p) for name, p in ours.named_parameters())
    attention = ours.get_base_model().model.layers[0].self_attn
    query, key = (part.get_base_layer().weight for part in (attention.q_proj, attention.k_proj))
    assert query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
    stacks.remove()
    torch.testing.assert_close(results(ours), results(plain), rtol=0, atol=0)


def test_in_bfloat16_stacks_are_as_near_to_the_exact_log_probs_as_peft() -> None:
    models, tokenizer = [adapted(torch.bfloat16) for _ in range(3)], tiny_tokenizer()
    policies = [
        Policy(models[0], tokenizer, stacked=False),
        Policy(models[1], tokenizer),
        Policy(models[2].double(), tokenizer),
    ]
    texts = random_texts(100, None, (), 0)
    with torch.no_grad():
        peft, ours, exact = (torch.cat(policy.text_logprobs(texts)) for policy in policies)
    assert 0 < (ours - exact).abs().mean() < 1.3 * (peft - exact).abs().mean()
    # The sampler computes as the trainer does, up to rounding.
    requests = requests_for(prompts(3), 4, length=12)
    for policy in policies[:2]:
        completions = sampled(policy, requests, prepack=False)
        both = zip(requests, completions, strict=True)
        with torch.no_grad():
            trained = torch.cat(
                policy.text_logprobs([Text(r.prefix, c.token_ids) for r, c in both])
            )
        drawn = torch.tensor([value for c in completions for value in c.logprobs])
        assert (trained - drawn).abs().mean() < 0.15
