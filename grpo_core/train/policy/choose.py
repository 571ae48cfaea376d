"""Choose the policy class that fits a model, and the built-in sampler that fits a policy."""

from __future__ import annotations

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import SamplingConfig
from grpo_core.protocol.sampler import Sampler
from grpo_core.train.models.load import is_masked, resolve
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.engine import Engine
from grpo_core.train.policy.masked import MaskedPolicy
from grpo_core.train.policy.masked_sampler import Filler


def load_policy(config: RunConfig, *, need_reference: bool) -> Policy:
    """Load the configured model as the policy class that fits it.

    That is one that continues texts, or one that fills gaps.
    """
    name = (
        f"{config.model.name}@{config.model.revision}"
        if config.model.revision
        else config.model.name
    )
    source = resolve(name, trust_remote_code=config.model.trust_remote_code)
    policy_class = MaskedPolicy if is_masked(source, config.model.kind) else Policy
    return policy_class.load(config, need_reference=need_reference, source=source)


def builtin_sampler(policy: Policy, limits: SamplingConfig) -> Sampler:
    """Return the built-in sampler for `policy`.

    Args:
        limits: how many completions are decoded at a time, and in how much memory.
    """
    return Filler(policy, limits) if isinstance(policy, MaskedPolicy) else Engine(policy, limits)
