"""Attention in blocks: the same log-probs and gradients as over everything, of fewer pairs."""

import pytest
import torch

from grpo_core.engine.compute import attention
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.tree import pack_trees
from grpo_core.train.update.sums import Sums
from grpo_core.train.update.updater import Updater

from .arrange import CPU, micro_batches, random_rollouts, run_config, tiny_policy


def gradients(policy, pair: float) -> list[torch.Tensor]:
    """Of a loss over rows in trees of ragged sizes; pair: the dearer pairs of nodes are, the more trees."""
    rows = [
        Row(rollout.segments[0], 0.1 * i - 0.5, 0.01)
        for i, rollout in enumerate(r for group in random_rollouts(4, 5) for r in group)
    ]
    updater = Updater(policy, run_config(), steps=1)
    policy.model.zero_grad()
    for micro in micro_batches(rows, max_tokens=10_000, device=CPU, dtype=torch.float64, pair=pair):
        loss, _ = updater.loss(micro, None, policy.reference_states(micro), Sums())
        loss.backward()
    return [parameter.grad.clone() for _, parameter in policy.trainable()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pair", [0.0, 0.01, 10.0])
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("few", [0, 1000])
def test_blocks_give_the_gradients_of_plain_attention(pair, rows, few, monkeypatch):
    plain = tiny_policy()
    plain.model.get_base_model().set_attn_implementation("sdpa")
    monkeypatch.setattr(attention, "ROWS", rows)
    monkeypatch.setattr(attention, "FEW_ROWS", few)
    policy = tiny_policy()
    assert policy.shared_prefix
    for ours, theirs in zip(gradients(policy, pair), gradients(plain, pair), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("together", [None, [1, 2]], ids=["one tree", "several trees"])
def test_blocks_hold_all_that_their_rows_see_and_nothing_that_none_does(monkeypatch, together):
    monkeypatch.setattr(attention, "ROWS", 5)
    prompts = [(1,) * 10 + (2,) * 6, (1,) * 10 + (3,) * 4, (1,) * 10 + (4,)]
    tree = pack_trees(prompts, [(7,) * 9, (8,) * 7, (9,)], device=CPU, together=together)
    for block in tree.blocks:
        inside = torch.zeros(tree.mask_BNN.shape[-1], dtype=torch.bool)
        for columns in block.columns:
            inside[columns] = True
        seen = tree.mask_BNN[:, block.rows].any(dim=(0, 1))
        assert torch.equal(inside, seen) or (together and not (seen & ~inside).any())
    sizes = [block.rows.stop - block.rows.start for block in tree.blocks]
    assert set(sizes[:-1]) == {5}
    assert together or any(len(block.columns) > 1 for block in tree.blocks)


def test_a_model_that_does_not_take_its_attention_from_outside_keeps_its_own(monkeypatch):
    monkeypatch.setattr(
        "transformers.LlamaForCausalLM._can_set_attn_implementation", classmethod(lambda cls: False)
    )
    policy = tiny_policy()
    assert policy.model.config._attn_implementation == "sdpa"
    assert policy.shared_prefix
