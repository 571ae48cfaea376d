"""Build and read the settings of a run."""

from __future__ import annotations

from grpo_core.config.config import RunConfig
from grpo_core.config.modelcache import ALIASES, DEFAULT_MODEL
from grpo_core.config.overrides import nested, parse_setting, split_setting
from grpo_core.config.settings import Isolation, JudgeConfig, SandboxConfig, VerifyConfig
from grpo_core.config.sizes import BETAS, RATES

__all__ = [
    "ALIASES",
    "BETAS",
    "DEFAULT_MODEL",
    "Isolation",
    "JudgeConfig",
    "RATES",
    "RunConfig",
    "SandboxConfig",
    "VerifyConfig",
    "nested",
    "parse_setting",
    "split_setting",
]
