"""A copy of the policy draws what the built-in sampler draws, with the weights of its last sync."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.models.load import resolve
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.engine.policy.replica import Replica
from grpo_core.engine.policy.weights import PolicyWeights, model_to_sample
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Request, Sampler

from .test_sampler import prompts, requests_for


def drawn(sampler: Sampler, requests: Sequence[Request]) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.gather(*map(sampler.generate, requests))

    return asyncio.run(together())


def change(policy: Policy) -> None:
    """Change what is trained, as an update does."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, weight in policy.trainable():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
            weight += 0.2 * noise.to(weight.dtype)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lora", [True, False], ids=["adapter", "all weights"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replica_draws_with_the_weights_that_it_was_given_last(settings, lora, dtype):
    is_exact = dtype == "float32"
    policy, described = described_by(settings, **{"lora.enabled": lora, "model.dtype": dtype})
    engine, replica = Engine(policy), Replica(Replica.Config(), described)
    requests = requests_for(prompts(8), 4)

    def synced(version: int) -> list[Completion]:
        asyncio.run(engine.sync(PolicyWeights(policy), version))
        asyncio.run(replica.sync(PolicyWeights(policy), version))
        own, copied = drawn(engine, requests), drawn(replica, requests)
        assert {completion.version for completion in copied} == {version}
        same = [(a, b) for a, b in zip(own, copied, strict=True) if a.token_ids == b.token_ids]
        assert len(same) >= (1.0 if is_exact else 0.9) * len(requests)
        for a, b in same:
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5 if is_exact else 0.05)
        return copied

    change(policy)
    first = synced(3)
    change(policy)
    assert [c.token_ids for c in drawn(replica, requests)] == [c.token_ids for c in first]
    assert [c.token_ids for c in synced(4)] != [c.token_ids for c in first]
    asyncio.run(replica.close())


def described_by(settings: dict[str, Any], **more: Any) -> tuple[Policy, Any]:
    """Return a policy, and what a sampler is told of its model."""
    config = build_config([settings, nested(more)])
    policy = load_policy(config, need_reference=False)
    return policy, model_to_sample(config, policy, resolve(config.model.name))


def test_a_setting_that_is_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError, match="max_rows"):
        Replica(Replica.Config(max_rows=0), described_by(settings)[1])
