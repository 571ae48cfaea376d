"""Choose the policy class that fits a model, and the sampler that the config names."""

from __future__ import annotations

from collections.abc import Callable

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import SamplingConfig
from grpo_core.engine.models.load import resolve
from grpo_core.engine.models.source import ModelSource, is_masked
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.engine.policy.loading import load
from grpo_core.engine.policy.masked import MaskedPolicy
from grpo_core.engine.policy.masked_sampler import Filler
from grpo_core.engine.policy.weights import model_to_sample
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import sampler_maker
from grpo_core.protocol.sampler import Sampler

BUILTIN = "builtin"
"""The name of the sampler that draws with the policy's own weights."""

MakeSampler = Callable[[Policy, RunConfig], Sampler]
"""Makes the sampler of a policy."""


def load_policy(
    config: RunConfig,
    *,
    need_reference: bool,
    need_adapter: bool = True,
    say: Callable[[str], object] = lambda text: None,
) -> Policy:
    """Load the configured model as the policy class that fits it.

    That is one that continues texts, or one that fills gaps.

    Args:
        config: the configuration of the run.
        need_reference: whether a frozen reference is kept.
        need_adapter: whether a model without an adapter gets a fresh one, to be trained.
        say: is told what takes long.
    """
    source = _source(config)
    policy_class = MaskedPolicy if is_masked(source, config.model.kind) else Policy
    return load(
        policy_class,
        config,
        source,
        need_reference=need_reference,
        need_adapter=need_adapter,
        say=say,
    )


def choose_sampler(config: RunConfig, host: PluginHost) -> MakeSampler:
    """Return what makes the sampler that `config` names; a plugin is loaded at once.

    Raises:
        UserError: there is no such sampler, or a setting of it is not valid.
    """
    if config.sampler.name == BUILTIN:
        return lambda policy, config: builtin_sampler(policy, config.sampling)
    make = sampler_maker(host, config.sampler)
    return lambda policy, config: make(model_to_sample(config, policy, _source(config)))


def builtin_sampler(policy: Policy, limits: SamplingConfig) -> Sampler:
    """Return the built-in sampler for `policy`.

    Args:
        limits: how many completions are decoded at a time, and in how much memory.
    """
    sampler_class = Filler if isinstance(policy, MaskedPolicy) else Engine
    return sampler_class(policy, limits)


def _source(config: RunConfig) -> ModelSource:
    """Return where the configured model is."""
    model = config.model
    name = f"{model.name}@{model.revision}" if model.revision else model.name
    return resolve(name, trust_remote_code=model.trust_remote_code)
