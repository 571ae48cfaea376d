"""Sample, serve and measure with a model. Importing this module imports torch."""

from __future__ import annotations

from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.merging import load_merged, save_merged
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import choose_sampler
from grpo_core.engine.policy.scoring import score_tokens
from grpo_core.train.actor import Actor, build_actor
from grpo_core.train.build import find_ranks
from grpo_core.train.rollout.completions import (
    generate,
    is_chat,
    make_choice,
    may_think,
    prompt_tokens,
    random_key,
    sampler_request,
    sampling_params,
    token_budget,
)
from grpo_core.train.run.measure import probe

__all__ = [
    "Actor",
    "ChatFrame",
    "Policy",
    "build_actor",
    "choose_sampler",
    "find_ranks",
    "generate",
    "is_chat",
    "load_merged",
    "make_choice",
    "may_think",
    "probe",
    "prompt_tokens",
    "random_key",
    "sampler_request",
    "sampling_params",
    "save_merged",
    "score_tokens",
    "token_budget",
]
